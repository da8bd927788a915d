//! What is known about pipelines and their cache file.

use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

/// How far a pipeline is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipelineState {
    /// It waits for a thread.
    Queued,
    /// It is being compiled.
    Compiling,
    /// It can be used.
    Ready,
    /// It did not compile.
    Failed,
}

/// What is known of one pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineInfo {
    /// Follows from its text: the same in every run.
    pub id: u64,
    /// The kernel.
    pub kernel: Arc<str>,
    /// The form of the kernel, where it has several.
    pub variant: Arc<str>,
    /// How far it is.
    pub state: PipelineState,
    /// Why it did not compile.
    pub error: Option<String>,
    /// What the shader compiler said, warnings included; empty if nothing.
    pub log: String,
    /// Launches of new plans that found it there.
    pub hits: u64,
    /// Launches it was used for.
    pub launches: u64,
    /// How long the last compilation took, on its own thread.
    pub compile: Option<Duration>,
    /// How often it was compiled.
    pub builds: u32,
    /// How long it has not been used; `None` if it never was.
    pub idle: Option<Duration>,
    /// Whether a file from an earlier run had it, and was offered to the driver.
    pub offered: bool,
    /// Bytes of its WGSL text ([`TensorPipelines::wgsl`]).
    pub wgsl_bytes: usize,
}

/// All pipelines and their totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineReport {
    /// In the order in which they were first asked for.
    pub pipelines: Vec<PipelineInfo>,
    /// Launches of new plans that found their pipeline.
    pub hits: u64,
    /// Pipelines that had to be compiled.
    pub misses: u64,
    /// Of those, pipelines that a file from an earlier run had.
    pub offered: u64,
    /// Pipelines queued or being compiled.
    pub in_flight: u64,
    /// Pipelines that went because there were too many.
    pub evicted: u64,
    /// All compilations together.
    pub compile: Duration,
    /// The file that keeps pipelines and tuning for the next start, if the app asked for one.
    pub file: Option<CacheFile>,
}

/// The file behind [`PipelineSettings::cache`](crate::PipelineSettings).
#[derive(Clone, Debug, PartialEq)]
pub struct CacheFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its size as last read or written; `None` before there is one.
    pub bytes: Option<u64>,
    /// What was found there at the start.
    pub found: CacheFound,
    /// Whether the driver takes part ([`wgpu::Features::PIPELINE_CACHE`]); else the file has the tuning table alone.
    pub driver: bool,
    /// How often it was written.
    pub writes: u64,
    /// Why it could not be written, the last time.
    pub error: Option<String>,
}

/// What a cache file was good for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheFound {
    /// There was none.
    #[default]
    Nothing,
    /// It was read; so many pipelines and tuning results are in it.
    Read {
        /// Pipelines that were offered to the driver.
        pipelines: usize,
        /// Sizes of kernels with a measured choice.
        tuned: usize,
    },
    /// It was ignored, and why: damaged, of another device, driver, version, or unreadable.
    Ignored(String),
}
