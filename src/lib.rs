#![doc = include_str!("../README.md")]
//!
//! # The flow
//!
//! ```text
//! main world                                border        render world
//! tensor/ ──▶ record/ ─────────────────────▶ extract ──▶ plan/ ──▶ kernel/ ──▶ gpu/ ──┐
//!   what the user owns   what the user asks               pure       what can    what does │ run
//!                                                                     run        run       │
//! readback ◀────────────── channel ◀──────────────────────────────────────────────────────┘
//! cpu/ runs the same plan without a device
//! ```

// Only the library: tests and benchmarks may panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Unit tests share the list of ops with the tests of `tests/`, which see the crate from outside.
#[cfg(test)]
extern crate self as bevy_tensor_compute;

pub mod audio;
pub mod binding;
mod cpu;
pub mod crowd;
pub mod denoise;
mod disk;
pub mod error;
mod extract;
pub mod figures;
pub mod formats;
mod gpu;
pub mod image;
#[cfg(feature = "inspector")]
pub mod inspector;
mod ir;
mod kernel;
mod mailbox;
pub mod memory;
pub mod nn;
#[cfg(feature = "onnx")]
pub mod onnx;
pub mod pipelines;
pub mod plan;
mod plugin;
pub mod readback;
mod record;
pub mod reports;
pub mod schedule;
pub mod support;
pub mod tensor;
#[cfg(feature = "text")]
pub mod text;

#[cfg(feature = "inspector")]
pub use inspector::TensorInspectorPlugin;
pub use plugin::{PipelineSettings, TensorComputePlugin, TensorSystems};

/// Recording: the system parameter [`TensorCommands`](ops::TensorCommands), its operands and the settings of its ops.
pub mod ops {
    pub use crate::ir::{BinaryOp, SampleFilter, SamplePadding, UnaryOp};
    pub use crate::record::{
        AttentionSettings, Axes, ConvSettings, ConvTransposeSettings, CumsumSettings, DbSettings, DctKind, DepthOrder,
        FrameWindow, GruSettings, KernelInputs, LAST, LogMelSettings, LstmSettings, MelScale, MelSettings,
        OptionalOperand, PadMode, Padding, PoolSettings, RecurrentActivation, ResizeCoordinates, ResizeMode,
        ResizeRounding, ResizeSettings, ResizeTo, RnnSettings, RoiAlignSettings, RopeLayout, RopeSettings,
        SampleSettings, ScatterMode, StftSettings, TensorAxis, TensorCommands, TensorExpression, TensorOperand,
        TensorValue,
    };
}

/// Custom kernels: WGSL of your own, registered with [`TensorKernels`](kernels::TensorKernels).
pub mod kernels {
    pub use crate::ir::{CpuKernelCall, Dispatch, OutputShape};
    pub use crate::kernel::custom::{
        CpuElement, CustomKernel, KernelNumber, ParamValue, RegisterTensorKernel, TensorKernel, TensorKernels,
    };
}

/// Everything most apps use.
pub mod prelude {
    pub use crate::audio::{AudioInput, AudioOverflow};
    pub use crate::binding::{BindingSettings, TensorBinding, TensorBindings, TensorMaterialPlugin};
    pub use crate::error::{AudioError, OpError, OpResult, ReadError, TensorError, TensorFault};
    pub use crate::figures::TensorDiagnostics;
    pub use crate::formats::{LoadWeights, TensorFiles, WeightsProgress, WeightsReady};
    pub use crate::image::{ImageFromTensor, ImageSettings, TensorFromImage};
    pub use crate::kernels::{CustomKernel, Dispatch, OutputShape, RegisterTensorKernel, TensorKernel, TensorKernels};
    pub use crate::memory::{MemorySettings, Pinned, TensorLost, TensorMemory};
    pub use crate::ops::{
        AttentionSettings, Axes, ConvSettings, ConvTransposeSettings, CumsumSettings, DbSettings, DctKind, DepthOrder,
        FrameWindow, GruSettings, LAST, LogMelSettings, LstmSettings, MelScale, MelSettings, OptionalOperand, PadMode,
        Padding, PoolSettings, RecurrentActivation, ResizeMode, ResizeSettings, ResizeTo, RnnSettings,
        RoiAlignSettings, RopeLayout, RopeSettings, SampleSettings, ScatterMode, StftSettings, TensorAxis,
        TensorCommands, TensorExpression, TensorOperand, TensorValue,
    };
    pub use crate::pipelines::{TensorPipelines, WarmUpStatus, warmed_up};
    pub use crate::readback::{TensorReady, TensorReceiver};
    pub use crate::reports::TensorMonitor;
    pub use crate::schedule::{BacklogSettings, TensorBacklog, TensorBacklogs, has_room};
    pub use crate::support::{AnywherePlugins, Backend, BackendChoice, ModelBackend, TensorSupport};
    pub use crate::tensor::{
        DType, Shape, Tensor, TensorData, TensorModel, TensorModels, TensorOf, TensorSpawnExt, Truth,
    };
    pub use crate::{PipelineSettings, TensorComputePlugin, TensorSystems};

    #[cfg(feature = "inspector")]
    pub use crate::TensorInspectorPlugin;
    #[cfg(feature = "audio")]
    pub use crate::audio::SoundClip;
}

/// The code on the pages under `docs/`.
#[cfg(doctest)]
mod pages {
    #[cfg(feature = "text")]
    #[doc = include_str!("../docs/text.md")]
    struct Text;
    #[doc = include_str!("../docs/custom_kernels.md")]
    struct CustomKernels;
    #[doc = include_str!("../docs/graphics.md")]
    struct Graphics;
    #[doc = include_str!("../docs/inspector.md")]
    struct Inspector;
    #[doc = include_str!("../docs/memory.md")]
    struct Memory;
    #[doc = include_str!("../docs/models.md")]
    struct Models;
    #[cfg(feature = "onnx")]
    #[doc = include_str!("../docs/onnx.md")]
    struct Onnx;
    #[doc = include_str!("../docs/performance.md")]
    struct Performance;
    #[doc = include_str!("../docs/scheduling.md")]
    struct Scheduling;
    #[doc = include_str!("../docs/sound.md")]
    struct Sound;
}

/// Entry points for the fuzzer of this repository. Not part of the public interface.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::gpu::{cache_file, sealed_cache_file};
}
