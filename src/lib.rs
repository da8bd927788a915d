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

mod cpu;
mod disk;
mod error;
mod extract;
mod figures;
mod formats;
mod gpu;
mod image;
#[cfg(feature = "inspector")]
pub mod inspector;
mod ir;
mod kernel;
mod mailbox;
mod memory;
pub mod nn;
mod pipelines;
mod plan;
mod plugin;
mod readback;
mod record;
mod reports;
mod support;
mod tensor;

/// The code on the pages under `docs/`.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../docs/custom_kernels.md")]
    struct CustomKernels;
    #[doc = include_str!("../docs/inspector.md")]
    struct Inspector;
    #[doc = include_str!("../docs/memory.md")]
    struct Memory;
    #[doc = include_str!("../docs/models.md")]
    struct Models;
}

pub use error::{ImageError, TensorFault};
pub use error::{KernelError, MemoryHolder, OpError, OpResult, OperandInfo, ReadError, RunError, TensorError};
pub use figures::{
    FrameTimeline, KernelTiming, LaunchSpan, ModelTiming, OpTiming, TensorDiagnostics, TensorFigures, TimingReport,
    TimingSource, TimingStats,
};
pub use formats::{
    FormatError, LoadWeights, SafetensorsFile, TensorFiles, TensorWeights, TensorsLoaded, TensorsSaved, UploadSettings,
    WeightsError, WeightsProgress, WeightsReady, save_npy, save_safetensors,
};
pub use image::{ImageCrop, ImageLayout, ImagePixels, ImageSettings, PixelsImage, pixels_image, pixels_of};
#[cfg(feature = "inspector")]
pub use inspector::TensorInspectorPlugin;
pub use ir::{
    Backend, BinaryOp, Class, CpuKernelCall, DType, Dispatch, Element, Layout, OutputShape, Shape, SourcePlace,
    Strides, Truth, UnaryOp,
};
pub use kernel::custom::{
    CpuElement, CustomKernel, KernelNumber, ParamValue, RegisterTensorKernel, TensorKernel, TensorKernels,
};
pub use memory::{
    AdviceSettings, AdvisedTensor, Duplicates, HostCopies, MemoryAdvice, MemoryAdvisor, MemoryPolicy, MemoryPressure,
    MemorySettings, ModelUsage, Pinned, PoolClass, PoolKind, PressureLevel, PriorityMode, Residency, SyncDirection,
    TensorLost, TensorMemory, TensorUsage,
};
pub use pipelines::{
    CacheFile, CacheFound, OpSpec, PipelineInfo, PipelineList, PipelineReport, PipelineState, TensorPipelines,
    TensorReadyState, TensorWarmUp, TuneOutcome, TuneSettings, TunedChoice, TunedForm, TuningTable, WarmUpId,
    WarmUpProgress, WarmUpState, tensors_ready,
};
pub use plan::{PlanReport, StepReport, Unfused, UnfusedReason};
pub use plugin::{PipelineSettings, TensorComputePlugin, TensorSystems};
pub use readback::{TensorReady, TensorReceiver};
pub use record::{
    AttentionSettings, Axes, ConvSettings, ConvTransposeSettings, CumsumSettings, DepthOrder, KernelInputs, LAST,
    OptionalOperand, PadMode, Padding, PoolSettings, ResizeCoordinates, ResizeMode, ResizeRounding, ResizeSettings,
    ResizeTo, RopeLayout, RopeSettings, ScatterMode, TensorAxis, TensorCommands, TensorExpression, TensorOperand,
    TensorValue,
};
pub use reports::diagnostic_paths;
pub use reports::{CompiledRow, FrameRow, ReportedModel, TensorMonitor, TensorReport, TimedRow};
pub use support::{
    AdapterFacts, AnywherePlugins, BackendChoice, ModelBackend, TensorSupport, has_adapter, has_display,
};
pub use tensor::{ModelTensors, NameError, ShareError, Tensor, TensorData, TensorModel, TensorModels, TensorOf};

/// Everything most apps use.
pub mod prelude {
    pub use crate::{
        AnywherePlugins, AttentionSettings, Axes, Backend, BackendChoice, ConvSettings, ConvTransposeSettings,
        CumsumSettings, CustomKernel, DType, DepthOrder, Dispatch, LAST, LoadWeights, MemorySettings, ModelBackend,
        OpError, OpResult, OptionalOperand, OutputShape, PadMode, Padding, Pinned, PoolSettings, RegisterTensorKernel,
        ResizeMode, ResizeSettings, ResizeTo, RopeLayout, RopeSettings, ScatterMode, Shape, Tensor, TensorAxis,
        TensorCommands, TensorComputePlugin, TensorData, TensorDiagnostics, TensorExpression, TensorFault, TensorFiles,
        TensorKernel, TensorKernels, TensorLost, TensorMemory, TensorModel, TensorModels, TensorMonitor, TensorOf,
        TensorOperand, TensorReady, TensorReceiver, TensorSupport, TensorSystems, TensorValue, Truth,
    };

    #[cfg(feature = "inspector")]
    pub use crate::TensorInspectorPlugin;
}
