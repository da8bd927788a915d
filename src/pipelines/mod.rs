//! Pipelines as the app sees them: what was compiled, what that cost, and requests to compile ahead, again, or to find the fastest form.

mod list;
mod record;
mod registry;
mod report;
mod tuning;
mod warm_up;

pub use list::PipelineList;
pub use registry::TensorPipelines;
pub use report::{CacheFile, CacheFound, PipelineInfo, PipelineReport, PipelineState};
pub use tuning::{TuneOutcome, TunedChoice, TunedForm, TuningTable};
pub use warm_up::{OpSpec, TensorReadyState, TensorWarmUp, WarmUpProgress, WarmUpState, tensors_ready};

pub use crate::record::{TuneSettings, WarmUpId};

pub(crate) use record::PipelineRecord;
pub(crate) use tuning::{fastest, median};
pub(crate) use warm_up::trigger_warm_ups;
