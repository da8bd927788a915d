//! ONNX files: reading one gives a model or an error.

use bevy_tensor_compute::onnx::{OnnxGraph, OnnxSummary};

use super::{Answer, Target};

pub const TARGET: Target = Target {
    name: "onnx",
    corpus: "onnx",
    weight: 8,
    longest: 4096,
    words: &["Add", "Conv", "Constant", "Reshape", "If", "Loop", "ai.onnx.ml", "com.microsoft", "axis", "then_branch"],
    guards: false,
    make: || {
        Box::new(|bytes| {
            let summary = OnnxSummary::from_bytes(bytes);
            match OnnxGraph::from_bytes(bytes) {
                Ok(_) => Answer::accepted((summary.is_ok(), bytes.len() / 16)),
                Err(error) => Answer::refused(error),
            }
        })
    },
};
