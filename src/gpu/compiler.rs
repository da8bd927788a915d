//! The pipeline cache, keyed by WGSL text. Each pipeline is compiled once, in the background, the most urgent first.

use core::cmp::Ordering;
use core::sync::atomic::{AtomicBool, Ordering as Atomic};
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bevy::platform::collections::{HashMap, HashSet};
use bevy::tasks::AsyncComputeTaskPool;
use crossbeam_channel::{Receiver, Sender};

use super::compile::{LayoutCache, Layouts, Pipeline, compile_entry};
use super::device::Gpu;
use super::persist::fingerprint;
use crate::error::RunError;
use crate::figures::Count;
use crate::kernel::Launch;
use crate::mailbox::ListedKernel;
use crate::pipelines::{PipelineRecord, TensorPipelines};

/// Priority of pipelines that a frame waits for. They are compiled before all warm-ups.
pub(crate) const URGENT: i32 = i32::MAX;

/// A cached pipeline, compiled or not yet. Users of the pipeline hold the entry; an entry that is held is not evicted.
pub(crate) struct PipelineEntry {
    pub record: Arc<PipelineRecord>,
    pub(super) result: OnceLock<Result<Pipeline, RunError>>,
    /// Whether a task has started to compile it.
    begun: AtomicBool,
}

impl PipelineEntry {
    fn new(record: Arc<PipelineRecord>) -> Arc<Self> {
        Arc::new(Self { record, result: OnceLock::new(), begun: AtomicBool::new(false) })
    }

    /// The pipeline or its compile error. `None` while it compiles.
    pub(crate) fn get(&self) -> Option<Result<&Pipeline, RunError>> {
        self.result.get().map(|result| result.as_ref().map_err(Clone::clone))
    }
}

/// A pipeline to compile.
struct Job {
    priority: i32,
    /// Among jobs of equal priority, the lowest number runs first.
    number: u64,
    entry: Arc<PipelineEntry>,
    layouts: Layouts,
}

impl PartialEq for Job {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Job {}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Job {
    fn cmp(&self, other: &Self) -> Ordering {
        self.priority.cmp(&other.priority).then(other.number.cmp(&self.number))
    }
}

type Jobs = Arc<Mutex<BinaryHeap<Job>>>;

/// Compiles and caches the pipelines of a device.
pub(crate) struct Compiler {
    gpu: Gpu,
    /// Compile immediately instead of in the background.
    synchronous: bool,
    /// Whether the driver ends the loops of a thread after 65,535 iterations.
    short_loops: bool,
    /// Maximum number of cached pipelines. Unused ones are evicted, least recently used first.
    capacity: usize,
    entries: HashMap<Arc<str>, Arc<PipelineEntry>>,
    /// Pipelines that are being rebuilt. Each replaces the old entry once it is compiled.
    rebuilding: Vec<Arc<PipelineEntry>>,
    layouts: LayoutCache,
    jobs: Jobs,
    /// Number of jobs so far.
    numbers: u64,
    sender: Sender<Arc<PipelineEntry>>,
    receiver: Receiver<Arc<PipelineEntry>>,
    shared: TensorPipelines,
    /// The driver's own pipeline cache.
    driver: Option<wgpu::PipelineCache>,
    /// Ids of the pipelines that an earlier run put into the driver's cache.
    known: HashSet<u64>,
}

impl Compiler {
    pub(crate) fn new(
        gpu: Gpu,
        (synchronous, short_loops): (bool, bool),
        capacity: usize,
        shared: TensorPipelines,
        driver: Option<wgpu::PipelineCache>,
        known: HashSet<u64>,
    ) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self {
            gpu,
            synchronous,
            short_loops,
            capacity: capacity.max(1),
            entries: HashMap::default(),
            rebuilding: Vec::new(),
            layouts: LayoutCache::default(),
            jobs: Jobs::default(),
            numbers: 0,
            sender,
            receiver,
            shared,
            driver,
            known,
        }
    }

    /// Collects the pipelines that have been compiled since the last call. Returns the texts of those that were
    /// rebuilt.
    pub(crate) fn collect(&mut self) -> Vec<Arc<str>> {
        let mut replaced = Vec::new();
        for entry in self.receiver.try_iter() {
            self.gpu.counters.pipelines_compiling_now.sub(1);
            self.shared.totals().in_flight.sub(1);
            let Some(at) = self.rebuilding.iter().position(|other| Arc::ptr_eq(other, &entry)) else { continue };
            self.rebuilding.swap_remove(at);
            match entry.get() {
                Some(Err(error)) => entry.record.keep_old(error.to_string()),
                _ => {
                    let wgsl = entry.record.kernel.wgsl.clone();
                    self.entries.insert(wgsl.clone(), entry);
                    replaced.push(wgsl);
                }
            }
        }
        replaced
    }

    /// Returns the pipeline of a launch, and starts to compile it or raises its priority if needed.
    pub(crate) fn request(&mut self, launch: &Launch, variant: &Arc<str>, priority: i32) -> Arc<PipelineEntry> {
        let kernel = ListedKernel {
            kernel: launch.name.into(),
            variant: variant.clone(),
            wgsl: launch.wgsl.as_str().into(),
            entry: launch.entry.into(),
            checked: launch.checked,
            params_in_storage: launch.params_in_storage,
            accesses: launch.bindings.iter().map(|b| b.access).collect(),
            counts_faults: launch.counts_faults,
            loops: launch.loops.as_ref().map(|(bound, _)| *bound),
        };
        self.request_listed(&kernel, priority)
    }

    /// Returns the pipeline of a listed kernel, and starts to compile it or raises its priority if needed.
    pub(crate) fn request_listed(&mut self, kernel: &ListedKernel, priority: i32) -> Arc<PipelineEntry> {
        // A list from elsewhere may have the same text with another entry point or other checks.
        let same = |entry: &&Arc<PipelineEntry>| {
            (entry.record.kernel.checked, &entry.record.kernel.entry) == (kernel.checked, &kernel.entry)
        };
        if let Some(entry) = self.entries.get(&*kernel.wgsl).filter(same).cloned() {
            entry.record.hits.add(1);
            self.shared.totals().hits.add(1);
            self.hurry(&entry, priority);
            return entry;
        }
        let entry = self.add(kernel);
        self.build(entry.clone(), priority);
        if self.entries.len() > self.capacity {
            self.evict(self.capacity);
        }
        entry
    }

    /// Adds a kernel to the cache and to the app's list of pipelines.
    fn add(&mut self, kernel: &ListedKernel) -> Arc<PipelineEntry> {
        let id = fingerprint(kernel.wgsl.as_bytes());
        self.shared.remove(id);
        let record = Arc::new(PipelineRecord::new(kernel.clone(), id, self.known.contains(&id)));
        self.shared.totals().misses.add(1);
        self.shared.totals().offered.add(u64::from(record.offered));
        self.shared.add(record.clone());
        let entry = PipelineEntry::new(record);
        self.entries.insert(kernel.wgsl.clone(), entry.clone());
        entry
    }

    /// Queues a pipeline again with another priority, unless it is already being compiled.
    pub(crate) fn hurry(&mut self, entry: &Arc<PipelineEntry>, priority: i32) {
        if !entry.begun.load(Atomic::Relaxed) && !self.synchronous {
            self.queue(entry.clone(), priority);
        }
    }

    /// Compiles a cached pipeline again.
    pub(crate) fn rebuild(&mut self, id: u64) {
        let Some(old) = self.entries.values().find(|entry| entry.record.id == id) else { return };
        let entry = PipelineEntry::new(old.record.clone());
        self.rebuilding.push(entry.clone());
        self.build(entry, URGENT);
    }

    /// Evicts pipelines that nothing uses, least recently used first, until `left` remain.
    pub(crate) fn evict(&mut self, left: usize) {
        let mut idle: Vec<(u64, Arc<str>)> = self
            .entries
            .values()
            .filter(|entry| Arc::strong_count(entry) == 1 && entry.result.get().is_some())
            .map(|entry| (entry.record.last_use(), entry.record.kernel.wgsl.clone()))
            .collect();
        idle.sort_unstable();
        let over = self.entries.len().saturating_sub(left);
        for (_, wgsl) in idle.into_iter().take(over) {
            if let Some(entry) = self.entries.remove(&wgsl) {
                self.shared.remove(entry.record.id);
                self.shared.totals().evicted.add(1);
            }
        }
    }

    fn build(&mut self, entry: Arc<PipelineEntry>, priority: i32) {
        self.gpu.counters.pipelines_built.add(1);
        self.gpu.counters.pipelines_compiling_now.add(1);
        self.shared.totals().in_flight.add(1);
        self.queue(entry, priority);
    }

    /// Queues a job and spawns one task. Each task takes the most urgent job, so that a later job can overtake.
    fn queue(&mut self, entry: Arc<PipelineEntry>, priority: i32) {
        self.numbers += 1;
        let layouts = self.layouts.get(&self.gpu.device, &entry.record.kernel);
        let job = Job { priority, number: self.numbers, entry, layouts };
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        let (jobs, sender) = (self.jobs.clone(), self.sender.clone());
        let (device, driver, shared) = (self.gpu.device.clone(), self.driver.clone(), self.shared.clone());
        let short_loops = self.short_loops;
        let work = move || {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some(Job { entry, layouts, .. }) = job
                && !entry.begun.swap(true, Atomic::Relaxed)
            {
                compile_entry(&entry, &device, layouts, driver.as_ref(), &shared, short_loops);
                // Fails only when the compiler is gone.
                let _ = sender.send(entry);
            }
        };
        if self.synchronous {
            work();
        } else {
            AsyncComputeTaskPool::get().spawn(async move { work() }).detach();
        }
    }
}
