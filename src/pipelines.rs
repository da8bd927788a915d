//! Pipelines as the app sees them: what was compiled, what that cost, and requests to compile ahead, again, or to find the fastest form.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bevy::platform::time::Instant;
use bevy::prelude::*;

use crate::kernel::Access;
use crate::record::Part;
use crate::tuning::{TuneOutcome, TuneSettings, TuningTable};
use crate::warm_up::{WarmUpId, WarmUpProgress, WarmUpState};

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

/// Whoever compiles a pipeline writes down here what happens; whoever looks reads it.
#[derive(Debug)]
pub(crate) struct PipelineRecord {
    pub id: u64,
    pub kernel: ListedKernel,
    pub offered: bool,
    pub hits: AtomicU64,
    launches: AtomicU64,
    /// Nanoseconds after the registry's start, plus one; 0 if never.
    used: AtomicU64,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    state: PipelineState,
    error: Option<String>,
    log: String,
    compile: Option<Duration>,
    builds: u32,
}

impl PipelineRecord {
    pub(crate) fn new(kernel: ListedKernel, id: u64, offered: bool) -> Self {
        let state = PipelineState::Queued;
        Self {
            id,
            kernel,
            offered,
            hits: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            used: AtomicU64::new(0),
            progress: Mutex::new(Progress { state, error: None, log: String::new(), compile: None, builds: 0 }),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) {
        self.progress().state = PipelineState::Compiling;
    }

    pub(crate) fn end(&self, took: Duration, log: String, error: Option<String>) {
        let mut progress = self.progress();
        progress.state = if error.is_some() { PipelineState::Failed } else { PipelineState::Ready };
        (progress.error, progress.log, progress.compile) = (error, log, Some(took));
        progress.builds += 1;
    }

    /// A compilation that changed nothing: the pipeline that was there stays, and so does the complaint.
    pub(crate) fn keep_old(&self, error: String) {
        let mut progress = self.progress();
        (progress.state, progress.error) = (PipelineState::Ready, Some(error));
    }

    /// When it was last used, as nanoseconds after the registry's start.
    pub(crate) fn last_use(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn launched(&self, now: u64) {
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.used.store(now + 1, Ordering::Relaxed);
    }

    fn info(&self, now: u64) -> PipelineInfo {
        let progress = self.progress();
        PipelineInfo {
            id: self.id,
            kernel: self.kernel.kernel.clone(),
            variant: self.kernel.variant.clone(),
            state: progress.state,
            error: progress.error.clone(),
            log: progress.log.clone(),
            hits: self.hits.load(Ordering::Relaxed),
            launches: self.launches.load(Ordering::Relaxed),
            compile: progress.compile,
            builds: progress.builds,
            idle: match self.last_use() {
                0 => None,
                used => Some(Duration::from_nanos(now.saturating_sub(used - 1))),
            },
            offered: self.offered,
            wgsl_bytes: self.kernel.wgsl.len(),
        }
    }
}

/// What the main world asks of the executor.
pub(crate) enum PipelineRequest {
    Rebuild(u64),
    Evict,
    WarmUp { id: WarmUpId, priority: i32, part: Part },
    Precompile { id: WarmUpId, priority: i32, list: PipelineList },
    Tune { settings: TuneSettings, part: Part },
    Save,
}

#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub offered: AtomicU64,
    pub in_flight: AtomicU64,
    pub evicted: AtomicU64,
    pub compile_nanos: AtomicU64,
}

struct Shared {
    start: Instant,
    records: Mutex<Vec<Arc<PipelineRecord>>>,
    requests: Mutex<Vec<PipelineRequest>>,
    /// Whether an executor takes requests.
    served: AtomicBool,
    totals: Totals,
    file: Mutex<Option<CacheFile>>,
    warm_ups: Mutex<Vec<WarmUpProgress>>,
    next_warm_up: AtomicU64,
    table: Mutex<TuningTable>,
    outcomes: Mutex<Vec<TuneOutcome>>,
    tuning: AtomicU64,
}

/// The pipelines of the GPU backend: what there is, and requests about it. All clones are one.
#[derive(Resource, Clone)]
pub struct TensorPipelines(Arc<Shared>);

impl Default for TensorPipelines {
    fn default() -> Self {
        Self(Arc::new(Shared {
            start: Instant::now(),
            records: Mutex::default(),
            requests: Mutex::default(),
            served: AtomicBool::new(false),
            totals: Totals::default(),
            file: Mutex::default(),
            warm_ups: Mutex::default(),
            next_warm_up: AtomicU64::new(1),
            table: Mutex::default(),
            outcomes: Mutex::default(),
            tuning: AtomicU64::new(0),
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TensorPipelines {
    /// Every pipeline and the totals, as they are now.
    pub fn report(&self) -> PipelineReport {
        let now = self.now();
        let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let totals = &self.0.totals;
        PipelineReport {
            pipelines: lock(&self.0.records).iter().map(|record| record.info(now)).collect(),
            hits: load(&totals.hits),
            misses: load(&totals.misses),
            offered: load(&totals.offered),
            in_flight: load(&totals.in_flight),
            evicted: load(&totals.evicted),
            compile: Duration::from_nanos(load(&totals.compile_nanos)),
            file: lock(&self.0.file).clone(),
        }
    }

    /// The whole text of a kernel, as the device gets it, by [`PipelineInfo::id`].
    pub fn wgsl(&self, id: u64) -> Option<Arc<str>> {
        self.record(id).map(|record| record.kernel.wgsl.clone())
    }

    /// Compiles a pipeline again. The old one works until the new one is there, and stays if that fails.
    pub fn rebuild(&self, id: u64) {
        self.request(PipelineRequest::Rebuild(id));
    }

    /// Gives up every pipeline that no plan uses.
    pub fn trim(&self) {
        self.request(PipelineRequest::Evict);
    }

    /// Writes the cache file now, off the frame, if the app asked for one.
    pub fn save(&self) {
        self.request(PipelineRequest::Save);
    }

    /// The kernels compiled so far, to be compiled ahead at the next start: [`TensorPipelines::precompile`].
    pub fn list(&self) -> PipelineList {
        PipelineList { kernels: lock(&self.0.records).iter().map(|record| record.kernel.clone()).collect() }
    }

    /// Compiles the kernels of a list in the background, those of a higher priority first. [`TensorWarmUp`](crate::TensorWarmUp) events and
    /// [`TensorReadyState`](crate::TensorReadyState) tell how far that is. A text that the crate would not make itself is compiled and never run.
    pub fn precompile(&self, label: &str, priority: i32, list: &PipelineList) -> WarmUpId {
        let id = self.new_warm_up(label, list.kernels.len());
        self.request_or_finish(id, PipelineRequest::Precompile { id, priority, list: list.clone() });
        id
    }

    /// What the tuner has measured since the app started, oldest first.
    pub fn tuned(&self) -> Vec<TuneOutcome> {
        lock(&self.0.outcomes).clone()
    }

    /// The choices that are in force, measured now or in an earlier run.
    pub fn tuning(&self) -> TuningTable {
        lock(&self.0.table).clone()
    }

    /// Kernels that wait for the tuner or are being measured.
    pub fn tuning_now(&self) -> u64 {
        self.0.tuning.load(Ordering::Relaxed)
    }

    /// How far every warm-up is that the app asked for.
    pub fn warm_ups(&self) -> Vec<WarmUpProgress> {
        lock(&self.0.warm_ups).clone()
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.start.elapsed().as_nanos() as u64
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.0.totals
    }

    pub(crate) fn add(&self, record: Arc<PipelineRecord>) {
        lock(&self.0.records).push(record);
    }

    pub(crate) fn remove(&self, id: u64) {
        lock(&self.0.records).retain(|record| record.id != id);
    }

    /// A new device starts with nothing.
    pub(crate) fn serve(&self) {
        self.0.served.store(true, Ordering::Relaxed);
        lock(&self.0.records).clear();
        self.0.totals.in_flight.store(0, Ordering::Relaxed);
        self.0.tuning.store(0, Ordering::Relaxed);
    }

    pub(crate) fn record(&self, id: u64) -> Option<Arc<PipelineRecord>> {
        lock(&self.0.records).iter().find(|record| record.id == id).cloned()
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        lock(&self.0.records).iter().map(|record| record.id).collect()
    }

    /// Without an executor nobody would ever take a request.
    pub(crate) fn request(&self, request: PipelineRequest) -> bool {
        let served = self.0.served.load(Ordering::Relaxed);
        if served {
            lock(&self.0.requests).push(request);
        }
        served
    }

    pub(crate) fn request_or_finish(&self, id: WarmUpId, request: PipelineRequest) {
        if !self.request(request) {
            self.update_warm_up(id, |progress| progress.state = WarmUpState::Ready);
        }
    }

    pub(crate) fn take_requests(&self) -> Vec<PipelineRequest> {
        core::mem::take(&mut *lock(&self.0.requests))
    }

    pub(crate) fn new_warm_up(&self, label: &str, total: usize) -> WarmUpId {
        let id = WarmUpId(self.0.next_warm_up.fetch_add(1, Ordering::Relaxed));
        let progress = WarmUpProgress { id, label: label.into(), done: 0, total, state: WarmUpState::Compiling };
        lock(&self.0.warm_ups).push(progress);
        id
    }

    pub(crate) fn update_warm_up(&self, id: WarmUpId, update: impl FnOnce(&mut WarmUpProgress)) {
        if let Some(progress) = lock(&self.0.warm_ups).iter_mut().find(|progress| progress.id == id) {
            update(progress);
        }
    }

    pub(crate) fn update_file(&self, update: impl FnOnce(&mut Option<CacheFile>)) {
        update(&mut lock(&self.0.file));
    }

    pub(crate) fn update_table<T>(&self, update: impl FnOnce(&mut TuningTable) -> T) -> T {
        update(&mut lock(&self.0.table))
    }

    pub(crate) fn add_outcome(&self, outcome: TuneOutcome) {
        lock(&self.0.outcomes).push(outcome);
    }

    pub(crate) fn set_tuning_now(&self, jobs: usize) {
        self.0.tuning.store(jobs as u64, Ordering::Relaxed);
    }
}

/// Kernels by their text, to be compiled ahead.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineList {
    pub(crate) kernels: Vec<ListedKernel>,
}

/// What a pipeline is made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ListedKernel {
    pub kernel: Arc<str>,
    pub variant: Arc<str>,
    pub wgsl: Arc<str>,
    pub entry: Arc<str>,
    /// Whether it runs with bounds checked and memory cleared.
    pub checked: bool,
    pub params_in_storage: bool,
    pub accesses: Vec<Access>,
    pub counts_faults: bool,
}

/// Of the format below; grows with it.
const LIST_VERSION: u64 = 1;

impl PipelineList {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Writes the list as JSON; a file that is there is replaced at once, or stays.
    pub fn save(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        let kernels: Vec<serde_json::Value> = self
            .kernels
            .iter()
            .map(|k| {
                let writes: Vec<bool> = k.accesses.iter().map(|&access| access == Access::ReadWrite).collect();
                serde_json::json!({
                    "kernel": &*k.kernel, "variant": &*k.variant, "wgsl": &*k.wgsl,
                    "entry": &*k.entry, "checked": k.checked, "params_in_storage": k.params_in_storage,
                    "writes": writes, "faults": k.counts_faults,
                })
            })
            .collect();
        let text = serde_json::json!({ "version": LIST_VERSION, "kernels": kernels }).to_string();
        crate::formats::replace_file(path.as_ref(), text.as_bytes())
    }

    /// Reads a list; anything wrong with it is an error of kind `InvalidData`.
    pub fn load(path: impl AsRef<Path>) -> std::io::Result<Self> {
        let wrong = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
        let text = std::fs::read(path)?;
        let json: serde_json::Value = serde_json::from_slice(&text).map_err(|error| wrong(&error.to_string()))?;
        if json["version"].as_u64() != Some(LIST_VERSION) {
            return Err(wrong("a list of another version"));
        }
        let list = json["kernels"].as_array().ok_or_else(|| wrong("no list of kernels"))?;
        let kernels = list.iter().map(|entry| {
            let text = |field: &str| entry[field].as_str().map(Arc::from);
            let access = |write: &serde_json::Value| {
                write.as_bool().map(|write| if write { Access::ReadWrite } else { Access::Read })
            };
            Some(ListedKernel {
                kernel: text("kernel")?,
                variant: text("variant")?,
                wgsl: text("wgsl")?,
                entry: text("entry")?,
                checked: entry["checked"].as_bool()?,
                params_in_storage: entry["params_in_storage"].as_bool()?,
                accesses: entry["writes"].as_array()?.iter().map(access).collect::<Option<_>>()?,
                counts_faults: entry["faults"].as_bool()?,
            })
        });
        let kernels = kernels.collect::<Option<_>>().ok_or_else(|| wrong("a kernel that is none"))?;
        Ok(Self { kernels })
    }
}
