//! All behaviour tests in one binary, because linking Bevy once per file would take minutes.

mod common;

mod architecture;
mod audio_stream;
mod backpressure;
mod big_tensors;
mod budget;
mod crossing;
mod crowd;
mod custom_kernels;
mod debug_mode;
#[cfg(feature = "text")]
mod decoder;
mod defects;
mod denoise;
mod device_loss;
mod diagnostics;
mod encoders;
mod fourier;
mod fusion;
#[expect(dead_code, reason = "only the fuzzer mutates inputs")]
#[path = "../fuzz/targets/mod.rs"]
mod fuzz_targets;
mod fuzzing;
#[cfg(feature = "gguf")]
mod gguf;
mod image_tensor;
#[cfg(feature = "inspector")]
mod inspector;
mod lifecycle;
mod loading;
mod material_binding;
mod multimodal;
mod nn;
#[cfg(feature = "onnx")]
mod onnx_dynamic;
#[cfg(feature = "onnx")]
mod onnx_errors;
#[cfg(feature = "onnx")]
mod onnx_model;
#[cfg(feature = "onnx")]
mod onnx_models;
#[cfg(feature = "onnx")]
mod onnx_seeing;
mod op_errors;
mod op_invariants;
mod parity;
mod persistence;
mod pipeline_cache;
mod quantisation;
mod readback;
mod recording;
mod report;
mod residency;
mod soak;
#[cfg(feature = "text")]
mod speaking;
mod spectrogram;
mod steady_state;
mod timings;
#[cfg(feature = "text")]
mod tokens;
mod tuning;
mod wgsl;
