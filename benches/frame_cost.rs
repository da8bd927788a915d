//! The cost of a frame: independent of the number of tensors, linear in the number of recorded ops. Run with `cargo
//! bench --bench frame_cost`.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use common::{BACKENDS, Rig};

fn main() {
    println!("idle tensors: cost of a frame that records nothing");
    println!("{:>8} {:>10} {:>14}", "backend", "tensors", "µs a frame");
    for backend in BACKENDS {
        for tensors in [0, 1_000, 10_000] {
            println!("{:>8} {tensors:>10} {:>14.1}", backend.to_string(), idle(backend, tensors));
        }
    }
    println!("\nrecorded ops: cost of recording on the main thread and of encoding in the render world");
    println!(
        "{:>8} {:>6} {:>14} {:>14} {:>16} {:>18}",
        "backend", "ops", "record µs", "µs an op", "launches", "encode µs/launch"
    );
    for backend in BACKENDS {
        for ops in [10, 100, 1_000] {
            let Cost { record, launches, encode } = recorded(backend, ops);
            let encode = match backend {
                Backend::Gpu => format!("{:.2}", encode / launches as f64),
                Backend::Cpu => "-".to_owned(),
            };
            let an_op = record / ops as f64;
            println!("{:>8} {ops:>6} {record:>14.1} {an_op:>14.2} {launches:>16} {encode:>18}", backend.to_string());
        }
    }
}

/// Median µs of an update with this many unused tensors.
fn idle(backend: Backend, tensors: usize) -> f64 {
    let mut rig = Rig::new(backend);
    let model = rig.app.world_mut().spawn(TensorModel).id();
    for _ in 0..tensors {
        let tensor = Tensor::zeros([4], DType::F32).expect("small");
        let tensor = rig.app.world_mut().spawn((tensor, TensorOf(model))).id();
        // Used once, so that it is resident on its backend.
        rig.record(move |ops| ops.store(1.0, tensor)).expect("a tensor");
    }
    for _ in 0..20 {
        rig.app.update();
    }
    let times = (0..200).map(|_| {
        let start = Instant::now();
        rig.app.update();
        start.elapsed().as_secs_f64() * 1e6
    });
    median(times.collect())
}

struct Cost {
    /// µs to record a frame.
    record: f64,
    launches: u64,
    /// µs to encode the batch of the frame in the render world.
    encode: f64,
}

#[derive(Resource, Default)]
struct Times(Vec<f64>);

#[derive(Resource)]
struct Chain {
    x: Entity,
    ops: usize,
}

/// Products that depend on each other, so that none fuses.
fn record_chain(chain: Res<Chain>, mut times: ResMut<Times>, ops: TensorCommands) -> Result {
    let start = Instant::now();
    let mut value = ops.matmul(chain.x, chain.x)?;
    for _ in 1..chain.ops {
        value = ops.matmul(value, chain.x)?;
    }
    ops.store(value, chain.x)?;
    times.0.push(start.elapsed().as_secs_f64() * 1e6);
    Ok(())
}

fn recorded(backend: Backend, ops: usize) -> Cost {
    let mut rig = Rig::new(backend);
    let x = rig.spawn(Tensor::eye(4, 4, DType::F32).expect("small"));
    rig.app.insert_resource(Chain { x, ops }).init_resource::<Times>().add_systems(Update, record_chain);
    for _ in 0..10 {
        rig.app.update();
    }
    rig.app.world_mut().resource_mut::<Times>().0.clear();
    let mut encode = Vec::new();
    let mut launches = 0;
    for _ in 0..60 {
        let before = rig.figures();
        rig.app.update();
        let after = rig.figures();
        launches = launches.max(after.dispatches - before.dispatches);
        encode.push((after.encode_nanos - before.encode_nanos) as f64 / 1e3);
    }
    let record = median(rig.app.world().resource::<Times>().0.clone());
    Cost { record, launches, encode: median(encode) }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
