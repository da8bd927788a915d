//! All that the panels show, as plain data.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bevy::platform::collections::{HashMap, HashSet};
use bevy::prelude::*;

use super::log::LogEntry;
use super::values::TensorValues;
use crate::figures::{PlanReport, PoolClass, TensorFigures, TimingReport, TimingSource};
use crate::ir::{Backend, DType, Shape};
use crate::memory::{MemoryAdvice, MemorySettings, ModelUsage};
use crate::pipelines::{PipelineReport, TuneOutcome};
use crate::support::TensorSupport;
use crate::tensor::TensorUsage;

/// Memory samples kept.
pub(super) const SAMPLES: usize = 600;
/// Times of a kernel kept for its small chart.
pub(super) const SPARKS: usize = 60;

/// What tensors cost and where time goes, at one moment. The plugin fills this resource a few times a second while the inspector is open; panels
/// read nothing else.
#[derive(Resource, Clone, Debug, Default)]
pub struct InspectorSnapshot {
    /// Grows with every change.
    pub revision: u64,
    /// The app's real time.
    pub time: Duration,
    /// Where work runs.
    pub support: Option<TensorSupport>,
    /// Totals.
    pub figures: TensorFigures,
    /// What a frame costs.
    pub frame: FrameCost,
    /// What the app decided about memory.
    pub settings: MemorySettings,
    /// Whether debug mode is on.
    pub debug: bool,
    /// Where times come from, by backend.
    pub sources: [(Option<Backend>, TimingSource); 2],
    /// Memory over time, oldest first.
    pub history: VecDeque<MemorySample>,
    /// Models with tensors, and one row for tensors of no model.
    pub models: Vec<ModelRow>,
    /// Every tensor.
    pub tensors: Vec<TensorRow>,
    /// Device and staging buffers by size.
    pub pool: Vec<PoolClass>,
    /// What could be saved, if it was asked for.
    pub advice: Option<MemoryAdvice>,
    /// How long kernels take.
    pub timings: Option<TimingReport>,
    /// The latest times of each kernel in milliseconds, oldest first.
    pub kernel_history: HashMap<KernelKey, VecDeque<f32>>,
    /// Compiled kernels.
    pub pipelines: PipelineReport,
    /// What the tuner measured.
    pub tuned: Vec<TuneOutcome>,
    /// The text of the selected pipeline.
    pub source: Option<(u64, Arc<str>)>,
    /// The last plan of each backend.
    pub plans: Vec<(Backend, PlanReport)>,
    /// What happened, oldest first.
    pub log: VecDeque<LogEntry>,
    /// The selected tensor's values.
    pub values: Option<Arc<TensorValues>>,
    /// Why they could not be had.
    pub values_error: Option<String>,
    /// Whether they are on their way.
    pub reading: bool,
}

/// A kernel in one of its forms.
pub type KernelKey = (Backend, &'static str, Arc<str>);

/// What a frame costs, on average over the last moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FrameCost {
    /// From one frame to the next.
    pub frame: Option<Duration>,
    /// Kernels on the GPU; `None` where the device has no clock, or nothing ran.
    pub gpu: Option<Duration>,
    /// Kernels on the CPU backend.
    pub cpu: Option<Duration>,
    /// Planning, binding, encoding and submitting in the render world.
    pub encode: Duration,
    /// Kernel launches on the device.
    pub dispatches: f64,
    /// Kernels run by the CPU backend.
    pub cpu_steps: f64,
}

/// Memory at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemorySample {
    /// When, in the app's real time.
    pub time: Duration,
    /// Bytes of tensors on the device.
    pub tensors: u64,
    /// Bytes of scratch memory.
    pub scratch: u64,
    /// Bytes of plans.
    pub plans: u64,
    /// Bytes of idle buffers.
    pub idle: u64,
    /// Bytes on the host of tensors that belong to the device.
    pub host_copies: u64,
    /// Tensors that left the device since the sample before.
    pub evictions: u64,
    /// Device bytes of each model, as in [`ModelRow::own_device_bytes`].
    pub models: Vec<(Option<Entity>, u64)>,
}

impl MemorySample {
    /// Bytes of the device in all.
    pub fn total(&self) -> u64 {
        self.tensors + self.scratch + self.plans + self.idle
    }
}

/// A model, or all tensors that have none.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRow {
    /// The model; `None` for tensors that have none.
    pub model: Option<Entity>,
    /// Its name, or what stands for one.
    pub name: String,
    /// What its tensors take, each storage once.
    pub usage: ModelUsage,
    /// Bytes on the device of storages that no row before this one has: they add up to all tensors' bytes.
    pub own_device_bytes: u64,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorRow {
    /// The tensor.
    pub entity: Entity,
    /// Its name, or what stands for one.
    pub name: String,
    /// Its model.
    pub model: Option<Entity>,
    /// Sizes of the axes.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
    /// What its storage takes, and where it is.
    pub usage: TensorUsage,
    /// Tensors on the same storage, this one included.
    pub owners: usize,
}

impl InspectorSnapshot {
    /// The row of a tensor.
    pub fn tensor(&self, entity: Entity) -> Option<&TensorRow> {
        self.tensors.iter().find(|row| row.entity == entity)
    }

    /// The name of a model.
    pub fn model_name(&self, model: Option<Entity>) -> String {
        match (self.models.iter().find(|row| row.model == model), model) {
            (Some(row), _) => row.name.clone(),
            (None, Some(model)) => format!("model {model}"),
            (None, None) => NO_MODEL.to_owned(),
        }
    }
}

/// What tensors without a model are listed under.
pub(super) const NO_MODEL: &str = "no model";

/// Rows of all tensors, and of their models. Storages of several models count in each model's usage, and once in what adds up.
pub(super) fn rows<'a>(
    tensors: impl Iterator<Item = (Entity, &'a crate::Tensor, Option<&'a Name>, Option<Entity>)>,
    model_name: impl Fn(Entity) -> Option<String>,
) -> (Vec<ModelRow>, Vec<TensorRow>) {
    let mut rows: Vec<TensorRow> = Vec::new();
    let mut owners: HashMap<u64, usize> = HashMap::default();
    for (entity, tensor, name, model) in tensors {
        let usage = tensor.usage();
        *owners.entry(usage.storage).or_default() += 1;
        rows.push(TensorRow {
            entity,
            name: name.map_or_else(|| format!("tensor {entity}"), |name| name.to_string()),
            model,
            shape: tensor.shape().clone(),
            dtype: tensor.dtype(),
            usage,
            owners: 0,
        });
    }
    let mut models: Vec<ModelRow> = Vec::new();
    let mut places: HashMap<Option<Entity>, usize> = HashMap::default();
    // Every storage once in each model, and once in all.
    let mut seen: HashSet<(Option<Entity>, u64)> = HashSet::default();
    let mut seen_anywhere: HashSet<u64> = HashSet::default();
    for row in &mut rows {
        row.owners = owners[&row.usage.storage];
        let place = *places.entry(row.model).or_insert_with(|| {
            let name = row.model.map_or_else(
                || NO_MODEL.to_owned(),
                |model| model_name(model).unwrap_or_else(|| format!("model {model}")),
            );
            models.push(ModelRow { model: row.model, name, usage: ModelUsage::default(), own_device_bytes: 0 });
            models.len() - 1
        });
        let model = &mut models[place];
        model.usage.tensors += 1;
        if seen.insert((row.model, row.usage.storage)) {
            model.usage.storages += 1;
            model.usage.bytes += row.usage.bytes;
            model.usage.device_bytes += row.usage.device_bytes;
            model.usage.host_bytes += row.usage.host_bytes;
        }
        if seen_anywhere.insert(row.usage.storage) {
            model.own_device_bytes += row.usage.device_bytes;
        }
    }
    // Models in the order they were made, tensors of none at the end: colours and places do not jump about.
    models.sort_by_key(|row| (row.model.is_none(), row.model));
    (models, rows)
}
