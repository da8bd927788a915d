//! Shapes that change from run to run, values that only the data know, sharing and reloading.

use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy_tensor_compute::onnx::{HostTensor, OnnxGraph, OnnxInputs, OnnxModel, OnnxRunError};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::ModelTensors;

use crate::common::{BACKENDS, Rig};
use crate::onnx_model::{BOOL, FLOAT, INT64, Message, floats, graph, ints, model, node, run, spawn, value};

fn ramp(shape: &[usize]) -> HostTensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
    HostTensor::from_f32(&values, shape).unwrap()
}

/// Heads of a sequence, as exporters write it: the shape is computed by nodes. `x [1, s, 8]` to `[1, s, 8]`.
fn heads() -> Message {
    let weights: Vec<f32> = (0..64).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect();
    let nodes = [
        node("MatMul", &["x", "w"], &["p"]),
        node("Shape", &["x"], &["shape"]),
        node("Gather", &["shape", "one"], &["s"]),
        node("Unsqueeze", &["s", "zero"], &["s1"]),
        node("Concat", &["minus", "s1", "two", "four"], &["split"]).with_int("axis", 0),
        node("Reshape", &["p", "split"], &["h"]),
        node("Transpose", &["h"], &["t"]).with_ints("perm", &[0, 2, 1, 3]),
        node("Softmax", &["t"], &["m"]),
        node("Transpose", &["m"], &["u"]).with_ints("perm", &[0, 2, 1, 3]),
        node("Reshape", &["u", "shape"], &["y"]),
    ];
    let constants = [
        floats("w", &[8, 8], &weights),
        ints("one", &[], &[1]),
        ints("zero", &[1], &[0]),
        ints("minus", &[1], &[-1]),
        ints("two", &[1], &[2]),
        ints("four", &[1], &[4]),
    ];
    model(&graph(&nodes, &[value("x", FLOAT, &[1, -1, 8])], &[value("y", FLOAT, &[1, -1, 8])], &constants))
}

/// A picture through a convolution and back to its own size. `x [1, 3, h, w]` to `[1, 2, h, w]`.
fn pictures() -> Message {
    let weights: Vec<f32> = (0..2 * 3 * 9).map(|i| (i % 5) as f32 * 0.1 - 0.2).collect();
    let nodes = [
        node("Conv", &["x", "w"], &["c"]).with_ints("strides", &[2, 2]).with_ints("pads", &[1, 1, 1, 1]),
        node("Shape", &["x"], &["shape"]),
        node("Slice", &["shape", "two", "four"], &["size"]),
        node("Concat", &["front", "size"], &["sizes"]).with_int("axis", 0),
        node("Resize", &["c", "", "", "sizes"], &["y"]).with_text("mode", "nearest"),
    ];
    let constants = [
        floats("w", &[2, 3, 3, 3], &weights),
        ints("two", &[1], &[2]),
        ints("four", &[1], &[4]),
        ints("front", &[2], &[1, 2]),
    ];
    model(&graph(&nodes, &[value("x", FLOAT, &[1, 3, -1, -1])], &[value("y", FLOAT, &[1, 2, -1, -1])], &constants))
}

#[test]
fn plans_are_found_again_when_a_shape_returns() {
    let lengths: Vec<Vec<usize>> = [1, 3, 7, 16, 33].iter().map(|&s| vec![1, s, 8]).collect();
    let sizes: Vec<Vec<usize>> = [(8, 8), (9, 14), (32, 16), (17, 31)].iter().map(|&(h, w)| vec![1, 3, h, w]).collect();
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (file, shapes) in [(heads(), &lengths), (pictures(), &sizes)] {
            let model = spawn(&mut rig, &file);
            let mut first = Vec::new();
            for shape in shapes {
                let answers = run(&mut rig, model, OnnxInputs::new().with("x", ramp(shape))).unwrap();
                assert_eq!((answers.stages, answers.left_device.len()), (1, 0), "{backend}");
                let y = answers.get("y").unwrap().clone();
                assert_eq!(y.shape()[2..], shape[2..], "{backend}");
                first.push(y);
            }
            let before = rig.figures();
            for (shape, first) in shapes.iter().zip(&first).rev() {
                let answers = run(&mut rig, model, OnnxInputs::new().with("x", ramp(shape))).unwrap();
                assert_eq!(answers.get("y").unwrap(), first, "{backend}");
            }
            let after = rig.figures();
            assert_eq!(after.plans_built, before.plans_built, "{backend}");
            assert_eq!(after.pipelines_built, before.pipelines_built, "{backend}");
        }
        assert_eq!(rig.faults(), []);
    }
}

/// Records the model into the frame's plan and stores its output, every frame.
#[derive(Resource)]
struct Live {
    model: Entity,
    input: Entity,
    output: Entity,
    arrived: usize,
}

fn forward(live: Res<Live>, models: Query<&OnnxModel>, ops: TensorCommands) -> Result {
    let scaled = ops.mul(live.input, 0.5)?;
    let outputs = ops.run(models.get(live.model)?, scaled)?;
    ops.store(ops.relu(outputs.value("y")?)?, live.output)?;
    ops.notify(live.output)?;
    Ok(())
}

#[test]
fn a_steady_frame_of_a_model_builds_nothing() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = spawn(&mut rig, &heads());
        let input = rig.spawn(Tensor::full([1, 5, 8], 0.25, DType::F32).unwrap());
        let output = rig.spawn(Tensor::zeros([1, 5, 8], DType::F32).unwrap());
        rig.app.insert_resource(Live { model, input, output, arrived: 0 });
        rig.app.add_observer(|ready: On<TensorReady>, mut live: ResMut<Live>| {
            assert!(ready.result.is_ok(), "{:?}", ready.result);
            live.arrived += 1;
        });
        // A frame at a time, so that the number of readbacks in flight does not depend on the machine.
        let frame = |rig: &mut Rig| {
            let arrived = rig.app.world().resource::<Live>().arrived;
            let recorded: Result<(), _> = rig.app.world_mut().run_system_cached(forward);
            recorded.expect("it records");
            rig.step_until(|app| app.world().resource::<Live>().arrived > arrived);
        };
        for _ in 0..5 {
            frame(&mut rig);
        }
        let before = rig.figures();
        for _ in 0..30 {
            frame(&mut rig);
        }
        let after = rig.figures();
        assert_eq!(after.plans_built, before.plans_built, "{backend}: plans");
        assert_eq!(after.buffers_allocated, before.buffers_allocated, "{backend}: buffers");
        assert_eq!(after.bind_groups_made, before.bind_groups_made, "{backend}: bind groups");
        assert_eq!(after.pipelines_built, before.pipelines_built, "{backend}: pipelines");
        assert_eq!(rig.faults(), []);
    }
}

/// The values that are not zero, and their sum: only the data know how many there are.
fn filtered() -> Message {
    let nodes = [
        node("Relu", &["x"], &["r"]),
        node("NonZero", &["r"], &["at"]),
        node("Transpose", &["at"], &["rows"]),
        node("GatherND", &["r", "rows"], &["found"]),
        node("ReduceSum", &["found"], &["sum"]).with_int("keepdims", 0),
    ];
    let outputs = [value("found", FLOAT, &[-1]), value("sum", FLOAT, &[])];
    model(&graph(&nodes, &[value("x", FLOAT, &[-1])], &outputs, &[]))
}

#[test]
fn a_shape_that_only_the_data_know_takes_another_stage() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = spawn(&mut rig, &filtered());
        let x = HostTensor::from_f32(&[1.0, -2.0, 3.0, 0.0, 4.0], [5]).unwrap();
        let answers = run(&mut rig, model, OnnxInputs::new().with("x", x.clone())).unwrap();
        assert_eq!(answers.get("found").unwrap().to_f32().unwrap(), [1.0, 3.0, 4.0]);
        assert_eq!(answers.get("sum").unwrap().to_f32().unwrap(), [8.0]);
        assert_eq!(answers.left_device, ["NonZero of at (NonZero)"], "{backend}");
        assert_eq!(answers.stages, 2);
        // Nothing at all is found.
        let none = HostTensor::from_f32(&[-1.0; 5], [5]).unwrap();
        let answers = run(&mut rig, model, OnnxInputs::new().with("x", none)).unwrap();
        assert_eq!(answers.get("found").unwrap().elements(), 0);
        // One recording cannot do that.
        let mut state = SystemState::<(Query<&OnnxModel>, TensorCommands)>::new(rig.app.world_mut());
        let (models, ops) = state.get_mut(rig.app.world_mut()).unwrap();
        let error = ops.run(models.get(model).unwrap(), OnnxInputs::new().with("x", x)).unwrap_err();
        assert!(matches!(&error, OnnxRunError::NeedsStages { operator, .. } if operator == "NonZero"), "{error}");
    }
}

/// Doubles `x` until its sum exceeds 100, and collects the sums.
fn doubling() -> Message {
    let body = graph(
        &[
            node("Add", &["v", "v"], &["next"]),
            node("ReduceSum", &["next"], &["sum"]).with_int("keepdims", 0),
            node("Less", &["sum", "limit"], &["on"]),
        ],
        &[value("n", INT64, &[]), value("keep", BOOL, &[]), value("v", FLOAT, &[2])],
        &[value("on", BOOL, &[]), value("next", FLOAT, &[2]), value("sum", FLOAT, &[])],
        &[],
    );
    let nodes = [node("Loop", &["", "", "x"], &["y", "sums"]).with_graph("body", &body)];
    let outputs = [value("y", FLOAT, &[2]), value("sums", FLOAT, &[-1])];
    model(&graph(&nodes, &[value("x", FLOAT, &[2])], &outputs, &[floats("limit", &[], &[100.0])]))
}

#[test]
fn a_loop_on_a_computed_condition_runs_a_stage_per_iteration() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = spawn(&mut rig, &doubling());
        let x = HostTensor::from_f32(&[4.0, 6.0], [2]).unwrap();
        let answers = run(&mut rig, model, OnnxInputs::new().with("x", x)).unwrap();
        assert_eq!(answers.get("y").unwrap().to_f32().unwrap(), [64.0, 96.0], "{backend}");
        assert_eq!(answers.get("sums").unwrap().to_f32().unwrap(), [20.0, 40.0, 80.0, 160.0]);
        assert_eq!((answers.left_device.len(), answers.stages), (4, 5));
    }
}

/// Adds `n` ones: the host knows the number.
fn counted() -> Message {
    let body = graph(
        &[node("Add", &["v", "step"], &["next"]), node("Identity", &["keep"], &["on"])],
        &[value("i", INT64, &[]), value("keep", BOOL, &[]), value("v", FLOAT, &[2])],
        &[value("on", BOOL, &[]), value("next", FLOAT, &[2])],
        &[],
    );
    let nodes = [node("Loop", &["n", "", "x"], &["y"]).with_graph("body", &body)];
    let inputs = [value("x", FLOAT, &[2]), value("n", INT64, &[])];
    model(&graph(&nodes, &inputs, &[value("y", FLOAT, &[2])], &[floats("step", &[], &[1.0])]))
}

#[test]
fn a_loop_that_the_host_can_count_stays_on_the_device() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = spawn(&mut rig, &counted());
        for count in [0i64, 1, 7] {
            let x = HostTensor::from_f32(&[1.0, 2.0], [2]).unwrap();
            let n = HostTensor::from_i64(&[count], []).unwrap();
            let answers = run(&mut rig, model, OnnxInputs::new().with("x", x).with("n", n)).unwrap();
            let expected = [1.0 + count as f32, 2.0 + count as f32];
            assert_eq!(answers.get("y").unwrap().to_f32().unwrap(), expected, "{backend}");
            assert_eq!((answers.left_device.len(), answers.stages), (0, 1));
        }
    }
}

#[test]
fn two_models_of_one_graph_share_their_weights() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let weights: Vec<f32> = vec![0.5; 400];
        let file = model(&graph(
            &[node("Add", &["x", "w"], &["y"])],
            &[value("x", FLOAT, &[400])],
            &[value("y", FLOAT, &[400])],
            &[floats("w", &[400], &weights)],
        ));
        let graph = OnnxGraph::from_bytes(file.0).unwrap();
        let models = [0, 1].map(|_| rig.app.world_mut().spawn(OnnxModel::from_graph(graph.clone())).id());
        rig.step_until(|app| models.iter().all(|&m| app.world().get::<OnnxModel>(m).is_some_and(OnnxModel::is_ready)));
        let storage = |rig: &Rig, model: Entity| -> Vec<u64> {
            let tensors = rig.app.world().get::<ModelTensors>(model).unwrap();
            tensors.iter().map(|tensor| rig.app.world().get::<Tensor>(tensor).unwrap().storage_id()).collect()
        };
        assert_eq!(storage(&rig, models[0]).len(), 1);
        assert_eq!(storage(&rig, models[0]), storage(&rig, models[1]), "{backend}");
        // The second model still runs when the first is gone.
        rig.app.world_mut().despawn(models[0]);
        let x = HostTensor::from_f32(&[1.0; 400], [400]).unwrap();
        let answers = run(&mut rig, models[1], OnnxInputs::new().with("x", x)).unwrap();
        assert_eq!(answers.get("y").unwrap().to_f32().unwrap()[..2], [1.5, 1.5]);
    }
}

#[test]
fn a_changed_asset_is_loaded_again() {
    let mut rig = Rig::new(Backend::Gpu);
    let file = |weight: f32, count: usize| {
        let nodes = [node("Mul", &["x", "w"], &["y"])];
        let shape = [count as i64];
        let file = model(&graph(
            &nodes,
            &[value("x", FLOAT, &shape)],
            &[value("y", FLOAT, &shape)],
            &[floats("w", &shape, &vec![weight; count])],
        ));
        OnnxGraph::from_bytes(file.0).unwrap()
    };
    let handle = rig.app.world_mut().resource_mut::<Assets<OnnxGraph>>().add(file(2.0, 300));
    let model = rig.app.world_mut().spawn(OnnxModel::new(handle.clone())).id();
    let ready = |app: &mut App| app.world().get::<OnnxModel>(model).is_some_and(OnnxModel::is_ready);
    rig.step_until(ready);
    let once = |rig: &mut Rig, count: usize| {
        let x = HostTensor::from_f32(&vec![3.0; count], [count]).unwrap();
        run(rig, model, OnnxInputs::new().with("x", x)).unwrap().get("y").unwrap().to_f32().unwrap()[0]
    };
    assert_eq!(once(&mut rig, 300), 6.0);
    rig.app.world_mut().resource_mut::<Assets<OnnxGraph>>().insert(handle.id(), file(5.0, 500)).unwrap();
    rig.app.update();
    rig.app.update();
    rig.step_until(ready);
    assert_eq!(once(&mut rig, 500), 15.0);
}

#[test]
fn only_asked_for_outputs_are_computed() {
    let nodes = [node("Relu", &["x"], &["cheap"]), node("NonZero", &["cheap"], &["costly"])];
    let outputs = [value("cheap", FLOAT, &[2]), value("costly", INT64, &[1, -1])];
    let file = model(&graph(&nodes, &[value("x", FLOAT, &[2])], &outputs, &[]));
    let mut rig = Rig::new(Backend::Cpu);
    let model = spawn(&mut rig, &file);
    let x = HostTensor::from_f32(&[1.0, -1.0], [2]).unwrap();
    let answers = run(&mut rig, model, OnnxInputs::new().with("x", x).only(["cheap"])).unwrap();
    assert_eq!((answers.outputs.len(), answers.left_device.len()), (1, 0));
    assert_eq!(answers.get("cheap").unwrap().to_f32().unwrap(), [1.0, 0.0]);
}
