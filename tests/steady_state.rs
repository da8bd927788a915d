//! A repeated frame does no planning, no allocation, no bind group creation and no compilation.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};

/// A model of 60 recorded ops: matmuls, norms, softmaxes and elementwise work, with a new input and a result every
/// frame.
#[derive(Resource, Clone, Copy)]
struct Model {
    input: Entity,
    weights: Entity,
    output: Entity,
}

fn record_frame(model: Res<Model>, mut progress: ResMut<Progress>, ops: TensorCommands) -> Result {
    progress.recorded += 1;
    let frame = progress.recorded as f32;
    ops.write(model.input, &[frame; 32])?;
    let mut x = ops.reshape(model.input, &[4, 8])?;
    for _ in 0..10 {
        let hidden = ops.matmul(x, model.weights)?;
        let hidden = ops.gelu(hidden)?;
        let hidden = ops.add(hidden, x)?;
        let hidden = ops.layer_norm(hidden, None, None, -1, 1e-5)?;
        let attention = ops.softmax(hidden, -1)?;
        // A scalar that changes every frame does not change the structure.
        x = ops.mul(attention, frame)?;
    }
    ops.store(x, model.output)?;
    ops.notify(model.output)?;
    Ok(())
}

#[derive(Resource, Default)]
struct Progress {
    recorded: usize,
    arrived: usize,
}

/// If the device falls behind, more readbacks are in flight, each with a buffer. The bound makes their number
/// independent of the machine's load.
fn keeps_up(progress: Res<Progress>) -> bool {
    progress.recorded < progress.arrived + 3
}

#[test]
fn two_hundred_frames_after_warm_up_build_nothing() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = Model {
            input: rig.spawn(Tensor::zeros([32], DType::F32).unwrap()),
            weights: rig.spawn(Tensor::random_normal([8, 8], 0.0, 0.3, 1, DType::F32).unwrap()),
            output: rig.spawn(Tensor::zeros([4, 8], DType::F32).unwrap()),
        };
        rig.app.insert_resource(model).init_resource::<Progress>();
        rig.app.add_observer(|ready: On<TensorReady>, mut progress: ResMut<Progress>| {
            assert!(ready.result.is_ok(), "{:?}", ready.result);
            progress.arrived += 1;
        });
        rig.app.add_systems(Update, record_frame.run_if(keeps_up));
        let arrived = |app: &App| app.world().resource::<Progress>().arrived;
        // A few frames until all staging buffers that can be in flight at once exist.
        rig.step_until(|app| arrived(app) >= 30);
        let before = rig.figures();
        rig.step_until(|app| arrived(app) >= 230);
        let after = rig.figures();
        assert_eq!(after.plans_built, before.plans_built, "{backend}: plans");
        assert_eq!(after.buffers_allocated, before.buffers_allocated, "{backend}: buffers");
        assert_eq!(after.bind_groups_made, before.bind_groups_made, "{backend}: bind groups");
        assert_eq!(after.pipelines_built, before.pipelines_built, "{backend}: pipelines");
        assert!(after.plan_hits >= before.plan_hits + 197, "{backend}: every frame found its plan");
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn twelve_elementwise_ops_over_broadcast_inputs_are_one_launch() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&[1.0f32; 12], [3, 4]).unwrap());
        let row = rig.spawn(Tensor::from_slice(&[0.5f32, 1.0, 1.5, 2.0], [4]).unwrap());
        let column = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3, 1]).unwrap());
        let out = rig.spawn(Tensor::zeros([3, 4], DType::F32).unwrap());
        rig.read(out);
        let launches = |rig: &Rig| rig.figures().dispatches + rig.figures().cpu_steps;
        rig.read(x);
        rig.read(row);
        rig.read(column);
        let before = launches(&rig);
        rig.record(move |ops| {
            let mut value = ops.add(x, row)?;
            for i in 0..11 {
                value = match i % 4 {
                    0 => ops.mul(value, column)?,
                    1 => ops.tanh(value)?,
                    2 => ops.sub(value, row)?,
                    _ => ops.gelu(value)?,
                };
            }
            ops.store(value, out)
        })
        .unwrap();
        rig.read(out);
        assert_eq!(launches(&rig) - before, 1, "{backend}");
    }
}

#[test]
fn one_frame_of_work_is_one_pass_and_one_submission() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32; 16], [4, 4]).unwrap());
    rig.read(x);
    let before = rig.figures();
    let receiver = rig
        .record(move |ops| {
            let y = ops.matmul(x, x)?;
            let y = ops.softmax(y, -1)?;
            ops.store(y, x)?;
            ops.read(x)
        })
        .unwrap();
    rig.wait(&receiver).unwrap();
    let after = rig.figures();
    assert_eq!((after.passes - before.passes, after.submits - before.submits), (1, 1));
    assert_eq!(after.dispatches - before.dispatches, 2);
}

#[test]
fn shapes_that_change_every_frame_settle_to_no_allocations() {
    let mut rig = Rig::new(Backend::Gpu);
    let weights = rig.spawn(Tensor::random_normal([64, 48], 0.0, 0.3, 1, DType::F32).unwrap());
    // A batch that grows and shrinks: tensors are spawned and despawned every frame.
    let frame = |rig: &mut Rig, rows: usize| {
        let input = rig.spawn(Tensor::from_slice(&vec![rows as f32; rows * 64], [rows, 64]).unwrap());
        let output = rig.spawn(Tensor::zeros([rows, 48], DType::F32).unwrap());
        let receiver = rig
            .record(move |ops| {
                let hidden = ops.matmul(input, weights)?;
                let hidden = ops.softmax(hidden, -1)?;
                let hidden = ops.layer_norm(hidden, None, None, -1, 1e-5)?;
                ops.store(hidden, output)?;
                ops.read(output)
            })
            .unwrap();
        assert_eq!(rig.wait(&receiver).unwrap().shape().elements(), rows * 48);
        rig.app.world_mut().despawn(input);
        rig.app.world_mut().despawn(output);
    };
    let sizes: Vec<usize> = (1..=40).chain((1..40).rev()).map(|i| 1 + i * 7 % 41).collect();
    for &rows in &sizes {
        frame(&mut rig, rows);
    }
    let before = rig.figures();
    for _ in 0..3 {
        for &rows in &sizes {
            frame(&mut rig, rows);
        }
    }
    let after = rig.figures();
    assert_eq!(after.buffers_allocated, before.buffers_allocated);
    assert!(after.buffers_reused >= before.buffers_reused + 6 * sizes.len() as u64);
    assert!(after.total_device_bytes <= before.total_device_bytes);
    assert_eq!(rig.faults(), []);
}

#[test]
fn idle_buffers_are_given_back_after_a_while_and_beyond_the_cap() {
    let settings = MemorySettings { pool_frames: 20, pool_bytes: 3 << 20, idle_staging_bytes: 0, ..default() };
    let mut rig = Rig::with_memory(settings);
    let tensors: Vec<Entity> =
        (0..6).map(|i| rig.spawn(Tensor::full([1 << 18], f64::from(i), DType::F32).unwrap())).collect();
    for &tensor in &tensors {
        rig.record(move |ops| ops.store(1.0, tensor)).unwrap();
    }
    rig.settle();
    assert_eq!(rig.figures().device_bytes, 6 << 20);
    for tensor in tensors {
        rig.app.world_mut().despawn(tensor);
    }
    assert_eq!((rig.figures().device_bytes, rig.figures().pool_idle_bytes), (0, 3 << 20));
    for _ in 0..25 {
        rig.app.update();
    }
    assert_eq!(rig.figures().pool_idle_bytes, 0);
    assert_eq!(rig.figures().total_device_bytes, rig.figures().plan_bytes);
}
