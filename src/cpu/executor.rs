//! Runs batches in order on a worker thread, without blocking the frame.

use crate::record::{Batch, generate};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, PoisonError};

use bevy::platform::time::Instant;
use bevy::prelude::*;
use crossbeam_channel::Sender;

use super::{Watch, read_words, run_plan, scratch_words, words_of};
use crate::error::{ReadError, RunError, StallStage, TensorFault, catch};
use crate::figures::{Count, TensorDiagnostics, TimedBatch, TimedLaunch};
use crate::ir::Backend;
use crate::kernel::CpuPool;
use crate::kernel::host::zeroed;
use crate::memory::{MemorySettings, ScratchUse};
use crate::plan::{Plan, PlanCache, PlanLimits, effects, step_models};
use crate::readback::ReadRequest;
use crate::tensor::{Initial, Storage};

/// Launches on the CPU have no bindings, so only the program length limits fusion.
const LIMITS: PlanLimits =
    PlanLimits { buffers: 64, alignment: 16, binding: usize::MAX, passes: false, fuse: true, chain: 1 << 15 };

/// How long the worker waits for content from the GPU before it checks whether the app has exited.
const PATIENCE: Duration = Duration::from_millis(20);

/// The worker has been told to rest since it got work.
const RESTED: u64 = u64::MAX;

/// The main world's handle to the CPU backend.
#[derive(Resource)]
pub(crate) struct CpuExecutor {
    sender: async_channel::Sender<Task>,
    /// Frames since work was sent, or [`RESTED`].
    idle: AtomicU64,
    /// Number of batches after which unused scratch memory is freed.
    window: Arc<AtomicU64>,
    diagnostics: TensorDiagnostics,
}

/// A request to the worker.
enum Task {
    /// Runs recorded work.
    Run(Batch),
    /// Makes a storage resident before the work that needs it arrives.
    TakeIn(Arc<Storage>),
    /// Frees scratch memory: there was no work for a while.
    Rest,
}

/// State that the worker keeps between batches.
struct Worker {
    plans: PlanCache,
    scratch: Vec<u32>,
    scratch_use: ScratchUse,
    window: Arc<AtomicU64>,
    pool: Arc<CpuPool>,
    /// Number of batches run so far.
    batches: u64,
    diagnostics: TensorDiagnostics,
    faults: Sender<TensorFault>,
}

impl CpuExecutor {
    pub(crate) fn new(fuse: bool, diagnostics: TensorDiagnostics, faults: Sender<TensorFault>) -> Self {
        let (sender, receiver) = async_channel::unbounded::<Task>();
        let pool = Arc::new(CpuPool::default().with_counters(diagnostics.counters().clone()));
        let window = Arc::new(AtomicU64::new(u64::MAX));
        let mut worker = Worker {
            plans: PlanCache::new(PlanLimits { fuse, ..LIMITS }),
            scratch: Vec::new(),
            scratch_use: ScratchUse::default(),
            window: window.clone(),
            pool: pool.clone(),
            batches: 0,
            diagnostics: diagnostics.clone(),
            faults,
        };
        // This thread ends when the app drops its end of the channel. The threads of the pool help it.
        let work = move || {
            while let Ok(task) = receiver.recv_blocking() {
                match task {
                    Task::Run(batch) => {
                        // The content may still be on its way from the GPU. Only this thread waits for it, never a
                        // frame. Once the channel is closed, the app is gone and no content will arrive.
                        while !batch.has_content() && !receiver.is_closed() {
                            Storage::wait_for_landing(PATIENCE);
                        }
                        if batch.has_content() {
                            worker.run(batch);
                        }
                        worker.diagnostics.progress(StallStage::Cpu).end_next();
                    }
                    Task::TakeIn(storage) => worker.take_in(&storage),
                    Task::Rest => worker.free_scratch(),
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("tensor cpu".to_owned()).spawn(work) {
            error!("failed to start the thread of the CPU backend: {error}");
        }
        Self { sender, idle: AtomicU64::new(0), window, diagnostics }
    }

    /// Queues a frame's work. The queue is unbounded.
    pub(crate) fn send(&self, batch: Batch) {
        self.idle.store(0, Ordering::Relaxed);
        self.diagnostics.progress(StallStage::Cpu).begin();
        if self.sender.try_send(Task::Run(batch)).is_err() {
            // The worker has stopped. Dropping the batch answers its read requests.
            self.diagnostics.progress(StallStage::Cpu).end_all();
        }
    }

    /// Makes a storage of this backend resident before it is needed, so that the first batch that uses it is not
    /// delayed.
    pub(crate) fn take_in(&self, storage: Arc<Storage>) {
        let _ = self.sender.try_send(Task::TakeIn(storage));
    }
}

fn panicked<T>(message: String) -> Result<T, RunError> {
    Err(RunError::Panic { task: "the CPU backend", message })
}

/// Frees the scratch memory of a CPU backend without work after as many frames as idle buffers are kept.
pub(crate) fn rest_cpu(cpu: Res<CpuExecutor>, settings: Res<MemorySettings>) {
    cpu.window.store(settings.pool_frames, Ordering::Relaxed);
    match cpu.idle.load(Ordering::Relaxed) {
        RESTED => {}
        idle if idle < settings.pool_frames => cpu.idle.store(idle + 1, Ordering::Relaxed),
        _ => {
            cpu.idle.store(RESTED, Ordering::Relaxed);
            // Fails only when the worker is gone, and its memory with it.
            let _ = cpu.sender.try_send(Task::Rest);
        }
    }
}

/// Counts writes to storages that shaders read, so that their new content is uploaded.
fn note_bound_writes(plan: &Plan, batch: &Batch) {
    if batch.slots.iter().any(|storage| storage.is_bound()) {
        let elements: Vec<usize> = batch.slots.iter().map(|storage| storage.elements()).collect();
        let written = batch.slots.iter().zip(effects(plan, &elements)).filter(|(_, effect)| effect.writes);
        written.for_each(|(storage, _)| storage.wrote_on_host());
    }
}

impl Worker {
    /// Takes a storage in before work needs it.
    fn take_in(&mut self, storage: &Arc<Storage>) {
        let taken = catch(|| self.make_resident(storage)).unwrap_or_else(panicked);
        if let Err(error) = taken {
            let _ = self.faults.send(TensorFault::Run(error));
        }
    }

    fn free_scratch(&mut self) {
        self.scratch = Vec::new();
        self.diagnostics.counters().cpu_scratch_bytes.put(0);
    }

    /// Frees scratch memory if the last batches needed much less.
    fn tend_scratch(&mut self, needed: usize) {
        self.scratch_use.used(needed as u64 * 4);
        let bytes = self.scratch.len() as u64 * 4;
        if self.scratch_use.end_frame(self.window.load(Ordering::Relaxed), bytes) {
            self.free_scratch();
        }
    }

    /// Runs a batch. A panic fails the batch, not the work behind it.
    fn run(&mut self, mut batch: Batch) {
        let mut requests: Vec<Option<ReadRequest>> =
            core::mem::take(&mut batch.requests).into_iter().map(Some).collect();
        self.diagnostics.counters().readbacks.add(requests.len() as u64);
        let outcome = catch(|| {
            self.make_good(&batch)?;
            batch.slots.iter().try_for_each(|storage| self.make_resident(storage))?;
            let plan = self.run_plan(&batch)?;
            self.answer(&plan, &batch, &mut requests);
            self.tend_scratch(scratch_words(&plan));
            Ok(())
        });
        if let Err(error) = outcome.unwrap_or_else(panicked) {
            for request in requests.into_iter().flatten() {
                request.fail(ReadError::Failed(error.clone()));
            }
            let _ = self.faults.send(TensorFault::Run(error));
        }
    }

    fn run_plan(&mut self, batch: &Batch) -> Result<Arc<Plan>, RunError> {
        let counters = self.diagnostics.counters().clone();
        self.plans.set_chains(!self.diagnostics.debug());
        let (built, hits) = (self.plans.built, self.plans.hits);
        let (_, plan) = self.plans.plan(&batch.structure, &batch.scalars);
        self.plans.take_dropped();
        counters.plans_built.add(self.plans.built - built);
        counters.plan_hits.add(self.plans.hits - hits);
        self.diagnostics.set_last_plan(Backend::Cpu, &plan.report, &plan.nodes);
        let mut watch = Watch {
            clock: self.diagnostics.timings_on().then(Vec::new),
            non_finite: self.diagnostics.debug().then_some(None),
        };
        let (slots, scratch) = (&batch.slots, &mut self.scratch);
        let clamped = run_plan(&plan, slots, &batch.host, &batch.scalars, scratch, &self.pool, &mut watch)?;
        counters.cpu_scratch_bytes.put(self.scratch.len() as u64 * 4);
        self.batches += 1;
        self.report(&plan, batch, watch);
        counters.cpu_steps.add(plan.steps.len() as u64);
        counters.batches_run.add(1);
        note_bound_writes(&plan, batch);
        for (step, count) in clamped {
            let op = plan.report.steps[step].op;
            let error = RunError::IndexOutOfRange { op, count }.in_nodes(plan.nodes.get(step).map_or(&[], |n| &n[..]));
            let _ = self.faults.send(TensorFault::Run(error));
        }
        Ok(plan)
    }

    /// Publishes the timings and non-finite values that were observed.
    fn report(&self, plan: &Arc<Plan>, batch: &Batch, watch: Watch) {
        if let Some(found) = watch.non_finite.flatten() {
            let step = &plan.report.steps[found.step];
            let error = RunError::NonFinite {
                op: step.op,
                ops: step.ops.clone(),
                site: step.site,
                nans: found.nans,
                infinities: found.infinities,
            };
            let error = error.in_nodes(plan.nodes.get(found.step).map_or(&[], |nodes| &nodes[..]));
            let _ = self.faults.send(TensorFault::Run(error));
        }
        let Some(clock) = watch.clock.filter(|clock| !clock.is_empty()) else { return };
        let nanos = |time: &Instant| time.saturating_duration_since(clock[0].0).as_nanos() as u64;
        let variant: Arc<str> = "".into();
        let launch = |(step, (start, end)): (usize, &(Instant, Instant))| TimedLaunch {
            step,
            variant: variant.clone(),
            pass: 0,
            start: nanos(start),
            end: nanos(end),
        };
        self.diagnostics.timing().record(&TimedBatch {
            backend: Backend::Cpu,
            frame: self.batches,
            report: plan.report.clone(),
            nodes: plan.nodes.clone(),
            models: step_models(plan, &batch.owners()),
            launches: clock.iter().enumerate().map(launch).collect(),
        });
    }

    fn answer(&self, plan: &Plan, batch: &Batch, requests: &mut [Option<ReadRequest>]) {
        for read in &plan.reads {
            let request = &mut requests[read.request as usize];
            if request.as_ref().is_none_or(ReadRequest::is_cancelled) {
                continue;
            }
            let words = read_words(plan, &read.from, &batch.slots, &self.scratch);
            let Some(request) = request.take() else { continue };
            match words {
                Ok(words) => {
                    self.let_go(&request, batch);
                    request.answer(&words);
                }
                Err(error) => {
                    request.fail(ReadError::Failed(error.clone()));
                    let _ = self.faults.send(TensorFault::Run(error));
                }
            }
        }
    }

    /// Frees the words of a storage that has moved to the GPU. They have already been copied.
    fn let_go(&self, request: &ReadRequest, batch: &Batch) {
        if let Some(storage) = request.destination()
            && batch.slots.iter().any(|slot| Arc::ptr_eq(slot, storage))
        {
            words_of(storage).write().unwrap_or_else(PoisonError::into_inner).begin(Vec::new());
        }
    }

    /// Storages whose content was lost with a device are recreated if the batch overwrites them entirely. Otherwise the
    /// batch fails.
    fn make_good(&mut self, batch: &Batch) -> Result<(), RunError> {
        if !batch.slots.iter().any(|storage| storage.is_lost()) {
            return Ok(());
        }
        let (_, plan) = self.plans.plan(&batch.structure, &batch.scalars);
        let elements: Vec<usize> = batch.slots.iter().map(|storage| storage.elements()).collect();
        for (storage, effect) in batch.slots.iter().zip(effects(&plan, &elements)) {
            if storage.is_lost() {
                if !effect.replaces {
                    return Err(RunError::Lost { tensor: storage.label() });
                }
                storage.begin_anew();
            }
        }
        Ok(())
    }

    /// Allocates the words of a storage and fills them with its initial content. Without memory for them, the storage
    /// keeps its initial content for a later attempt.
    fn make_resident(&mut self, storage: &Arc<Storage>) -> Result<(), RunError> {
        let Some(initial) = storage.take_initial() else { return Ok(()) };
        let Some(mut words) = zeroed(storage.words()) else {
            let requested = storage.words() as u64 * 4;
            storage.return_initial(initial, self.diagnostics.counters());
            return Err(RunError::OutOfMemory { what: storage.label(), requested });
        };
        if let Initial::Data(data) = &initial {
            words[..data.len()].copy_from_slice(data);
        }
        words_of(storage).write().unwrap_or_else(PoisonError::into_inner).begin(words);
        storage.count_host(self.diagnostics.counters());
        if let Initial::Generated(generator) = initial
            && storage.elements() > 0
        {
            let batch = Batch::new([generate(generator, storage)]);
            self.run(batch);
        }
        Ok(())
    }
}
