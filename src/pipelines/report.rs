//! Reports about pipelines and the cache file.

use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

/// The state of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipelineState {
    /// Waiting for a thread.
    Queued,
    /// Being compiled.
    Compiling,
    /// Ready for use.
    Ready,
    /// Compilation failed.
    Failed,
}

/// Information about one pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineInfo {
    /// Hash of its source. The same in every run.
    pub id: u64,
    /// The kernel.
    pub kernel: Arc<str>,
    /// The variant of the kernel. Empty if the kernel has only one.
    pub variant: Arc<str>,
    /// Its state.
    pub state: PipelineState,
    /// The error, if compilation failed.
    pub error: Option<String>,
    /// Messages of the shader compiler, including warnings. Empty if there are none.
    pub log: String,
    /// Number of launches in new plans that found this pipeline.
    pub hits: u64,
    /// Number of launches that used it.
    pub launches: u64,
    /// Duration of the last compilation, on its own thread.
    pub compile: Option<Duration>,
    /// Number of compilations.
    pub builds: u32,
    /// Time since the last use. `None` if it was never used.
    pub idle: Option<Duration>,
    /// Whether the cache file of an earlier run contained it.
    pub offered: bool,
    /// Size of its WGSL source ([`TensorPipelines::wgsl`](crate::pipelines::TensorPipelines::wgsl)) in bytes.
    pub wgsl_bytes: usize,
}

/// All pipelines, and totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineReport {
    /// In the order of their first request.
    pub pipelines: Vec<PipelineInfo>,
    /// Number of launches in new plans that found their pipeline.
    pub hits: u64,
    /// Number of pipelines that had to be compiled.
    pub misses: u64,
    /// Number of `misses` that the cache file of an earlier run contained.
    pub offered: u64,
    /// Number of pipelines that are queued or being compiled.
    pub in_flight: u64,
    /// Number of pipelines that were dropped because the cache was full.
    pub evicted: u64,
    /// Total duration of all compilations.
    pub compile: Duration,
    /// The cache file, if [`PipelineSettings::cache`](crate::PipelineSettings::cache) is set.
    pub file: Option<CacheFile>,
}

/// The file of [`PipelineSettings::cache`](crate::PipelineSettings::cache).
#[derive(Clone, Debug, PartialEq)]
pub struct CacheFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file when it was last read or written. `None` if it does not exist yet.
    pub bytes: Option<u64>,
    /// What was found at startup.
    pub found: CacheFound,
    /// Whether the driver supports pipeline caches ([`wgpu::Features::PIPELINE_CACHE`]). Otherwise the file only
    /// contains the tuning table.
    pub driver: bool,
    /// Number of writes.
    pub writes: u64,
    /// The error of the last write, if it failed.
    pub error: Option<String>,
}

/// Result of reading the cache file at startup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheFound {
    /// The file did not exist.
    #[default]
    Nothing,
    /// The file was read.
    Read {
        /// Number of pipelines in the file that were passed to the driver.
        pipelines: usize,
        /// Number of tuning results in the file.
        tuned: usize,
    },
    /// The file was ignored, with the reason: it is damaged or unreadable, or was written for another device, driver or
    /// version.
    Ignored(String),
}
