//! Measures the forms of kernels on memory of its own, a little every frame, and puts the fastest into the table.
//!
//! A job goes through these stages, each at most one submission a frame and none while one is under way: all forms are compiled in the background;
//! each is run twice, the second time by the clock, and its results are compared with the default's; then all that are not far slower take turns until
//! each has enough samples, as many in a frame as the budget allows.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bevy::platform::collections::HashSet;
use bevy::prelude::*;
use crossbeam_channel::{Receiver, Sender};

use super::buffers::{DeviceBuffer, Gpu, Purpose};
use super::pipelines::{Pipeline, PipelineEntry, Pipelines};
use crate::error::RunError;
use crate::ir::{DType, Source};
use crate::kernel::{Caps, Launch, Step, Variant, bucket, lower, variants};
use crate::pipelines::{TensorPipelines, TuneOutcome, TunedChoice, TunedForm, fastest, median};
use crate::record::TuneSettings;

/// Launches that are measured in one submission at most.
const TOGETHER: usize = 32;
/// Bytes of memory that a job may take.
const ROOM: usize = 256 << 20;
/// Words of a staging buffer before the results: the timestamps.
const STAMPS: usize = TOGETHER * 4;
/// How many times as long as the default a form takes that is out of the race, beyond what [`BLUR`] explains.
const SLOWER: u64 = 3;
/// Nanoseconds by which a single reading of the clock may be off: a busy machine lets a software adapter's threads wait.
const BLUR: u64 = 2_000_000;
/// Nanoseconds that a sample should take, so that the clock's readings are of little weight; short launches are repeated.
const SAMPLE: u64 = 8_000_000;
/// Launches of one sample at most.
const REPEATS: u64 = 64;
/// How forms are compiled: after all that an app asked for.
const PRIORITY: i32 = i32::MIN;

/// A step to measure.
struct Job {
    bucket: String,
    step: Step,
    scalars: Vec<u32>,
    settings: TuneSettings,
}

struct Form {
    variant: Variant,
    launch: Launch,
    entry: Arc<PipelineEntry>,
    params: Arc<DeviceBuffer>,
    group: Option<wgpu::BindGroup>,
    pipeline: Option<Pipeline>,
    samples: Vec<u64>,
    /// Launches of a sample.
    repeats: u64,
    /// Nanoseconds a launch is expected to take.
    estimate: u64,
    left_out: Option<String>,
    /// So slow that it is measured once.
    hopeless: bool,
}

enum Stage {
    Compile,
    Check(usize),
    Measure,
}

struct Running {
    job: Job,
    forms: Vec<Form>,
    memory: Vec<Memory>,
    stage: Stage,
    /// The forms whose results are under way.
    flying: Vec<usize>,
    reference: Option<Vec<u32>>,
}

/// What stands in for a memory that the step touches.
struct Memory {
    source: Source,
    dtype: DType,
    written: bool,
    words: Vec<u32>,
    buffer: Arc<DeviceBuffer>,
}

/// What a submission found.
struct Measured {
    nanos: Vec<u64>,
    /// The written memories, where they were asked for.
    results: Vec<u32>,
}

/// Measures kernels on request or in the background.
pub(crate) struct Tuner {
    waiting: VecDeque<Job>,
    running: Option<Running>,
    /// Whether the device has a clock.
    supported: bool,
    period: f64,
    queries: Option<(wgpu::QuerySet, wgpu::Buffer)>,
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
            queries: None,
            seen: HashSet::default(),
            sender,
            receiver,
        }
    }

    /// Queues the steps of a plan that have a choice and have not been measured.
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
        for step in steps.iter().filter(|step| variants(step, caps).len() > 1) {
            let bucket = bucket(step);
            let known = shared.update_table(|table| table.choices.contains_key(&bucket));
            let queued = self.waiting.iter().any(|job| job.bucket == bucket);
            if queued || (!settings.again && (known || !self.seen.insert(bucket.clone()))) {
                continue;
            }
            self.waiting.push_back(Job { bucket, step: step.clone(), scalars: scalars.to_vec(), settings });
        }
        shared.set_tuning_now(self.len());
    }

    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }

    /// Goes on with the work; whether a kernel has another form now than before.
    pub(crate) fn advance(
        &mut self,
        gpu: &Gpu,
        pipelines: &mut Pipelines,
        caps: &Caps,
        shared: &TensorPipelines,
    ) -> bool {
        if self.running.is_none() {
            let Some(job) = self.waiting.pop_front() else { return false };
            match Running::new(job, gpu, pipelines, caps) {
                Ok(running) => self.running = Some(running),
                Err(error) => warn!("a kernel is not tuned: {error}"),
            }
        }
        let Some(running) = &mut self.running else { return false };
        for measured in self.receiver.try_iter() {
            running.take(measured);
        }
        let mut done = false;
        if running.flying.is_empty() {
            let turn = running.turn();
            match turn {
                Turn::Wait => {}
                Turn::Done => done = true,
                Turn::Run { forms, check } => {
                    if self.queries.is_none() {
                        self.queries = Some(queries(gpu));
                    }
                    if let Some(queries) = &self.queries
                        && let Err(error) = running.submit(gpu, queries, forms, check, self.period, &self.sender)
                    {
                        warn!("a kernel is not tuned: {error}");
                        self.running = None;
                        shared.set_tuning_now(self.len());
                        return false;
                    }
                }
            }
        }
        let mut changed = false;
        if done && let Some(running) = self.running.take() {
            changed = running.conclude(shared);
            if self.waiting.is_empty() {
                self.queries = None;
            }
        }
        shared.set_tuning_now(self.len());
        changed
    }
}

/// What a job does next.
enum Turn {
    Wait,
    Run { forms: Vec<usize>, check: bool },
    Done,
}

impl Running {
    fn new(job: Job, gpu: &Gpu, pipelines: &mut Pipelines, caps: &Caps) -> Result<Self, RunError> {
        let mut memory: Vec<Memory> = Vec::new();
        let reads = job.step.reads().map(|operand| (operand, false));
        let mut room = 0;
        for (operand, written) in job.step.outputs.iter().map(|operand| (operand, true)).chain(reads) {
            let words = operand.dtype.words(operand.layout.span().end).next_multiple_of(4).max(4);
            match memory.iter_mut().find(|memory| memory.source == operand.source) {
                Some(memory) if memory.words.len() >= words => {}
                Some(memory) => memory.words = noise(operand.dtype, words),
                None => {
                    room += words * 4;
                    if room > ROOM {
                        let (requested, available) = (room as u64, ROOM as u64);
                        return Err(RunError::Limit { what: "tuning".to_owned(), requested, available });
                    }
                    let buffer = gpu.allocate(Purpose::Tensor, words)?;
                    let (source, dtype) = (operand.source, operand.dtype);
                    memory.push(Memory { source, dtype, written, words: noise(dtype, words), buffer });
                }
            }
        }
        for memory in &mut memory {
            if memory.buffer.bytes < memory.words.len() as u64 * 4 {
                memory.buffer = gpu.allocate(Purpose::Tensor, memory.words.len())?;
            }
            gpu.write(&memory.buffer.buffer, 0, &memory.words);
        }
        let mut forms = Vec::new();
        for variant in variants(&job.step, caps) {
            let caps = Caps { variant: Some(variant), ..*caps };
            let Some(launch) = lower(&job.step, &caps) else { continue };
            let entry = pipelines.request(&launch, &variant.to_string().into(), PRIORITY);
            let mut words = launch.params.clone();
            for &(word, scalar) in &launch.patches {
                words[word as usize] = job.scalars.get(scalar as usize).copied().unwrap_or(0);
            }
            let params = gpu.allocate(Purpose::Plan, words.len())?;
            gpu.write(&params.buffer, 0, &words);
            forms.push(Form {
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
            });
        }
        Ok(Self { job, forms, memory, stage: Stage::Compile, flying: Vec::new(), reference: None })
    }

    fn take(&mut self, measured: Option<Measured>) {
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
        if let (Stage::Check(form), Some(&at)) = (&mut self.stage, flying.first()) {
            match &self.reference {
                None => self.reference = Some(results),
                Some(reference) => {
                    let written = self.memory.iter().filter(|memory| memory.written);
                    if !agree(written.map(|memory| (memory.dtype, memory.words.len())), reference, &results) {
                        self.forms[at].left_out = Some("its results differ".to_owned());
                    }
                }
            }
            *form += 1;
        }
    }

    /// What to do in this frame, if nothing is under way.
    fn turn(&mut self) -> Turn {
        if let Stage::Compile = self.stage {
            for form in &mut self.forms {
                match form.entry.get() {
                    None => return Turn::Wait,
                    Some(Ok(pipeline)) => form.pipeline = Some(pipeline.clone()),
                    Some(Err(error)) => form.left_out = Some(error.to_string()),
                }
            }
            self.stage = Stage::Check(0);
        }
        let budget = self.job.settings.budget;
        let fits = |nanos: u64| Duration::from_nanos(nanos) <= budget;
        if let Stage::Check(next) = &mut self.stage {
            while self.forms.get(*next).is_some_and(|form| form.left_out.is_some()) {
                *next += 1;
            }
            if *next < self.forms.len() {
                return Turn::Run { forms: vec![*next], check: true };
            }
            self.stage = Stage::Measure;
            let sample = SAMPLE.min(budget.as_nanos().min(u128::from(u64::MAX)) as u64);
            for form in &mut self.forms {
                form.repeats = (sample / form.estimate.max(1)).clamp(1, REPEATS);
            }
        }
        for form in self.forms.iter_mut().filter(|form| form.left_out.is_none() && !fits(form.estimate)) {
            form.left_out = Some(format!("{:?} is more than the budget", Duration::from_nanos(form.estimate)));
        }
        // What took several times as long as the default need not be measured more closely.
        let bound = self.forms.first().map_or(0, |form| form.estimate) * SLOWER + BLUR;
        for form in self.forms.iter_mut().skip(1).filter(|form| form.left_out.is_none() && form.samples.is_empty()) {
            if form.estimate > bound {
                form.samples.push(form.estimate);
                form.hopeless = true;
            }
        }
        // Without the default there is nothing to be better than.
        if self.forms.first().is_none_or(|form| form.left_out.is_some()) {
            return Turn::Done;
        }
        let (mut turns, mut nanos) = (Vec::new(), 0);
        for round in 0..self.job.settings.rounds.max(1) {
            for (i, form) in self.forms.iter().enumerate().filter(|(_, form)| form.left_out.is_none() && !form.hopeless)
            {
                if form.samples.len() <= round
                    && turns.len() < TOGETHER
                    && (turns.is_empty() || fits(nanos + form.estimate * form.repeats))
                {
                    nanos += form.estimate * form.repeats;
                    turns.push(i);
                } else if form.samples.len() <= round {
                    return Turn::Run { forms: turns, check: false };
                }
            }
        }
        if turns.is_empty() { Turn::Done } else { Turn::Run { forms: turns, check: false } }
    }

    /// Runs forms by the clock. With `check`, the (single) form is run twice from the same start, and its results come back too.
    fn submit(
        &mut self,
        gpu: &Gpu,
        (set, resolved): &(wgpu::QuerySet, wgpu::Buffer),
        forms: Vec<usize>,
        check: bool,
        period: f64,
        sender: &Sender<Option<Measured>>,
    ) -> Result<(), RunError> {
        let written = || self.memory.iter().filter(|memory| memory.written);
        if check {
            written().for_each(|memory| gpu.write(&memory.buffer.buffer, 0, &memory.words));
        }
        for &at in &forms {
            if self.forms[at].group.is_none() {
                self.forms[at].group = Some(self.group(gpu, &self.forms[at])?);
            }
        }
        let label = Some("tensor:tuning");
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label });
        let run = |encoder: &mut wgpu::CommandEncoder, at: usize, query: Option<u32>| {
            let form = &self.forms[at];
            let timestamp_writes = query.map(|query| wgpu::ComputePassTimestampWrites {
                query_set: set,
                beginning_of_pass_write_index: Some(query * 2),
                end_of_pass_write_index: Some(query * 2 + 1),
            });
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes });
            if let (Some(pipeline), Some(group)) = (&form.pipeline, &form.group) {
                pass.set_pipeline(&pipeline.pipeline);
                pass.set_bind_group(0, group, &[]);
                let [x, y, z] = form.launch.workgroups;
                for _ in 0..form.repeats {
                    pass.dispatch_workgroups(x, y, z);
                }
            }
        };
        for (query, &at) in forms.iter().enumerate() {
            if check {
                // Some drivers finish compiling only here.
                run(&mut encoder, at, None);
            }
            run(&mut encoder, at, Some(query as u32));
        }
        let count = forms.len() * 2;
        encoder.resolve_query_set(set, 0..count as u32, resolved, 0);
        let results: usize = if check { written().map(|memory| memory.words.len()).sum() } else { 0 };
        let staging = gpu.allocate(Purpose::Staging, STAMPS + results)?;
        encoder.copy_buffer_to_buffer(resolved, 0, &staging.buffer, 0, count as u64 * 8);
        if check {
            let mut at = STAMPS;
            for memory in written() {
                let bytes = memory.words.len() as u64 * 4;
                encoder.copy_buffer_to_buffer(&memory.buffer.buffer, 0, &staging.buffer, at as u64 * 4, bytes);
                at += memory.words.len();
            }
        }
        gpu.queue.submit([encoder.finish()]);
        let (sender, bytes) = (sender.clone(), (STAMPS + results) as u64 * 4);
        let buffer = staging.buffer.clone();
        buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| {
            let measured = result.is_ok().then(|| {
                let view = staging.buffer.slice(..bytes).get_mapped_range();
                let ticks: &[u64] = bytemuck::cast_slice(&view[..count * 8]);
                let nanos = |pair: &[u64]| (pair[1].saturating_sub(pair[0]) as f64 * period) as u64;
                let nanos = ticks.chunks_exact(2).map(nanos).collect();
                let results = bytemuck::cast_slice::<_, u32>(&view)[STAMPS..].to_vec();
                drop(view);
                staging.buffer.unmap();
                Measured { nanos, results }
            });
            // The executor may be gone.
            let _ = sender.send(measured);
        });
        self.flying = forms;
        Ok(())
    }

    fn group(&self, gpu: &Gpu, form: &Form) -> Result<wgpu::BindGroup, RunError> {
        let missing = || RunError::Device(format!("kernel {} has nothing to bind", form.launch.name));
        let layout = &form.pipeline.as_ref().ok_or_else(missing)?.layout;
        let mut buffers: Vec<(wgpu::Buffer, u64)> =
            vec![(form.params.buffer.clone(), form.launch.params.len() as u64 * 4)];
        for binding in &form.launch.bindings {
            let memory = self.memory.iter().find(|memory| memory.source == binding.source).ok_or_else(missing)?;
            buffers.push((memory.buffer.buffer.clone(), memory.words.len() as u64 * 4));
        }
        let entries: Vec<wgpu::BindGroupEntry> = buffers
            .iter()
            .enumerate()
            .map(|(i, (buffer, bytes))| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: 0,
                    size: core::num::NonZeroU64::new(*bytes),
                }),
            })
            .collect();
        let label = format!("tensor:tuning {}", form.launch.name);
        Ok(gpu.device.create_bind_group(&wgpu::BindGroupDescriptor { label: Some(&label), layout, entries: &entries }))
    }

    /// Writes the fastest into the table; whether that changes anything.
    fn conclude(self, shared: &TensorPipelines) -> bool {
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

fn queries(gpu: &Gpu) -> (wgpu::QuerySet, wgpu::Buffer) {
    let (label, count) = (Some("tensor:tuning"), TOGETHER as u32 * 2);
    let ty = wgpu::QueryType::Timestamp;
    let set = gpu.device.create_query_set(&wgpu::QuerySetDescriptor { label, ty, count });
    let resolved = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label,
        size: u64::from(count) * 8,
        usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    });
    (set, resolved)
}

/// Words that look random and are the same in every run: numbers between -1 and 1 for floats, any bits for others.
fn noise(dtype: DType, words: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let unit = |bits: u32| (bits >> 8) as f32 / 8_388_608.0 - 1.0;
    let half = |bits: u32| u32::from(half::f16::from_f32(unit(bits)).to_bits());
    (0..words)
        .map(|_| match dtype {
            DType::F32 => unit(next()).to_bits(),
            DType::F16 => half(next()) | half(next()) << 16,
            _ => next(),
        })
        .collect()
}

/// Whether two results are the same, but for what another order of additions may change.
fn agree(memories: impl Iterator<Item = (DType, usize)>, a: &[u32], b: &[u32]) -> bool {
    let near = |a: f32, b: f32, tolerance: f32| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * a.abs().max(1.0)
    };
    let half = |word: u32| half::f16::from_bits(word as u16).to_f32();
    let mut at = 0;
    for (dtype, words) in memories {
        let pairs = a[at..at + words].iter().zip(&b[at..at + words]);
        at += words;
        let same = pairs.into_iter().all(|(&a, &b)| match dtype {
            DType::F32 => near(f32::from_bits(a), f32::from_bits(b), 1e-3),
            DType::F16 => near(half(a), half(b), 1e-2) && near(half(a >> 16), half(b >> 16), 1e-2),
            _ => a == b,
        });
        if !same {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_agree_up_to_rounding_and_not_beyond() {
        let words = |values: [f32; 2]| values.map(f32::to_bits);
        let f32s = || [(DType::F32, 2)].into_iter();
        assert!(agree(f32s(), &words([1.0, f32::NAN]), &words([1.0001, f32::NAN])));
        assert!(!agree(f32s(), &words([1.0, 0.0]), &words([1.01, 0.0])));
        assert!(!agree([(DType::I32, 2)].into_iter(), &[1, 2], &[1, 3]));
        assert!(noise(DType::F32, 1000).iter().all(|&word| f32::from_bits(word).abs() <= 1.0));
    }
}
