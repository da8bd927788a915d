//! The main figures as Bevy diagnostics in the `DiagnosticsStore`, so that existing overlays can show them.
//!
//! ```
//! # use bevy::prelude::*;
//! use bevy::diagnostic::DiagnosticsStore;
//! use bevy_tensor_compute::reports::diagnostic_paths;
//!
//! fn show(store: Res<DiagnosticsStore>) {
//!     if let Some(bytes) = store.get(&diagnostic_paths::DEVICE_BYTES).and_then(|diagnostic| diagnostic.value()) {
//!         println!("{bytes} bytes on the device");
//!     }
//! }
//! ```

use core::time::Duration;

use bevy::diagnostic::{Diagnostic, DiagnosticPath, Diagnostics, RegisterDiagnostic};
use bevy::prelude::*;

use crate::figures::{TensorDiagnostics, TensorFigures};
use crate::ir::Backend;

/// Total bytes on the device: tensors, scratch memory, plans and idle buffers.
pub const DEVICE_BYTES: DiagnosticPath = DiagnosticPath::const_new("tensor/device_bytes");
/// Bytes of tensors on the device.
pub const TENSOR_BYTES: DiagnosticPath = DiagnosticPath::const_new("tensor/tensor_bytes");
/// Host bytes of GPU tensors: host copies, and tensors that were evicted.
pub const HOST_COPY_BYTES: DiagnosticPath = DiagnosticPath::const_new("tensor/host_copy_bytes");
/// Bytes of idle buffers that are kept for reuse.
pub const IDLE_BYTES: DiagnosticPath = DiagnosticPath::const_new("tensor/idle_bytes");
/// Kernel launches on the device in the last frame.
pub const DISPATCHES: DiagnosticPath = DiagnosticPath::const_new("tensor/dispatches");
/// Kernels that the CPU backend ran in the last frame.
pub const CPU_KERNELS: DiagnosticPath = DiagnosticPath::const_new("tensor/cpu_kernels");
/// Milliseconds that the render world spent on planning, binding, encoding and submitting in the last frame.
pub const ENCODE_MS: DiagnosticPath = DiagnosticPath::const_new("tensor/encode_ms");
/// GPU time of a frame's kernels in milliseconds. Only available while launches are timed
/// ([`TensorDiagnostics::set_timings`]).
pub const GPU_MS: DiagnosticPath = DiagnosticPath::const_new("tensor/gpu_ms");
/// CPU backend time of a frame's kernels in milliseconds. Only available while launches are timed.
pub const CPU_MS: DiagnosticPath = DiagnosticPath::const_new("tensor/cpu_ms");
/// Pipelines compiled so far.
pub const PIPELINES: DiagnosticPath = DiagnosticPath::const_new("tensor/pipelines");
/// Pipelines being compiled.
pub const PIPELINES_COMPILING: DiagnosticPath = DiagnosticPath::const_new("tensor/pipelines_compiling");
/// Batches that wait for pipelines or memory.
pub const BATCHES_WAITING: DiagnosticPath = DiagnosticPath::const_new("tensor/batches_waiting");
/// Recordings that wait in the main world because a backend has enough of their model.
pub const RECORDINGS_WAITING: DiagnosticPath = DiagnosticPath::const_new("tensor/recordings_waiting");
/// Milliseconds that the oldest waiting recording has waited.
pub const OLDEST_WAITING_MS: DiagnosticPath = DiagnosticPath::const_new("tensor/oldest_waiting_ms");
/// Readbacks that are pending.
pub const READBACKS: DiagnosticPath = DiagnosticPath::const_new("tensor/readbacks");
/// Tensors that were evicted from the device in the last frame.
pub const EVICTIONS: DiagnosticPath = DiagnosticPath::const_new("tensor/evictions");

/// Path, suffix, and how the value follows from the current and the previous figures.
type Figure = (DiagnosticPath, &'static str, fn(&TensorFigures, &TensorFigures) -> f64);

/// Diagnostics that are computed from the figures of the current and the previous frame.
const FIGURES: [Figure; 14] = [
    (DEVICE_BYTES, " B", |now, _| now.total_device_bytes as f64),
    (TENSOR_BYTES, " B", |now, _| now.device_bytes as f64),
    (HOST_COPY_BYTES, " B", |now, _| now.host_copy_bytes as f64),
    (IDLE_BYTES, " B", |now, _| now.pool_idle_bytes as f64),
    (DISPATCHES, "", |now, before| (now.dispatches - before.dispatches) as f64),
    (CPU_KERNELS, "", |now, before| (now.cpu_steps - before.cpu_steps) as f64),
    (ENCODE_MS, " ms", |now, before| (now.encode_nanos - before.encode_nanos) as f64 / 1e6),
    (PIPELINES, "", |now, _| now.pipelines_built as f64),
    (PIPELINES_COMPILING, "", |now, _| now.pipelines_compiling_now as f64),
    (BATCHES_WAITING, "", |now, _| now.batches_waiting_now as f64),
    (RECORDINGS_WAITING, "", |now, _| now.recordings_waiting_now as f64),
    (OLDEST_WAITING_MS, " ms", |now, _| now.oldest_waiting_nanos_now as f64 / 1e6),
    (READBACKS, "", |now, _| now.readbacks_now as f64),
    (EVICTIONS, "", |now, before| (now.evictions - before.evictions) as f64),
];

/// Diagnostics that come from timings.
const TIMES: [(DiagnosticPath, Backend); 2] = [(GPU_MS, Backend::Gpu), (CPU_MS, Backend::Cpu)];

pub(crate) fn plugin(app: &mut App) {
    for (path, suffix, _) in FIGURES {
        app.register_diagnostic(Diagnostic::new(path).with_suffix(suffix));
    }
    for (path, _) in TIMES {
        app.register_diagnostic(Diagnostic::new(path).with_suffix(" ms"));
    }
    app.add_systems(Last, measure);
}

/// Values of the previous frame.
#[derive(Default)]
struct Before {
    figures: Option<TensorFigures>,
    frames: [Option<u64>; 2],
}

fn measure(tensors: Res<TensorDiagnostics>, mut diagnostics: Diagnostics, mut before: Local<Before>) {
    let now = tensors.figures();
    let last = before.figures.replace(now).unwrap_or(now);
    for (path, _, value) in &FIGURES {
        diagnostics.add_measurement(path, || value(&now, &last));
    }
    if !tensors.timings_on() {
        return;
    }
    for ((path, backend), seen) in TIMES.iter().zip(&mut before.frames) {
        // Times arrive one or more frames late. Each frame is reported once.
        if let Some((frame, time)) = tensors.last_complete_frame(*backend)
            && seen.replace(frame) != Some(frame)
        {
            diagnostics.add_measurement(path, || milliseconds(time));
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
