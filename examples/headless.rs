//! A game loop without a window: a small policy network steers a hundred agents, with new input every frame and no
//! stalls.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

const AGENTS: usize = 100;
const FRAMES: u32 = 120;

fn main() -> AppExit {
    App::new()
        .add_plugins((AnywherePlugins::headless(), TensorComputePlugin::default()))
        .init_resource::<Agents>()
        .add_systems(Startup, spawn_policy)
        .add_systems(Update, (think, report).chain())
        .add_observer(act)
        .run()
}

/// Positions on a line, and how often each agent has been steered.
#[derive(Resource)]
struct Agents {
    positions: Vec<f32>,
    decisions: usize,
}

impl Default for Agents {
    fn default() -> Self {
        Self { positions: (0..AGENTS).map(|i| i as f32 / 10.0 - 5.0).collect(), decisions: 0 }
    }
}

/// Two layers: position → 8 hidden → steering in −1..1.
#[derive(Component)]
struct Policy {
    input: Entity,
    hidden: Entity,
    output: Entity,
    steering: Entity,
}

fn spawn_policy(mut commands: Commands) -> Result {
    let model = commands.spawn((TensorModel, Name::new("policy"))).id();
    let input = commands.spawn_tensor(model, "input", Tensor::zeros([AGENTS, 1], DType::F32)?);
    let hidden = commands.spawn_tensor(model, "hidden", Tensor::random_uniform([1, 8], 0.2, 0.6, 7, DType::F32)?);
    let output = commands.spawn_tensor(model, "output", Tensor::full([8, 1], -0.2, DType::F32)?);
    let steering = commands.spawn_tensor(model, "steering", Tensor::zeros([AGENTS, 1], DType::F32)?);
    commands.entity(model).insert(Policy { input, hidden, output, steering });
    Ok(())
}

/// Writes the positions and requests one decision per agent.
fn think(policy: Single<&Policy>, agents: Res<Agents>, ops: TensorCommands) -> Result {
    ops.write(policy.input, &agents.positions)?;
    let hidden = ops.tanh(ops.matmul(policy.input, policy.hidden)?)?;
    let steering = ops.clamp(ops.matmul(hidden, policy.output)?, -1.0, 1.0)?;
    ops.store(steering, policy.steering)?;
    ops.notify(policy.steering)?;
    Ok(())
}

/// Decisions arrive a frame or two later. The loop never waits for them.
fn act(ready: On<TensorReady>, mut agents: ResMut<Agents>) -> Result {
    if ready.entity != ready.tensor {
        return Ok(()); // the same event again, bubbling through the model
    }
    let steering = ready.result.clone()?;
    for (position, step) in agents.positions.iter_mut().zip(steering.as_slice::<f32>()?) {
        *position += 0.2 * step;
    }
    agents.decisions += 1;
    Ok(())
}

fn report(
    agents: Res<Agents>,
    support: Res<TensorSupport>,
    diagnostics: Res<TensorDiagnostics>,
    mut frame: Local<u32>,
    mut exit: MessageWriter<AppExit>,
) {
    *frame += 1;
    if *frame < FRAMES || agents.decisions == 0 {
        return;
    }
    let spread = agents.positions.iter().fold(0.0f32, |most, position| most.max(position.abs()));
    let figures = diagnostics.figures();
    println!("{}: {}", support.backend, support.reason);
    println!(
        "{frame} frames, {} decisions for {AGENTS} agents, farthest now {spread:.2} (was 5.00)",
        agents.decisions,
        frame = *frame
    );
    println!(
        "{} plans built, {} found again; {} buffers",
        figures.plans_built, figures.plan_hits, figures.buffers_allocated
    );
    exit.write(AppExit::Success);
}
