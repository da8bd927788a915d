//! Loads the weights of two models as assets: one after the other, and both at once. Run with `cargo bench --bench
//! loading`. Needs `assets/models`.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use bevy::prelude::*;
use bevy_tensor_compute::formats::{TensorWeights, WeightsReady};
use bevy_tensor_compute::prelude::*;
use common::{BACKENDS, Faults, Rig};

const FILES: [&str; 2] = ["models/minilm.safetensors", "models/efficientnet.safetensors"];

/// A frame at 60 frames per second.
const FRAME: core::time::Duration = core::time::Duration::from_micros(16_667);

/// Runs of each kind, alternating.
const ROUNDS: usize = 5;

#[derive(Resource, Default)]
struct Ready(usize);

fn main() {
    println!(
        "{:>8} {:>18} {:>18} {:>6} {:>22}",
        "backend", "one by one, ms", "both at once, ms", "ratio", "longest / median frame"
    );
    for backend in BACKENDS {
        let (mut apart, mut together, mut worst) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            apart.push(load(backend, false).0);
            let (ms, frames) = load(backend, true);
            together.push(ms);
            let longest = frames.iter().copied().fold(0.0, f64::max);
            worst.push(longest / median(frames));
        }
        let (apart, together) = (median(apart), median(together));
        let (ratio, worst) = (together / apart, median(worst));
        println!("{:>8} {apart:>18.1} {together:>18.1} {ratio:>6.2} {worst:>22.2}", backend.to_string());
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Time in ms until both models are loaded, and of every frame until then, at 60 frames per second.
fn load(backend: Backend, at_once: bool) -> (f64, Vec<f64>) {
    let mut app = match backend {
        Backend::Gpu => Rig::new(backend).app,
        Backend::Cpu => {
            let mut app = App::new();
            app.add_plugins((MinimalPlugins, AssetPlugin::default()));
            app.add_plugins(TensorComputePlugin { backend: BackendChoice::Cpu, ..default() }).init_resource::<Faults>();
            app.finish();
            app.cleanup();
            app
        }
    };
    app.init_resource::<Ready>();
    app.add_observer(|event: On<WeightsReady>, mut ready: ResMut<Ready>| {
        assert!(event.result.is_ok(), "{:?}", event.result);
        ready.0 += 1;
    });
    for _ in 0..20 {
        app.update();
    }
    let mut waiting = FILES.to_vec();
    waiting.reverse();
    let (start, mut frames) = (Instant::now(), Vec::new());
    let mut asked = 0;
    while app.world().resource::<Ready>().0 < FILES.len() {
        while let Some(&file) = waiting.last()
            && (at_once || app.world().resource::<Ready>().0 == asked)
        {
            waiting.pop();
            asked += 1;
            let handle: Handle<TensorWeights> = app.world().resource::<AssetServer>().load(file);
            app.world_mut().spawn(LoadWeights::new(handle));
        }
        let frame = Instant::now();
        app.update();
        // The rest of a frame is left to the loading threads, as when a game waits for the display.
        std::thread::sleep(FRAME.saturating_sub(frame.elapsed()));
        frames.push(frame.elapsed().as_secs_f64() * 1e3);
    }
    (start.elapsed().as_secs_f64() * 1e3, frames)
}
