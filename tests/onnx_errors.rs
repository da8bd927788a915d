//! Wrong files and wrong inputs: typed errors, quickly, without a panic and without much memory.

use std::time::{Duration, Instant};

use bevy_tensor_compute::onnx::{
    ElementType, HostTensor, NodeError, OnnxError, OnnxFormatError, OnnxGraph, OnnxInputs, OnnxModel, OnnxRunError,
};
use bevy_tensor_compute::prelude::*;

use crate::common::Rig;
use crate::onnx_model::{BOOL, FLOAT, INT64, Message, floats, graph, ints, model, node, opset, run, spawn, value};

/// `y = softmax(relu(x + w))`.
fn small() -> Message {
    let nodes = [node("Add", &["x", "w"], &["a"]), node("Relu", &["a"], &["r"]), node("Softmax", &["r"], &["y"])];
    model(&graph(&nodes, &[value("x", FLOAT, &[2, 3])], &[value("y", FLOAT, &[2, 3])], &[floats("w", &[3], &[1.0; 3])]))
}

/// A model with a subgraph, strings, integers and a function.
fn branches() -> Message {
    let branch = |op: &str| graph(&[node(op, &["x"], &["b"])], &[], &[value("b", FLOAT, &[2])], &[]);
    let choice = node("If", &["c"], &["y"]).with_graph("then_branch", &branch("Relu"));
    let choice = choice.with_graph("else_branch", &branch("Neg"));
    let nodes = [choice, node("Shape", &["y"], &["s"]), node("Reshape", &["y", "k"], &["z"])];
    let outputs = [value("z", FLOAT, &[1, 2]), value("s", INT64, &[1])];
    model(&graph(&nodes, &[value("x", FLOAT, &[2]), value("c", BOOL, &[])], &outputs, &[ints("k", &[2], &[1, -1])]))
}

fn error(file: &Message) -> OnnxError {
    let begin = Instant::now();
    let error = OnnxGraph::from_bytes(file.0.clone()).expect_err("the file is wrong");
    assert!(begin.elapsed() < Duration::from_secs(2), "slow: {error}");
    error
}

fn reason(file: &Message) -> String {
    match error(file) {
        OnnxError::Graph { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_truncation_of_a_file_is_an_error_or_a_model() {
    for file in [small(), branches()] {
        OnnxGraph::from_bytes(file.0.clone()).unwrap();
        for length in 0..file.0.len() {
            let _ = OnnxGraph::from_bytes(file.0[..length].to_vec());
        }
    }
    assert!(matches!(
        OnnxGraph::from_bytes(small().0[..40].to_vec()),
        Err(OnnxError::Format(OnnxFormatError::Protobuf { .. }))
    ));
    assert!(matches!(OnnxGraph::from_bytes(Vec::new()), Err(OnnxError::Graph { .. })));
}

#[test]
fn mutated_files_do_not_panic() {
    let mut seed = 1u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    let begin = Instant::now();
    for file in [small(), branches()] {
        for _ in 0..5_000 {
            let mut bytes = file.0.clone();
            for _ in 0..1 + random(4) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes[at] ^= 1 << random(8),
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, random(256) as u8),
                }
            }
            let _ = OnnxGraph::from_bytes(bytes);
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn one_error_lists_every_node_that_cannot_run() {
    let nodes = [
        node("Frobnicate", &["x"], &["a"]),
        node("Relu", &["a"], &["b"]),
        node("TreeEnsemble", &["b"], &["c"]).of_domain("ai.onnx.ml"),
        node("Gelu", &["c"], &["y"]).of_domain("com.example"),
    ];
    let file = model(&graph(&nodes, &[value("x", FLOAT, &[2])], &[value("y", FLOAT, &[2])], &[]));
    let file = file.bytes(8, opset("ai.onnx.ml", 5));
    let OnnxError::Unsupported { nodes, total } = error(&file) else { panic!() };
    assert_eq!(total, 4);
    let found: Vec<_> = nodes.iter().map(|n| (n.operator.as_str(), n.domain.as_str(), n.opset)).collect();
    assert_eq!(found, [("Frobnicate", "", 18), ("TreeEnsemble", "ai.onnx.ml", 5), ("Gelu", "com.example", 0)]);
    assert_eq!(nodes[0].name, "Frobnicate of a");
    assert!(nodes[2].reason.contains("does not import"), "{}", nodes[2].reason);
    let text = error(&file).to_string();
    assert!(text.starts_with("3 of 4 nodes cannot run:\n  \"Frobnicate of a\" (Frobnicate, ai.onnx 18): "), "{text}");
}

#[test]
fn nodes_inside_of_subgraphs_are_listed_too() {
    let inner = graph(&[node("Frobnicate", &["x"], &["b"])], &[], &[value("b", FLOAT, &[2])], &[]);
    let choice = node("If", &["c"], &["y"]).with_graph("then_branch", &inner).with_graph("else_branch", &inner);
    let inputs = [value("x", FLOAT, &[2]), value("c", BOOL, &[])];
    let file = model(&graph(&[choice], &inputs, &[value("y", FLOAT, &[2])], &[]));
    let OnnxError::Unsupported { nodes, total } = error(&file) else { panic!() };
    assert_eq!((nodes.len(), total), (2, 3));
}

#[test]
fn graphs_that_contradict_themselves_are_refused() {
    let x = [value("x", FLOAT, &[2])];
    let y = [value("y", FLOAT, &[2])];
    let cycle = [node("Add", &["x", "b"], &["a"]), node("Relu", &["a"], &["b"]), node("Relu", &["b"], &["y"])];
    assert!(reason(&model(&graph(&cycle, &x, &y, &[]))).contains("depends on its own output"));
    let missing = [node("Add", &["x", "w"], &["y"])];
    assert_eq!(reason(&model(&graph(&missing, &x, &y, &[]))), "node \"Add of y\" reads \"w\", which nothing gives");
    let twice = [node("Relu", &["x"], &["y"]), node("Neg", &["x"], &["y"])];
    assert!(reason(&model(&graph(&twice, &x, &y, &[]))).contains("two nodes or inputs give"));
    assert!(reason(&model(&graph(&[], &x, &y, &[]))).contains("nothing gives the output \"y\""));
    assert!(reason(&Message::default().int(1, 8)).contains("no graph"));
    let w = floats("w", &[2], &[1.0, 2.0]);
    assert!(reason(&model(&graph(&missing, &x, &y, &[w.clone(), w]))).contains("two initialisers"));
}

#[test]
fn nodes_in_any_order_are_put_in_order() {
    let nodes = [node("Softmax", &["r"], &["y"]), node("Relu", &["a"], &["r"]), node("Neg", &["x"], &["a"])];
    let file = model(&graph(&nodes, &[value("x", FLOAT, &[2])], &[value("y", FLOAT, &[2])], &[]));
    let mut rig = Rig::new(Backend::Cpu);
    let model = spawn(&mut rig, &file);
    let x = HostTensor::from_f32(&[1.0, -1.0], [2]).unwrap();
    let answers = run(&mut rig, model, OnnxInputs::new().with("x", x)).unwrap();
    let y = answers.get("y").unwrap().to_f32().unwrap();
    assert!((y[1] - 0.7310586).abs() < 1e-5, "{y:?}");
}

#[test]
fn tensors_that_lie_about_their_size_are_refused_without_memory() {
    let x = [value("x", FLOAT, &[2])];
    let y = [value("y", FLOAT, &[2])];
    let nodes = [node("Add", &["x", "w"], &["y"])];
    let with = |w: Message| model(&graph(&nodes, &x, &y, &[w]));
    for (w, text) in [
        (floats("w", &[3], &[1.0, 2.0]), "8 bytes for 3 elements of float"),
        (floats("w", &[-1], &[]), "the shape [-1] has a negative size"),
        (floats("w", &[1 << 40, 1 << 40], &[]), "is too large"),
        (floats("w", &[1 << 31], &[]), "is too large"),
        (floats("w", &[1 << 30], &[1.0]), "4 bytes for 1073741824 elements"),
        (Message::default().int(1, 2).int(2, 99).bytes(8, "w").bytes(9, [0; 8]), "99 is no element type"),
        (Message::default().int(1, 2).int(2, FLOAT).bytes(8, "w"), "0 values for 2 of float"),
        (Message::default().int(1, 1).int(2, 8).bytes(8, "w"), "0 strings for 1 elements"),
    ] {
        let OnnxError::Format(OnnxFormatError::Tensor { name, reason }) = error(&with(w)) else { panic!() };
        assert_eq!(name, "w");
        assert!(reason.contains(text), "{reason}");
    }
    // A length of 2 GB in a file of a few bytes.
    let mut file = small().0;
    file.extend([0x3a, 0xff, 0xff, 0xff, 0xff, 0x07]);
    assert!(matches!(OnnxGraph::from_bytes(file), Err(OnnxError::Format(OnnxFormatError::Protobuf { .. }))));
}

#[test]
fn external_data_stays_in_the_folder_of_the_model() {
    let folder = std::env::temp_dir().join(format!("tensor_onnx_{}", std::process::id()));
    std::fs::create_dir_all(folder.join("inside")).unwrap();
    std::fs::write(folder.join("secret.bin"), [0u8; 64]).unwrap();
    let mut bytes = vec![7u8; 4];
    bytes.extend([2.0f32, 3.0].iter().flat_map(|v| v.to_le_bytes()));
    std::fs::write(folder.join("inside/w.bin"), bytes).unwrap();
    let entry = |key: &str, text: &str| Message::default().bytes(1, key).bytes(2, text);
    let open = |location: &str, offset: &str| {
        let w = Message::default().int(1, 2).int(2, FLOAT).bytes(8, "w").int(14, 1);
        let w = w.bytes(13, entry("location", location)).bytes(13, entry("offset", offset));
        let nodes = [node("Add", &["x", "w"], &["y"])];
        let file = model(&graph(&nodes, &[value("x", FLOAT, &[2])], &[value("y", FLOAT, &[2])], &[w]));
        let path = folder.join("inside/model.onnx");
        std::fs::write(&path, &file.0).unwrap();
        OnnxGraph::open(path)
    };
    open("w.bin", "4").unwrap();
    let absolute = folder.join("secret.bin").display().to_string();
    for location in ["../secret.bin", absolute.as_str(), "a/../../secret.bin", "..\\secret.bin", ""] {
        match open(location, "0") {
            Err(OnnxError::Format(OnnxFormatError::External { reason, .. })) => {
                assert!(reason.contains("below the model's folder"), "{reason}");
            }
            other => panic!("{location}: {other:?}"),
        }
    }
    assert!(matches!(open("nothing.bin", "0"), Err(OnnxError::Io { .. })));
    for offset in ["8", "18446744073709551615"] {
        match open("w.bin", offset) {
            Err(OnnxError::Format(OnnxFormatError::External { reason, .. })) => {
                assert!(reason.contains("beyond the end"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(open("w.bin", "four"), Err(OnnxError::Format(OnnxFormatError::Tensor { .. }))));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn graphs_nested_too_deep_are_refused() {
    let mut inner = graph(&[node("Relu", &["x"], &["b"])], &[], &[value("b", FLOAT, &[2])], &[]);
    for _ in 0..200 {
        let choice = node("If", &["c"], &["b"]).with_graph("then_branch", &inner).with_graph("else_branch", &inner);
        // Two branches of the same size would double the file at each level.
        let single = node("If", &["c"], &["b"]).with_graph("then_branch", &inner);
        let next = if inner.0.len() < 1 << 12 { choice } else { single };
        inner = graph(&[next], &[], &[value("b", FLOAT, &[2])], &[]);
    }
    assert!(matches!(error(&model(&inner)), OnnxError::Format(OnnxFormatError::Protobuf { .. })));
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let body = node("Again", &["a"], &["b"]).of_domain("own");
    let function = Message::default().bytes(1, "Again").bytes(4, "a").bytes(5, "b").bytes(7, body).bytes(10, "own");
    let call = node("Again", &["x"], &["y"]).of_domain("own");
    let file = model(&graph(&[call], &[value("x", FLOAT, &[2])], &[value("y", FLOAT, &[2])], &[]));
    assert!(reason(&file.bytes(25, function).bytes(8, opset("own", 1))).contains("calls itself"));
}

#[test]
fn a_function_of_the_file_runs_as_its_nodes() {
    let leaky =
        node("LeakyRelu", &["a"], &["t"]).bytes(5, Message::default().bytes(1, "alpha").int(20, 1).bytes(21, "slope"));
    let body = [leaky, node("Neg", &["t"], &["b"])];
    let function = Message::default().bytes(1, "Fold").bytes(4, "a").bytes(5, "b").bytes(10, "own");
    let function = function.each(&body, |m, node| m.bytes(7, node)).bytes(9, opset("", 18)).bytes(6, "slope");
    let slope =
        |call: Message, value: f32| call.bytes(5, Message::default().bytes(1, "slope").float(2, value).int(20, 1));
    let calls = [
        slope(node("Fold", &["x"], &["m"]).of_domain("own"), 0.5),
        slope(node("Fold", &["m"], &["y"]).of_domain("own"), 0.25),
    ];
    let file = model(&graph(&calls, &[value("x", FLOAT, &[2])], &[value("y", FLOAT, &[2])], &[]));
    let file = file.bytes(25, function).bytes(8, opset("own", 1));
    let mut rig = Rig::new(Backend::Cpu);
    let model = spawn(&mut rig, &file);
    let x = HostTensor::from_f32(&[4.0, -4.0], [2]).unwrap();
    let answers = run(&mut rig, model, OnnxInputs::new().with("x", x)).unwrap();
    assert_eq!(answers.get("y").unwrap().to_f32().unwrap(), [1.0, -2.0]);
}

#[test]
fn wrong_inputs_of_a_run_are_named() {
    let mut rig = Rig::new(Backend::Cpu);
    let model = spawn(&mut rig, &small());
    let f32s = |values: &[f32], shape: &[usize]| HostTensor::from_f32(values, shape).unwrap();
    let missing = run(&mut rig, model, OnnxInputs::new()).unwrap_err();
    assert_eq!(missing.to_string(), "the input \"x\" (float[2, 3]) is missing");
    let unknown = run(&mut rig, model, OnnxInputs::new().with("z", f32s(&[1.0], &[1]))).unwrap_err();
    assert_eq!(unknown.to_string(), "the model has no input \"z\"; it has \"x\"");
    let ints = HostTensor::from_i64(&[1; 6], [2, 3]).unwrap();
    let typed = run(&mut rig, model, OnnxInputs::new().with("x", ints)).unwrap_err();
    assert_eq!(typed.to_string(), "the input \"x\" is int64, but the model declares float[2, 3]");
    // Declared shapes are not checked, but operators check theirs.
    let shaped = run(&mut rig, model, OnnxInputs::new().with("x", f32s(&[1.0; 4], &[2, 2]))).unwrap_err();
    let OnnxRunError::Node { node, operator, reason } = &shaped else { panic!("{shaped}") };
    assert_eq!((node.as_str(), operator.as_str()), ("Add of a", "Add"));
    assert!(matches!(reason, NodeError::Op(OpError::Shape { .. })), "{reason:?}");
    let wide = run(&mut rig, model, OnnxInputs::new().with("x", f32s(&[0.0; 12], &[4, 3]))).unwrap();
    assert_eq!(wide.get("y").unwrap().shape()[..], [4, 3]);
    let output = run(&mut rig, model, OnnxInputs::new().with("x", f32s(&[1.0; 6], &[2, 3])).only(["q"])).unwrap_err();
    assert_eq!(output.to_string(), "the model has no output \"q\"; it has \"y\"");
}

#[test]
fn integers_that_32_bits_cannot_hold_are_refused_on_the_device() {
    let nodes = [node("GatherND", &["w", "i"], &["y"])];
    let file = model(&graph(
        &nodes,
        &[value("i", INT64, &[-1, 1])],
        &[value("y", FLOAT, &[-1])],
        &[floats("w", &[400], &[1.0; 400])],
    ));
    let mut rig = Rig::new(Backend::Cpu);
    let model = spawn(&mut rig, &file);
    let index = HostTensor::from_i64(&[1 << 40], [1, 1]).unwrap();
    let wide = run(&mut rig, model, OnnxInputs::new().with("i", index)).unwrap_err();
    assert!(wide.to_string().contains("1099511627776 of type int64 does not fit in i32"), "{wide}");
}

#[test]
fn a_loop_that_does_not_end_is_stopped() {
    let body = graph(
        &[node("Identity", &["keep"], &["on"]), node("Identity", &["v"], &["next"])],
        &[value("n", INT64, &[]), value("keep", BOOL, &[]), value("v", INT64, &[1])],
        &[value("on", BOOL, &[]), value("next", INT64, &[1])],
        &[],
    );
    let nodes = [node("Loop", &["", "", "x"], &["y"]).with_graph("body", &body)];
    let file = model(&graph(&nodes, &[value("x", INT64, &[1])], &[value("y", INT64, &[1])], &[]));
    let mut rig = Rig::new(Backend::Cpu);
    let model = spawn(&mut rig, &file);
    let x = HostTensor::from_i64(&[1], [1]).unwrap();
    let endless = run(&mut rig, model, OnnxInputs::new().with("x", x)).unwrap_err();
    assert!(matches!(endless, OnnxRunError::TooLong { .. }), "{endless}");
}

#[test]
fn a_model_that_is_not_loaded_does_not_run() {
    let mut rig = Rig::new(Backend::Cpu);
    let model = OnnxModel::from_graph(OnnxGraph::from_bytes(small().0).unwrap());
    rig.with_ops(|ops| {
        let error = ops.run(&model, OnnxInputs::new()).unwrap_err();
        assert_eq!(error, OnnxRunError::NotReady);
    });
    assert_eq!(ElementType::from_code(0), None);
}
