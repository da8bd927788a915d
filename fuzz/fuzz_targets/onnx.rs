//! Whatever bytes a file has: reading it gives a model or an error.
#![no_main]

use bevy_tensor_compute::onnx::{OnnxGraph, OnnxSummary};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = OnnxSummary::from_bytes(bytes);
    let _ = OnnxGraph::from_bytes(bytes);
});
