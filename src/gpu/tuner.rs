//! Measures the variants of kernels, a little every frame, and writes the fastest into the tuning table.
//!
//! A trial measures one kernel on memory of its own. It has three stages. At most one submission per frame, and none
//! while one is in flight:
//!
//! 1. All variants are compiled in the background.
//! 2. Each variant runs twice. The second run is timed, and its results are compared with those of the default variant.
//! 3. The variants that are not much slower than the default take turns until each has enough samples, as many per
//!    frame as the budget allows.

mod measure;
mod test_data;
mod trial;

use std::collections::VecDeque;

use bevy::platform::collections::HashSet;
use bevy::prelude::*;
use crossbeam_channel::{Receiver, Sender};

use self::measure::{Clock, Measured};
use self::trial::{Trial, Turn};
use super::compiler::Compiler;
use super::device::Gpu;
use crate::error::RunError;
use crate::kernel::{Caps, Step, bucket, variants};
use crate::pipelines::TensorPipelines;
use crate::record::TuneSettings;

/// Maximum number of steps that wait to be tuned. Further ones are left with their default.
const LONGEST_QUEUE: usize = 1024;

/// A step to tune.
struct Job {
    bucket: String,
    step: Step,
    scalars: Vec<u32>,
    settings: TuneSettings,
}

/// Tunes kernels, on request or in the background.
pub(crate) struct Tuner {
    waiting: VecDeque<Job>,
    running: Option<Trial>,
    /// Whether the device supports timestamps.
    supported: bool,
    /// Nanoseconds per tick.
    period: f64,
    clock: Option<Clock>,
    /// Buckets that have been queued before.
    seen: HashSet<String>,
    sender: Sender<Option<Measured>>,
    receiver: Receiver<Option<Measured>>,
}

impl Tuner {
    pub(crate) fn new(gpu: &Gpu) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self {
            waiting: VecDeque::new(),
            running: None,
            supported: gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY),
            period: f64::from(gpu.queue.get_timestamp_period()),
            clock: None,
            seen: HashSet::default(),
            sender,
            receiver,
        }
    }

    /// Queues the steps of a plan that have several variants and have not been measured.
    pub(crate) fn add(
        &mut self,
        steps: &[Step],
        scalars: &[u32],
        settings: TuneSettings,
        caps: &Caps,
        shared: &TensorPipelines,
    ) {
        if !self.supported {
            return;
        }
        // Launches with loops of users count faults, for which trials have no memory.
        for step in steps.iter().filter(|step| variants(step, caps).len() > 1 && step.loops().is_none()) {
            let bucket = bucket(step);
            let known = shared.update_table(|table| table.choices.contains_key(&bucket));
            let queued = self.waiting.iter().any(|job| job.bucket == bucket);
            if queued
                || self.waiting.len() >= LONGEST_QUEUE
                || (!settings.again && (known || !self.seen.insert(bucket.clone())))
            {
                continue;
            }
            self.waiting.push_back(Job { bucket, step: step.clone(), scalars: scalars.to_vec(), settings });
        }
        shared.set_tuning_now(self.len());
    }

    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }

    /// Continues the running trial or starts the next. Returns whether the choice of a variant has changed.
    pub(crate) fn advance(
        &mut self,
        gpu: &Gpu,
        compiler: &mut Compiler,
        caps: &Caps,
        shared: &TensorPipelines,
    ) -> bool {
        if self.running.is_none() {
            let Some(job) = self.waiting.pop_front() else { return false };
            match Trial::new(job, gpu, compiler, caps) {
                Ok(trial) => self.running = Some(trial),
                Err(error) => warn!("a kernel is not tuned: {error}"),
            }
        }
        let Some(mut trial) = self.running.take() else { return false };
        let changed = match self.advance_trial(&mut trial, gpu) {
            Ok(true) => {
                if self.waiting.is_empty() {
                    self.clock = None;
                }
                trial.conclude(shared)
            }
            Ok(false) => {
                self.running = Some(trial);
                false
            }
            Err(error) => {
                warn!("a kernel is not tuned: {error}");
                false
            }
        };
        shared.set_tuning_now(self.len());
        changed
    }

    /// Takes in the results that have arrived, and submits the next measurement. Returns whether the trial has ended.
    fn advance_trial(&mut self, trial: &mut Trial, gpu: &Gpu) -> Result<bool, RunError> {
        for measured in self.receiver.try_iter() {
            trial.take(measured);
        }
        if trial.is_in_flight() {
            return Ok(false);
        }
        match trial.next_turn() {
            Turn::Wait => Ok(false),
            Turn::Done => Ok(true),
            Turn::Run { forms, check } => {
                let clock = self.clock.get_or_insert_with(|| Clock::new(gpu, self.period));
                trial.submit(gpu, clock, forms, check, &self.sender)?;
                Ok(false)
            }
        }
    }
}
