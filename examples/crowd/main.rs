//! Thousands of agents steered by one network: each frame, all of them are the rows of one batch.
//!
//! The policy (64-128-128-8) was fitted by `tools/crowd_policy.py` to imitate a flocking rule. Agents follow one of three
//! lights, keep together, and avoid each other and the pillars. Without a display, or with `--headless`, the example
//! measures steps and prints a table.
//!
//! ```text
//! crowd [--headless] [--agents N] [--frames N] [--backend cpu|gpu] [--report FILE.json] [--size 1280x720] [--screenshot FILE.png]
//! ```

mod agents;
mod measure;
#[cfg(feature = "inspector")]
mod scene;

use std::process::ExitCode;

use bevy::prelude::*;
use bevy_tensor_compute::crowd::{TensorCrowd, TensorCrowdPlugin};
use bevy_tensor_compute::nn::Linear;
use bevy_tensor_compute::prelude::*;

use agents::{Acts, Senses};

fn main() -> ExitCode {
    let result = Options::parse(std::env::args().skip(1)).and_then(|options| {
        let window = bevy_tensor_compute::support::has_adapter() && bevy_tensor_compute::support::has_display();
        match window && !options.headless && cfg!(feature = "inspector") {
            #[cfg(feature = "inspector")]
            true => scene::run(options),
            _ => measure::run(&options),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("crowd: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The parsed command line.
#[derive(Resource, Clone, Debug)]
struct Options {
    headless: bool,
    agents: Option<usize>,
    frames: Option<u32>,
    backend: BackendChoice,
    report: Option<String>,
    size: (u32, u32),
    screenshot: Option<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            headless: false,
            agents: None,
            frames: None,
            backend: BackendChoice::Auto,
            report: None,
            size: (1280, 720),
            screenshot: None,
        };
        while let Some(name) = arguments.next() {
            if name == "--headless" {
                options.headless = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value, or is not an option"))?;
            let number = || value.parse().map_err(|_| format!("{name}: \"{value}\" is not a number"));
            match name.as_str() {
                "--agents" => options.agents = Some(number()?),
                "--frames" => options.frames = Some(number()?).map(|n: usize| n.clamp(1, 1_000_000) as u32),
                "--backend" => {
                    options.backend = match value.as_str() {
                        "cpu" => BackendChoice::Cpu,
                        "gpu" => BackendChoice::Gpu,
                        "auto" => BackendChoice::Auto,
                        _ => return Err(format!("--backend: \"{value}\" is not cpu, gpu or auto")),
                    }
                }
                "--report" => options.report = Some(value),
                "--screenshot" => options.screenshot = Some(value),
                "--size" => {
                    let size = value.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
                    options.size = size.ok_or_else(|| format!("--size: \"{value}\" is not like 1280x720"))?;
                }
                _ => return Err(format!("unknown option {name}")),
            }
        }
        match options.agents {
            Some(agents) if agents > 200_000 => Err(format!("--agents: {agents} are more than 200000")),
            _ => Ok(options),
        }
    }
}

/// The crowd, and the model with its network.
pub struct CrowdPlugin;

/// The entity with the network and the crowd.
#[derive(Resource)]
pub struct Herd(pub Entity);

impl Plugin for CrowdPlugin {
    fn build(&self, app: &mut App) {
        app.add_plugins(TensorCrowdPlugin::<Senses, Acts>::default()).add_systems(PreStartup, load_policy);
    }
}

fn load_policy(mut commands: Commands, server: Res<AssetServer>) {
    let weights = LoadWeights::new(server.load("models/crowd.safetensors"));
    let herd = commands.spawn((Name::new("policy"), weights)).observe(start_crowd).id();
    commands.insert_resource(Herd(herd));
}

/// Starts the crowd once its network has been loaded.
fn start_crowd(ready: On<WeightsReady>, models: TensorModels, mut commands: Commands) -> Result {
    if let Err(error) = &ready.result {
        error!("{error}");
        commands.write_message(AppExit::error());
        return Ok(());
    }
    let weights = models.weights(ready.entity);
    let [first, second, out] = ["hidden1", "hidden2", "out"].map(|name| Linear::find(&weights.at(name)));
    let (first, second, out) = (first?, second?, out?);
    commands.entity(ready.entity).insert(TensorCrowd::<Senses, Acts>::new(move |ops, rows| {
        let hidden = ops.relu(first.apply(ops, rows)?)?;
        let hidden = ops.relu(second.apply(ops, hidden)?)?;
        out.apply(ops, hidden)
    }));
    Ok(())
}
