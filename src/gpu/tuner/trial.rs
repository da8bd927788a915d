//! A trial: compares the variants of one kernel.

use core::time::Duration;
use std::sync::Arc;

use super::Job;
use super::measure::{MAX_TOGETHER, Measured};
use super::test_data::{TestMemory, agree};
use crate::error::RunError;
use crate::gpu::buffers::{DeviceBuffer, Purpose};
use crate::gpu::compile::Pipeline;
use crate::gpu::compiler::{Compiler, PipelineEntry};
use crate::gpu::device::Gpu;
use crate::kernel::{Caps, Launch, Variant, lower, variants};
use crate::pipelines::{TensorPipelines, TuneOutcome, TunedChoice, TunedForm, fastest, median};

/// A variant that takes more than this many times as long as the default, plus [`BLUR`], is measured only once.
const SLOWER: u64 = 3;
/// Maximum error of a single timing, in nanoseconds: on a busy machine the threads of a software adapter have to wait.
const BLUR: u64 = 2_000_000;
/// Duration of a sample, in nanoseconds. Short launches are repeated, so that the resolution of the clock matters
/// little.
const SAMPLE: u64 = 8_000_000;
/// Maximum number of launches per sample.
const MAX_REPEATS: u64 = 64;
/// Priority of compilation: after everything that the app has requested.
const PRIORITY: i32 = i32::MIN;

/// One variant of the kernel.
pub(super) struct Form {
    variant: Variant,
    pub launch: Launch,
    entry: Arc<PipelineEntry>,
    pub params: Arc<DeviceBuffer>,
    pub group: Option<wgpu::BindGroup>,
    pub pipeline: Option<Pipeline>,
    /// Nanoseconds per launch.
    samples: Vec<u64>,
    /// Number of launches per sample.
    pub repeats: u64,
    /// Expected nanoseconds per launch.
    estimate: u64,
    /// Why the variant is excluded.
    left_out: Option<String>,
    /// So slow that it is measured only once.
    hopeless: bool,
}

enum Stage {
    Compile,
    /// The index of the form to check next.
    Check(usize),
    Measure,
}

/// The next action of a trial.
pub(super) enum Turn {
    Wait,
    Run { forms: Vec<usize>, check: bool },
    Done,
}

pub(super) struct Trial {
    job: Job,
    /// The default variant is the first.
    pub(super) forms: Vec<Form>,
    pub(super) memory: Vec<TestMemory>,
    stage: Stage,
    /// The forms whose results are in flight.
    pub(super) flying: Vec<usize>,
    /// The results of the default variant.
    reference: Option<Vec<u32>>,
}

impl Trial {
    pub(super) fn new(job: Job, gpu: &Gpu, compiler: &mut Compiler, caps: &Caps) -> Result<Self, RunError> {
        let memory = TestMemory::of(&job.step, gpu)?;
        let mut forms = Vec::new();
        for variant in variants(&job.step, caps) {
            let caps = Caps { variant: Some(variant), ..*caps };
            if let Some(launch) = lower(&job.step, &caps) {
                forms.push(Form::new(variant, launch, &job.scalars, gpu, compiler)?);
            }
        }
        Ok(Self { job, forms, memory, stage: Stage::Compile, flying: Vec::new(), reference: None })
    }

    pub(super) fn is_in_flight(&self) -> bool {
        !self.flying.is_empty()
    }

    /// Takes in the results of a submission. `None` if the device was lost.
    pub(super) fn take(&mut self, measured: Option<Measured>) {
        let flying = core::mem::take(&mut self.flying);
        let Some(Measured { nanos, results }) = measured else {
            flying.iter().for_each(|&form| self.forms[form].left_out = Some("the device was lost".to_owned()));
            return;
        };
        let check = matches!(self.stage, Stage::Check(_));
        for (&at, nanos) in flying.iter().zip(nanos) {
            let form = &mut self.forms[at];
            form.estimate = nanos / form.repeats;
            if !check {
                form.samples.push(form.estimate);
            }
        }
        if let (Stage::Check(next), Some(&at)) = (&mut self.stage, flying.first()) {
            *next += 1;
            self.check_results(at, results);
        }
    }

    /// Compares results with those of the first form that was checked.
    fn check_results(&mut self, at: usize, results: Vec<u32>) {
        let Some(reference) = &self.reference else {
            self.reference = Some(results);
            return;
        };
        let written = self.memory.iter().filter(|memory| memory.written);
        if !agree(written.map(|memory| (memory.dtype, memory.words.len())), reference, &results) {
            self.forms[at].left_out = Some("its results differ from the default's".to_owned());
        }
    }

    /// Determines the next action. Nothing may be in flight.
    pub(super) fn next_turn(&mut self) -> Turn {
        if let Stage::Compile = self.stage {
            if !self.take_pipelines() {
                return Turn::Wait;
            }
            self.stage = Stage::Check(0);
        }
        if let Stage::Check(next) = &mut self.stage {
            while self.forms.get(*next).is_some_and(|form| form.left_out.is_some()) {
                *next += 1;
            }
            if *next < self.forms.len() {
                return Turn::Run { forms: vec![*next], check: true };
            }
            self.begin_measuring();
        }
        self.exclude_slow();
        // Without the default there is nothing to compare with.
        if self.forms.first().is_none_or(|form| form.left_out.is_some()) {
            return Turn::Done;
        }
        match self.next_samples() {
            forms if forms.is_empty() => Turn::Done,
            forms => Turn::Run { forms, check: false },
        }
    }

    /// Takes the compiled pipelines. Returns whether all are there.
    fn take_pipelines(&mut self) -> bool {
        for form in &mut self.forms {
            match form.entry.get() {
                None => return false,
                Some(Ok(pipeline)) => form.pipeline = Some(pipeline.clone()),
                Some(Err(error)) => form.left_out = Some(error.to_string()),
            }
        }
        true
    }

    /// Starts the last stage, with enough launches per sample for precise timings.
    fn begin_measuring(&mut self) {
        self.stage = Stage::Measure;
        let sample = SAMPLE.min(self.job.settings.budget.as_nanos().min(u128::from(u64::MAX)) as u64);
        for form in &mut self.forms {
            form.repeats = (sample / form.estimate.max(1)).clamp(1, MAX_REPEATS);
        }
    }

    /// Whether `nanos` of work fit in the budget of a frame.
    fn fits(&self, nanos: u64) -> bool {
        Duration::from_nanos(nanos) <= self.job.settings.budget
    }

    /// Excludes forms that exceed the budget of a frame. Forms that are much slower than the default keep their only
    /// timing.
    fn exclude_slow(&mut self) {
        let budget = self.job.settings.budget;
        for form in self.forms.iter_mut().filter(|form| form.left_out.is_none()) {
            let estimate = Duration::from_nanos(form.estimate);
            if estimate > budget {
                form.left_out = Some(format!("it takes {estimate:?}, more than the budget of {budget:?}"));
            }
        }
        let bound = self.forms.first().map_or(0, |form| form.estimate) * SLOWER + BLUR;
        for form in self.forms.iter_mut().skip(1).filter(|form| form.left_out.is_none() && form.samples.is_empty()) {
            if form.estimate > bound {
                form.samples.push(form.estimate);
                form.hopeless = true;
            }
        }
    }

    /// The forms to measure in this frame, in turns, as many as fit in the budget. Empty if all have enough samples.
    fn next_samples(&self) -> Vec<usize> {
        let (mut turns, mut nanos) = (Vec::new(), 0);
        let measured = |form: &Form| form.left_out.is_none() && !form.hopeless;
        for round in 0..self.job.settings.rounds.max(1) {
            for (i, form) in self.forms.iter().enumerate().filter(|(_, form)| measured(form)) {
                if form.samples.len() > round {
                    continue;
                }
                let cost = form.estimate * form.repeats;
                if turns.len() >= MAX_TOGETHER || !(turns.is_empty() || self.fits(nanos + cost)) {
                    return turns;
                }
                nanos += cost;
                turns.push(i);
            }
        }
        turns
    }

    /// Writes the fastest variant into the tuning table. Returns whether the choice has changed.
    pub(super) fn conclude(self, shared: &TensorPipelines) -> bool {
        let medians: Vec<Option<u64>> =
            self.forms.iter().map(|form| median(&form.samples).filter(|_| form.left_out.is_none())).collect();
        let Some(default) = self.forms.first() else { return false };
        let best = fastest(&medians);
        let chosen = best.map_or(default.variant, |best| self.forms[best].variant);
        let before = shared.update_table(|table| table.get(&self.job.bucket)).unwrap_or(default.variant);
        if let Some(nanos) = best.and_then(|best| medians[best]) {
            let choice = TunedChoice { variant: chosen.to_string(), time: Duration::from_nanos(nanos) };
            shared.update_table(|table| table.choices.insert(self.job.bucket.clone(), choice));
        }
        let form = |(form, median): (&Form, &Option<u64>)| TunedForm {
            variant: form.variant.to_string(),
            time: median.map(Duration::from_nanos),
            left_out: form.left_out.clone(),
        };
        shared.add_outcome(TuneOutcome {
            kernel: self.job.step.kernel.spec().name(),
            default: default.variant.to_string(),
            chosen: chosen.to_string(),
            forms: self.forms.iter().zip(&medians).map(form).collect(),
            bucket: self.job.bucket,
        });
        chosen != before
    }
}

impl Form {
    fn new(
        variant: Variant,
        launch: Launch,
        scalars: &[u32],
        gpu: &Gpu,
        compiler: &mut Compiler,
    ) -> Result<Self, RunError> {
        let entry = compiler.request(&launch, &variant.to_string().into(), PRIORITY);
        let mut words = launch.params.clone();
        for &(word, scalar) in &launch.patches {
            words[word as usize] = scalars.get(scalar as usize).copied().unwrap_or(0);
        }
        let params = gpu.allocate(Purpose::Plan, words.len())?;
        gpu.write(&params.buffer, 0, &words);
        Ok(Self {
            variant,
            launch,
            entry,
            params,
            group: None,
            pipeline: None,
            samples: Vec::new(),
            repeats: 1,
            estimate: 0,
            left_out: None,
            hopeless: false,
        })
    }
}
