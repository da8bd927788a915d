//! The agents: where they are, what they sense, and how they move. `tools/crowd_policy.py` has the same rules.

use bevy::prelude::*;
use bevy_tensor_compute::crowd::InCrowd;
use bytemuck::{Pod, Zeroable};

use super::Herd;

/// Number of directions in which an agent senses its neighbours.
pub const SECTORS: usize = 12;
/// How far an agent senses.
pub const RADIUS: f32 = 4.0;
/// The highest speed.
pub const SPEED: f32 = 6.0;
/// Size of the field for 5,000 agents. It grows with their number, so that the density stays the same.
pub const FIELD: Vec2 = Vec2::new(150.0, 90.0);
/// Neighbours beyond this number are not looked at. Keeps dense places affordable.
const NEIGHBOURS: usize = 24;

/// Where an agent is.
#[derive(Component, Clone, Copy)]
pub struct Agent {
    pub position: Vec2,
    pub velocity: Vec2,
    /// The light that it follows.
    pub light: usize,
}

/// What an agent senses, in the frame of its heading: own speed, distance and direction of its light, and for each
/// sector the number of neighbours, how close the closest is, their mean relative velocity, and how close a pillar is.
#[derive(Component, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Senses {
    pub speed: f32,
    pub distance: f32,
    pub goal: [f32; 2],
    pub sectors: [[f32; 5]; SECTORS],
}

/// What the network answers.
#[derive(Component, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Acts {
    /// Forward and to the left.
    pub force: [f32; 2],
    pub boost: f32,
    pub colour: [f32; 3],
    pub size: f32,
    pub turn: f32,
}

/// The size of the field, and the lights and pillars on it.
#[derive(Resource)]
pub struct Field {
    pub size: Vec2,
    pub lights: [Vec2; 3],
    /// Centres and radii.
    pub pillars: Vec<(Vec2, f32)>,
    pub time: f32,
}

impl Field {
    pub fn new(agents: usize) -> Self {
        let mut field = Self { size: Vec2::ZERO, lights: [Vec2::ZERO; 3], pillars: Vec::new(), time: 0.0 };
        field.resize(agents);
        field.advance(0.0);
        field
    }

    /// Adapts the field to a number of agents.
    pub fn resize(&mut self, agents: usize) {
        self.size = FIELD * (agents.max(300) as f32 / 5000.0).sqrt();
        let places = [(-0.24, 0.14, 0.05), (0.21, -0.2, 0.065), (0.29, 0.26, 0.04), (-0.31, -0.27, 0.035)];
        self.pillars = places.map(|(x, y, r)| (Vec2::new(x, y) * self.size, r * self.size.x)).into();
    }

    /// Moves the lights.
    pub fn advance(&mut self, seconds: f32) {
        self.time += seconds;
        for (i, light) in self.lights.iter_mut().enumerate() {
            let phase = i as f32 * 2.1;
            let (x, y) = ((self.time * 0.21 + phase).cos(), (self.time * 0.33 + phase * 1.7).sin());
            *light = Vec2::new(x, y) * self.size * 0.36;
        }
    }
}

/// Spawns or despawns agents until there are `count`.
pub fn populate(
    count: usize,
    agents: &Query<Entity, With<Agent>>,
    field: &Field,
    herd: &Herd,
    commands: &mut Commands,
) {
    let there = agents.iter().count();
    for entity in agents.iter().skip(count) {
        commands.entity(entity).despawn();
    }
    for i in there..count {
        // A low-discrepancy sequence spreads the agents evenly.
        let at = Vec2::new((i as f32 * 0.754_877_7).fract(), (i as f32 * 0.569_840_3).fract()) - 0.5;
        let agent = Agent {
            position: at * field.size,
            velocity: Vec2::from_angle(i as f32 * 2.4) * SPEED * 0.5,
            light: i % field.lights.len(),
        };
        commands.spawn((agent, Senses::zeroed(), InCrowd(herd.0)));
    }
}

/// Agents by the cell they are in, so that neighbours are found without looking at everyone.
#[derive(Default)]
pub struct Grid {
    /// First entry of each cell in `agents`.
    starts: Vec<u32>,
    agents: Vec<(Vec2, Vec2)>,
    columns: usize,
    rows: usize,
    corner: Vec2,
}

impl Grid {
    fn fill(&mut self, size: Vec2, agents: impl Iterator<Item = (Vec2, Vec2)> + Clone) {
        self.corner = -size * 0.5;
        (self.columns, self.rows) = ((size.x / RADIUS).ceil() as usize + 1, (size.y / RADIUS).ceil() as usize + 1);
        self.starts.clear();
        self.starts.resize(self.columns * self.rows + 1, 0);
        // A counting sort by cell.
        let mut count = 0;
        for (position, _) in agents.clone() {
            let cell = self.cell(position);
            self.starts[cell + 1] += 1;
            count += 1;
        }
        for cell in 1..self.starts.len() {
            self.starts[cell] += self.starts[cell - 1];
        }
        self.agents.clear();
        self.agents.resize(count, (Vec2::ZERO, Vec2::ZERO));
        let mut next = self.starts.clone();
        for agent in agents {
            let cell = self.cell(agent.0);
            self.agents[next[cell] as usize] = agent;
            next[cell] += 1;
        }
    }

    fn cell(&self, position: Vec2) -> usize {
        let at = ((position - self.corner) / RADIUS).max(Vec2::ZERO);
        (at.y as usize).min(self.rows - 1) * self.columns + (at.x as usize).min(self.columns - 1)
    }

    /// The agents in the cells around a position.
    fn around(&self, position: Vec2) -> impl Iterator<Item = &(Vec2, Vec2)> {
        let cell = self.cell(position);
        let (column, row) = (cell % self.columns, cell / self.columns);
        let columns = column.saturating_sub(1)..=(column + 1).min(self.columns - 1);
        (row.saturating_sub(1)..=(row + 1).min(self.rows - 1)).flat_map(move |row| {
            let (first, last) = (row * self.columns + columns.start(), row * self.columns + columns.end());
            &self.agents[self.starts[first] as usize..self.starts[last + 1] as usize]
        })
    }
}

/// Fills in what every agent senses.
pub fn sense(mut agents: Query<(&Agent, &mut Senses)>, field: Res<Field>, mut grid: Local<Grid>) {
    grid.fill(field.size, agents.iter().map(|(agent, _)| (agent.position, agent.velocity)));
    let grid = &*grid;
    agents.par_iter_mut().for_each(|(agent, mut senses)| *senses = senses_of(agent, grid, &field));
}

fn senses_of(agent: &Agent, grid: &Grid, field: &Field) -> Senses {
    let speed = agent.velocity.length();
    let ahead = heading(agent.velocity);
    let local = |world: Vec2| Vec2::new(ahead.dot(world), ahead.perp_dot(world));
    let sector = |way: Vec2| {
        let turn = (way.y.atan2(way.x) + core::f32::consts::PI) / core::f32::consts::TAU;
        (turn * SECTORS as f32) as usize % SECTORS
    };
    let mut sectors = [[0.0f32; 5]; SECTORS];
    let mut counts = [0.0f32; SECTORS];
    let mut seen = 0;
    for &(position, velocity) in grid.around(agent.position) {
        let offset = position - agent.position;
        let distance = offset.length();
        if distance >= RADIUS || distance == 0.0 {
            continue;
        }
        let k = sector(local(offset));
        let relative = local(velocity - agent.velocity) / SPEED;
        counts[k] += 1.0;
        sectors[k][1] = sectors[k][1].max(1.0 - distance / RADIUS);
        sectors[k][2] += relative.x;
        sectors[k][3] += relative.y;
        seen += 1;
        if seen == NEIGHBOURS {
            break;
        }
    }
    for (sector, count) in sectors.iter_mut().zip(counts) {
        sector[0] = (count / 6.0).min(1.0);
        sector[2] /= count.max(1.0);
        sector[3] /= count.max(1.0);
    }
    for &(centre, radius) in &field.pillars {
        let to = local(centre - agent.position);
        let close = (1.0 - (to.length() - radius) / RADIUS).clamp(0.0, 1.0);
        let k = sector(to);
        sectors[k][4] = sectors[k][4].max(close);
    }
    let goal = local(field.lights[agent.light] - agent.position);
    let distance = goal.length();
    let goal = goal / distance.max(1e-3);
    Senses { speed: speed / SPEED, distance: (distance / 20.0).min(1.0), goal: goal.into(), sectors }
}

pub fn heading(velocity: Vec2) -> Vec2 {
    velocity.try_normalize().unwrap_or(Vec2::X)
}

/// Moves the agents as the network asks.
pub fn act(mut agents: Query<(&mut Agent, &Acts)>, mut field: ResMut<Field>, time: Res<Time>) {
    let seconds = time.delta_secs().min(0.05);
    field.advance(seconds);
    let (half, pillars) = (field.size * 0.5, &field.pillars);
    agents.par_iter_mut().for_each(|(mut agent, acts)| {
        let ahead = heading(agent.velocity);
        let force = ahead * (acts.force[0] + acts.boost * 0.5) + ahead.perp() * acts.force[1];
        let velocity = agent.velocity + force * 14.0 * seconds;
        let speed = velocity.length().clamp(1.0, SPEED);
        agent.velocity = heading(velocity) * speed;
        let mut position = agent.position + agent.velocity * seconds;
        for &(centre, radius) in pillars {
            let out = position - centre;
            if out.length() < radius {
                position = centre + heading(out) * radius;
            }
        }
        // Turns back at the edge.
        for axis in 0..2 {
            if position[axis].abs() > half[axis] {
                position[axis] = position[axis].clamp(-half[axis], half[axis]);
                agent.velocity[axis] = -agent.velocity[axis];
            }
        }
        agent.position = position;
    });
}
