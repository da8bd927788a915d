//! Timings, faults and lists name the nodes of ONNX models.

use bevy::prelude::*;
use bevy_tensor_compute::error::RunError;
use bevy_tensor_compute::figures::NodePlace;
use bevy_tensor_compute::onnx::{HostTensor, OnnxInputs, OnnxModel};
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};
use crate::onnx_model::{FLOAT, Message, floats, graph, model, node, run, spawn, value};

/// A product, a logarithm and a softmax, beside a node that is folded and one that only the host needs.
fn net() -> Message {
    let nodes = [
        node("Add", &["one", "one"], &["two"]),
        node("MatMul", &["x", "w"], &["p"]),
        node("Log", &["p"], &["l"]),
        node("Softmax", &["l"], &["m"]),
        node("Mul", &["m", "two"], &["y"]),
        node("Shape", &["x"], &["shape"]),
    ];
    let constants = [floats("w", &[4, 4], &[0.5; 16]), floats("one", &[1], &[1.0])];
    let outputs = [value("y", FLOAT, &[2, 4]), value("shape", 7, &[2])];
    model(&graph(&nodes, &[value("x", FLOAT, &[2, 4])], &outputs, &constants))
}

fn input(numbers: [f32; 8]) -> OnnxInputs<'static> {
    OnnxInputs::new().with("x", HostTensor::from_f32(&numbers, [2, 4]).unwrap())
}

#[test]
fn a_nan_is_traced_to_the_node_that_made_it() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = spawn(&mut rig, &net());
        rig.app.world().resource::<TensorDiagnostics>().set_debug(true);
        run(&mut rig, model, input([1.0; 8])).unwrap();
        assert_eq!(rig.faults(), [], "{backend}");
        run(&mut rig, model, input([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0])).unwrap();
        rig.step_until(|app| !app.world().resource::<crate::common::Faults>().0.is_empty());
        let faults = rig.faults();
        let TensorFault::Run(RunError::Node { node, error }) = &faults[0] else { panic!("{faults:?}") };
        assert!(node.contains("node `Log of l` (Log)"), "{backend}: {node}");
        assert!(matches!(**error, RunError::NonFinite { .. }), "{error:?}");
        assert!(faults[0].to_string().contains("node `Log of l` (Log)"), "{}", faults[0]);
    }
}

#[test]
fn timings_and_the_list_of_nodes_tell_where_each_node_ran() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let entity = spawn(&mut rig, &net());
        let diagnostics = rig.app.world().resource::<TensorDiagnostics>().clone();
        diagnostics.set_timings(true);
        run(&mut rig, entity, input([1.0; 8])).unwrap();
        let timed = |diagnostics: &TensorDiagnostics| diagnostics.timings().map(|report| report.nodes);
        rig.step_until(|_| timed(&diagnostics).is_some_and(|nodes| !nodes.is_empty()));
        let nodes = timed(&diagnostics).unwrap();
        let product = |nodes: &[std::sync::Arc<str>]| nodes.iter().any(|node| &**node == "node `MatMul of p` (MatMul)");
        assert!(nodes.iter().any(|timing| timing.backend == backend && product(&timing.nodes)), "{nodes:?}");
        assert!(diagnostics.last_plan_nodes(backend).iter().any(|nodes| product(nodes)));
        let list = rig.app.world().get::<OnnxModel>(entity).unwrap().graph().unwrap().node_list();
        let place = |name: &str| list.iter().find(|node| node.name == name).map(|node| node.place);
        assert_eq!(list.len(), 6);
        assert_eq!(place("Add of two"), Some(NodePlace::Folded));
        assert_eq!(place("MatMul of p"), Some(NodePlace::Device));
        assert_eq!(place("Shape of shape"), Some(NodePlace::Host));
        let softmax = list.iter().find(|node| node.operator == "Softmax").unwrap();
        assert_eq!(softmax.shape.as_ref().map(|shape| shape.to_vec()), Some(vec![2, 4]));
        assert_eq!(&*softmax.label, "node `Softmax of m` (Softmax)");
    }
}
