//! Measures steps without a picture: all observations change, and the app runs as fast as it can.

use std::time::Instant;

use bevy::prelude::*;
use bevy_tensor_compute::crowd::TensorCrowd;
use bevy_tensor_compute::figures::TensorFigures;
use bevy_tensor_compute::prelude::*;

use super::agents::{Acts, Agent, Field, Senses, act, populate, sense};
use super::{CrowdPlugin, Herd, Options};

/// Steps that are not measured, because plans and pipelines are made in them.
const WARM_UP: u64 = 20;
/// Steps that are measured if the command line does not tell.
const STEPS: u32 = 200;

type Crowd = TensorCrowd<Senses, Acts>;

/// The figures of one number of agents.
struct Row {
    agents: usize,
    step: f64,
    gather: f64,
    scatter: f64,
    launches: f64,
    plans: u64,
}

pub fn run(options: &Options) -> Result<(), String> {
    let counts = options.agents.map_or_else(|| vec![100, 1_000, 5_000, 20_000], |agents| vec![agents]);
    println!(
        "{:>8} {:>10} {:>11} {:>11} {:>9} {:>6}",
        "agents", "ms a step", "gather ms", "scatter ms", "launches", "plans"
    );
    let mut rows = Vec::new();
    for agents in counts {
        let row = measure(agents, options)?;
        println!(
            "{:>8} {:>10.3} {:>11.3} {:>11.3} {:>9.1} {:>6}",
            row.agents, row.step, row.gather, row.scatter, row.launches, row.plans
        );
        rows.push(row);
    }
    let Some(path) = &options.report else { return Ok(()) };
    let json = |row: &Row| {
        let Row { agents, step, gather, scatter, launches, plans } = row;
        format!(
            "{{\"agents\": {agents}, \"ms_step\": {step:.4}, \"ms_gather\": {gather:.4}, \"ms_scatter\": {scatter:.4}, \"launches\": {launches:.2}, \"plans\": {plans}}}"
        )
    };
    let text = match &rows[..] {
        [row] => json(row),
        rows => format!("[{}]", rows.iter().map(json).collect::<Vec<_>>().join(",\n ")),
    };
    std::fs::write(path, text + "\n").map_err(|error| format!("{path}: {error}"))
}

fn measure(agents: usize, options: &Options) -> Result<Row, String> {
    let mut app = App::new();
    // Without a renderer unless the GPU is asked for: its frames would be part of a step's time.
    match options.backend {
        BackendChoice::Gpu => app.add_plugins(AnywherePlugins::headless().build().disable::<bevy::log::LogPlugin>()),
        BackendChoice::Auto | BackendChoice::Cpu => app.add_plugins((MinimalPlugins, AssetPlugin::default())),
    };
    app.add_plugins(TensorComputePlugin { backend: options.backend, ..default() })
        .add_plugins(CrowdPlugin)
        .insert_resource(Field::new(agents))
        .add_systems(
            Startup,
            move |all: Query<Entity, With<Agent>>, field: Res<Field>, herd: Res<Herd>, mut commands: Commands| {
                populate(agents, &all, &field, &herd, &mut commands);
            },
        )
        .add_systems(Update, (act, sense).chain());
    app.finish();
    app.cleanup();
    let steps = u64::from(options.frames.unwrap_or(STEPS));
    let (mut times, mut gathers, mut scatters) = (Vec::new(), Vec::new(), Vec::new());
    let mut before: Option<TensorFigures> = None;
    let end = Instant::now() + std::time::Duration::from_secs(120);
    let mut answers = 0;
    loop {
        if Instant::now() > end {
            return Err(format!("{agents} agents: only {answers} of {steps} steps were done in two minutes"));
        }
        // One step at a time, so that a step is not measured together with the next one.
        let herd = app.world().get_resource::<Herd>().map(|herd| herd.0);
        if let Some(mut crowd) = herd.and_then(|herd| app.world_mut().get_mut::<Crowd>(herd)) {
            crowd.in_flight = 1;
        }
        app.update();
        if let Some(exit) = app.should_exit() {
            return Err(format!("the policy could not be loaded: {exit:?}"));
        }
        let Some(crowd) = herd.and_then(|herd| app.world().get::<Crowd>(herd)) else { continue };
        let stats = crowd.stats();
        if agents == 0 {
            return Ok(Row { agents, step: 0.0, gather: 0.0, scatter: 0.0, launches: 0.0, plans: 0 });
        }
        if stats.answers == answers {
            continue;
        }
        answers = stats.answers;
        let figures = || app.world().resource::<TensorDiagnostics>().figures();
        if answers == WARM_UP {
            before = Some(figures());
        } else if answers > WARM_UP {
            times.push(stats.step.as_secs_f64() * 1e3);
            gathers.push(stats.gather.as_secs_f64() * 1e3);
            scatters.push(stats.scatter.as_secs_f64() * 1e3);
        }
        if answers == WARM_UP + steps {
            let (before, after) = (before.unwrap_or_default(), figures());
            let launches = (after.dispatches + after.cpu_steps) - (before.dispatches + before.cpu_steps);
            return Ok(Row {
                agents,
                step: median(times),
                gather: median(gathers),
                scatter: median(scatters),
                launches: launches as f64 / steps as f64,
                plans: after.plans_built - before.plans_built,
            });
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
