//! Runs batches on threads of their own, in order, away from the frame.

use crate::record::{Batch, generate};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use bevy::platform::time::Instant;
use bevy::prelude::*;
use crossbeam_channel::Sender;

use super::{Watch, read_words, run_plan, words_of};
use crate::error::{ReadError, RunError, TensorFault};
use crate::figures::{Count, TensorDiagnostics, TimedBatch, TimedLaunch};
use crate::ir::Backend;
use crate::kernel::CpuPool;
use crate::plan::{Plan, PlanCache, PlanLimits, effects, step_models};
use crate::readback::ReadRequest;
use crate::tensor::{Initial, Storage};

/// A launch on the CPU binds nothing, so only the length of a program bounds fusion.
const LIMITS: PlanLimits = PlanLimits { buffers: 64, alignment: 16, binding: usize::MAX, fuse: true };

/// The main world's end of the CPU backend.
#[derive(Resource)]
pub(crate) struct CpuExecutor {
    sender: async_channel::Sender<Task>,
}

/// What the worker is asked for.
enum Task {
    /// Work that was recorded.
    Run(Batch),
    /// To bring a storage's content to where work finds it.
    TakeIn(Arc<Storage>),
}

/// What the worker keeps between batches.
struct Worker {
    plans: PlanCache,
    scratch: Vec<u32>,
    pool: Arc<CpuPool>,
    /// Batches run.
    batches: u64,
    diagnostics: TensorDiagnostics,
    faults: Sender<TensorFault>,
}

impl CpuExecutor {
    pub(crate) fn new(fuse: bool, diagnostics: TensorDiagnostics, faults: Sender<TensorFault>) -> Self {
        let (sender, receiver) = async_channel::unbounded::<Task>();
        let pool = Arc::new(CpuPool::default().with_counters(diagnostics.counters().clone()));
        let mut worker = Worker {
            plans: PlanCache::new(PlanLimits { fuse, ..LIMITS }),
            scratch: Vec::new(),
            pool: pool.clone(),
            batches: 0,
            diagnostics,
            faults,
        };
        // A thread of its own, which ends when the app drops its end of the channel; the pool's threads help it.
        let work = move || {
            while let Ok(task) = receiver.recv_blocking() {
                match task {
                    Task::Run(batch) => worker.run(batch),
                    Task::TakeIn(storage) => worker.make_resident(&storage),
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("tensor cpu".to_owned()).spawn(work) {
            error!("the CPU backend has no thread: {error}");
        }
        Self { sender }
    }

    /// Queues a frame's work. The queue is unbounded: nothing recorded is lost.
    pub(crate) fn send(&self, batch: Batch) {
        // Fails only when the worker is gone; the requests inside then answer themselves.
        let _ = self.sender.try_send(Task::Run(batch));
    }

    /// Takes a storage of this backend in before work needs it, so that the first work is not late.
    pub(crate) fn take_in(&self, storage: Arc<Storage>) {
        let _ = self.sender.try_send(Task::TakeIn(storage));
    }
}

impl Worker {
    fn run(&mut self, mut batch: Batch) {
        if let Err(error) = self.make_good(&batch) {
            for request in batch.requests {
                request.fail(ReadError::Failed(error.clone()));
            }
            let _ = self.faults.send(TensorFault::Run(error));
            return;
        }
        for storage in &batch.slots {
            self.make_resident(storage);
        }
        let mut requests: Vec<Option<ReadRequest>> =
            core::mem::take(&mut batch.requests).into_iter().map(Some).collect();
        let counters = self.diagnostics.counters().clone();
        counters.readbacks.add(requests.len() as u64);
        // A bug in a kernel must not take all later work with it.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let plan = self.run_plan(&batch)?;
            self.answer(&plan, &batch, &mut requests);
            Ok(())
        }));
        let outcome = outcome.unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            Err(RunError::Device(text.unwrap_or_else(|| "a CPU kernel panicked".to_owned())))
        });
        if let Err(error) = outcome {
            for request in requests.into_iter().flatten() {
                request.fail(ReadError::Failed(error.clone()));
            }
            let _ = self.faults.send(TensorFault::Run(error));
        }
    }

    fn run_plan(&mut self, batch: &Batch) -> Result<Arc<Plan>, RunError> {
        let counters = self.diagnostics.counters().clone();
        let (built, hits) = (self.plans.built, self.plans.hits);
        let (_, plan) = self.plans.plan(&batch.structure, &batch.scalars);
        self.plans.take_dropped();
        counters.plans_built.add(self.plans.built - built);
        counters.plan_hits.add(self.plans.hits - hits);
        self.diagnostics.set_last_plan(Backend::Cpu, &plan.report);
        let mut watch = Watch {
            clock: self.diagnostics.timings_on().then(Vec::new),
            non_finite: self.diagnostics.debug().then_some(None),
        };
        let (slots, scratch) = (&batch.slots, &mut self.scratch);
        let clamped = run_plan(&plan, slots, &batch.host, &batch.scalars, scratch, &self.pool, &mut watch)?;
        self.batches += 1;
        self.report(&plan, batch, watch);
        counters.cpu_steps.add(plan.steps.len() as u64);
        counters.batches_run.add(1);
        for (step, count) in clamped {
            let op = plan.report.steps[step].op;
            let _ = self.faults.send(TensorFault::Run(RunError::IndexOutOfRange { op, count }));
        }
        Ok(plan)
    }

    /// Hands in what was watched.
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
            if let Some(request) = request.take() {
                request.answer(&words);
            }
        }
    }

    /// Storages that a lost device took the content of begin anew if the batch writes all of them; else it cannot run.
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

    /// Gives a storage its words.
    fn make_resident(&mut self, storage: &Arc<Storage>) {
        let Some(initial) = storage.take_initial() else { return };
        let mut words = vec![0; storage.words()];
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
    }
}
