//! Pipelines by their text: each compiled once, off the frame, the urgent ones first; as many kept as the settings allow.

use core::cmp::Ordering;
use core::sync::atomic::{AtomicBool, Ordering as Atomic};
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bevy::platform::collections::{HashMap, HashSet};
use bevy::platform::time::Instant;
use bevy::tasks::AsyncComputeTaskPool;
use bevy::tasks::futures::now_or_never;
use crossbeam_channel::{Receiver, Sender};
use smallvec::SmallVec;

use super::buffers::{ErrorScope, Gpu};
use super::persist::fingerprint;
use crate::error::RunError;
use crate::figures::Count;
use crate::kernel::{Access, Launch};
use crate::mailbox::ListedKernel;
use crate::pipelines::{PipelineRecord, TensorPipelines};

/// The priority of what a frame waits for: before everything that is compiled ahead.
pub(crate) const URGENT: i32 = i32::MAX;

/// A compiled kernel and the layout its bind groups follow.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// A pipeline, compiled or not yet. Whoever will use it keeps it, and what somebody keeps stays in the cache.
pub(crate) struct PipelineEntry {
    pub record: Arc<PipelineRecord>,
    result: OnceLock<Result<Pipeline, RunError>>,
    begun: AtomicBool,
}

impl PipelineEntry {
    fn new(record: Arc<PipelineRecord>) -> Arc<Self> {
        Arc::new(Self { record, result: OnceLock::new(), begun: AtomicBool::new(false) })
    }

    /// The pipeline, or why there will be none; `None` while it compiles.
    pub(crate) fn get(&self) -> Option<Result<&Pipeline, RunError>> {
        self.result.get().map(|result| result.as_ref().map_err(Clone::clone))
    }
}

/// What binds where: whether the parameters are storage, the accesses in order, and whether a fault counter follows.
type Signature = (bool, SmallVec<[Access; 8]>, bool);

type Layouts = (wgpu::BindGroupLayout, wgpu::PipelineLayout);

/// A pipeline to compile.
struct Job {
    priority: i32,
    /// Earlier ones first among equals.
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

/// All pipelines of a device.
pub(crate) struct Pipelines {
    gpu: Gpu,
    /// Compile on the spot instead of in the background.
    synchronous: bool,
    /// Pipelines kept.
    capacity: usize,
    entries: HashMap<Arc<str>, Arc<PipelineEntry>>,
    /// New versions that take an old one's place once they are there.
    rebuilding: Vec<Arc<PipelineEntry>>,
    layouts: HashMap<Signature, Layouts>,
    jobs: Jobs,
    numbers: u64,
    sender: Sender<Arc<PipelineEntry>>,
    receiver: Receiver<Arc<PipelineEntry>>,
    shared: TensorPipelines,
    /// The driver's own cache, and the texts that an earlier run put into it.
    driver: Option<wgpu::PipelineCache>,
    known: HashSet<u64>,
}

impl Pipelines {
    pub(crate) fn new(
        gpu: Gpu,
        synchronous: bool,
        capacity: usize,
        shared: TensorPipelines,
        driver: Option<wgpu::PipelineCache>,
        known: HashSet<u64>,
    ) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self {
            gpu,
            synchronous,
            capacity: capacity.max(1),
            entries: HashMap::default(),
            rebuilding: Vec::new(),
            layouts: HashMap::default(),
            jobs: Jobs::default(),
            numbers: 0,
            sender,
            receiver,
            shared,
            driver,
            known,
        }
    }

    /// Takes in what has been compiled since. Gives the texts that a newer version has taken the place of.
    pub(crate) fn collect(&mut self) -> Vec<Arc<str>> {
        let mut replaced = Vec::new();
        for entry in self.receiver.try_iter() {
            self.gpu.counters.pipelines_compiling_now.sub(1);
            self.shared.totals().in_flight.sub(1);
            if let Some(at) = self.rebuilding.iter().position(|other| Arc::ptr_eq(other, &entry)) {
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
        }
        replaced
    }

    /// The pipeline of a launch, which begins to be compiled unless that has been done, or goes before others now.
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
        };
        self.request_listed(&kernel, priority)
    }

    /// The pipeline of a kernel.
    pub(crate) fn request_listed(&mut self, kernel: &ListedKernel, priority: i32) -> Arc<PipelineEntry> {
        let (wgsl, signature) = (&*kernel.wgsl, signature(kernel));
        // A list from elsewhere may have our text with other checks than ours.
        let same = |entry: &&Arc<PipelineEntry>| {
            (entry.record.kernel.checked, &entry.record.kernel.entry) == (kernel.checked, &kernel.entry)
        };
        if let Some(entry) = self.entries.get(wgsl).filter(same).cloned() {
            entry.record.hits.add(1);
            self.shared.totals().hits.add(1);
            if !entry.begun.load(Atomic::Relaxed) && !self.synchronous {
                let layouts = self.layouts(signature);
                self.queue(entry.clone(), layouts, priority);
            }
            return entry;
        }
        let wgsl = kernel.wgsl.clone();
        let id = fingerprint(wgsl.as_bytes());
        self.shared.remove(id);
        let record = Arc::new(PipelineRecord::new(kernel.clone(), id, self.known.contains(&id)));
        self.shared.totals().misses.add(1);
        self.shared.totals().offered.add(u64::from(record.offered));
        self.shared.add(record.clone());
        let entry = PipelineEntry::new(record);
        self.entries.insert(wgsl, entry.clone());
        let layouts = self.layouts(signature);
        self.build(entry.clone(), layouts, priority);
        if self.entries.len() > self.capacity {
            self.evict(self.capacity);
        }
        entry
    }

    /// Lets a pipeline that has not begun overtake others.
    pub(crate) fn hurry(&mut self, entry: &Arc<PipelineEntry>, priority: i32) {
        if !entry.begun.load(Atomic::Relaxed) && !self.synchronous {
            let layouts = self.layouts(signature(&entry.record.kernel));
            self.queue(entry.clone(), layouts, priority);
        }
    }

    /// Compiles a pipeline again, if it is there.
    pub(crate) fn rebuild(&mut self, id: u64) {
        let Some(old) = self.entries.values().find(|entry| entry.record.id == id) else { return };
        let record = old.record.clone();
        let layouts = self.layouts(signature(&record.kernel));
        let entry = PipelineEntry::new(record);
        self.rebuilding.push(entry.clone());
        self.build(entry, layouts, URGENT);
    }

    /// Gives up pipelines that nobody keeps, the least recently used first, until there are `left` or none can go.
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

    fn build(&mut self, entry: Arc<PipelineEntry>, layouts: Layouts, priority: i32) {
        self.gpu.counters.pipelines_built.add(1);
        self.gpu.counters.pipelines_compiling_now.add(1);
        self.shared.totals().in_flight.add(1);
        self.queue(entry, layouts, priority);
    }

    /// Every task takes the most urgent job there is, so that a later one may overtake.
    fn queue(&mut self, entry: Arc<PipelineEntry>, layouts: Layouts, priority: i32) {
        self.numbers += 1;
        let job = Job { priority, number: self.numbers, entry, layouts };
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        let (jobs, sender) = (self.jobs.clone(), self.sender.clone());
        let (device, driver, shared) = (self.gpu.device.clone(), self.driver.clone(), self.shared.clone());
        let work = move || {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some(Job { entry, layouts, .. }) = job
                && !entry.begun.swap(true, Atomic::Relaxed)
            {
                build(&entry, &device, layouts, driver.as_ref(), &shared);
                // Nobody listens once the device is gone.
                let _ = sender.send(entry);
            }
        };
        if self.synchronous {
            work();
        } else {
            AsyncComputeTaskPool::get().spawn(async move { work() }).detach();
        }
    }

    fn layouts(&mut self, signature: Signature) -> Layouts {
        let device = &self.gpu.device;
        self.layouts
            .entry(signature)
            .or_insert_with_key(|(params_in_storage, accesses, faults)| {
                let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
                    binding: binding as u32,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                    count: None,
                };
                let storage = |access| wgpu::BufferBindingType::Storage { read_only: access == Access::Read };
                let params = match params_in_storage {
                    true => storage(Access::Read),
                    false => wgpu::BufferBindingType::Uniform,
                };
                let all = accesses.iter().copied().chain(faults.then_some(Access::ReadWrite));
                let entries: Vec<_> = core::iter::once(entry(0, params))
                    .chain(all.enumerate().map(|(i, access)| entry(i + 1, storage(access))))
                    .collect();
                let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                    label: Some("tensor:bindings"),
                    entries: &entries,
                });
                let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                    label: Some("tensor:kernel"),
                    bind_group_layouts: &[Some(&layout)],
                    immediate_size: 0,
                });
                (layout, pipeline_layout)
            })
            .clone()
    }
}

fn signature(kernel: &ListedKernel) -> Signature {
    (kernel.params_in_storage, kernel.accesses.iter().copied().collect(), kernel.counts_faults)
}

/// Compiles an entry's kernel and writes down how that went.
fn build(
    entry: &PipelineEntry,
    device: &wgpu::Device,
    (layout, pipeline_layout): Layouts,
    driver: Option<&wgpu::PipelineCache>,
    shared: &TensorPipelines,
) {
    let record = &entry.record;
    record.begin();
    let start = Instant::now();
    let (result, log) = compile(device, &record.kernel, &pipeline_layout, driver);
    let took = start.elapsed();
    shared.totals().compile_nanos.add(took.as_nanos() as u64);
    record.end(took, log, result.as_ref().err().map(ToString::to_string));
    // Set once: an entry is begun once.
    let _ = entry.result.set(result.map(|pipeline| Pipeline { pipeline, layout }));
}

/// Validates and compiles one kernel; every complaint comes back as an error, with the compiler's log.
fn compile(
    device: &wgpu::Device,
    kernel: &ListedKernel,
    layout: &wgpu::PipelineLayout,
    driver: Option<&wgpu::PipelineCache>,
) -> (Result<wgpu::ComputePipeline, RunError>, String) {
    let ListedKernel { kernel: name, wgsl, entry, checked, .. } = kernel;
    let label = format!("tensor:{name}");
    let scope = ErrorScope::new(device);
    let descriptor =
        wgpu::ShaderModuleDescriptor { label: Some(&label), source: wgpu::ShaderSource::Wgsl((&**wgsl).into()) };
    let module = if *checked {
        device.create_shader_module(descriptor)
    } else {
        // SAFETY: the text is generated from our own kernels, which guard every access and bound every loop; the unit tests of the kernels
        // run each launch with checks and without, and compare the bits. A user's text gets here if its author has promised the same, by
        // `CustomKernel::trusted`. Texts from a saved list are compiled only; none is run that was not asked for in one of these ways.
        unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
    };
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(&label),
        layout: Some(layout),
        module: &module,
        entry_point: Some(entry),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: *checked,
            ..Default::default()
        },
        cache: driver,
    });
    let log = now_or_never(module.get_compilation_info()).map_or_else(String::new, |info| {
        let message = |m: &wgpu::CompilationMessage| {
            let place = m.location.map_or_else(String::new, |at| format!("{}:{}: ", at.line_number, at.line_position));
            format!("{place}{:?}: {}", m.message_type, m.message)
        };
        info.messages.iter().map(message).collect::<Vec<_>>().join("\n")
    });
    match scope.pop() {
        None => (Ok(pipeline), log),
        Some(error) => (Err(RunError::Kernel { kernel: name.to_string(), message: error.to_string() }), log),
    }
}
