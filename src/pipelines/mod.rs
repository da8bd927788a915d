//! Pipelines from the app's point of view: reports, warm-up, tuning and the list of compiled kernels.

mod list;
mod pipeline_record;
mod registry;
mod report;
mod tuning;
mod warm_up;

pub use list::PipelineList;
pub use registry::TensorPipelines;
pub use report::{CacheFile, CacheFound, PipelineInfo, PipelineReport, PipelineState};
pub use tuning::{TuneOutcome, TunedChoice, TunedForm, TuningTable};
pub use warm_up::{OpSpec, TensorWarmUp, WarmUpProgress, WarmUpState, WarmUpStatus, warmed_up};

pub use crate::record::{TuneSettings, WarmUpId};

pub(crate) use pipeline_record::PipelineRecord;
pub(crate) use tuning::{fastest, median};
pub(crate) use warm_up::trigger_warm_ups;
