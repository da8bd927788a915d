//! The data that the panels show.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bevy::platform::collections::{HashMap, HashSet};
use bevy::prelude::*;

use super::log::LogEntry;
use super::values::TensorValues;
use crate::error::Stall;
use crate::figures::{NodePlace, PlanReport, PoolClass, TensorFigures, TimingReport, TimingSource};
use crate::ir::{Backend, DType, Shape};
use crate::memory::{MemoryAdvice, MemorySettings, ModelUsage};
use crate::pipelines::{PipelineReport, TuneOutcome};
use crate::support::TensorSupport;
use crate::tensor::TensorUsage;

/// Maximum number of memory samples.
pub(super) const SAMPLES: usize = 600;
/// Maximum number of samples in the small chart of a kernel.
pub(super) const SPARKS: usize = 60;

/// All data that the panels show. The plugin updates this resource a few times per second while the inspector is open.
/// Panels read nothing else.
#[derive(Resource, Clone, Debug, Default)]
pub struct InspectorSnapshot {
    /// Incremented with every change.
    pub revision: u64,
    /// The app's real time at the last update.
    pub time: Duration,
    /// The backend and the adapter.
    pub support: Option<TensorSupport>,
    /// Totals.
    pub figures: TensorFigures,
    /// Work that does not move on.
    pub stalls: Vec<Stall>,
    /// The cost of a frame.
    pub frame: FrameCost,
    /// The memory settings of the app.
    pub settings: MemorySettings,
    /// Whether debug mode is on.
    pub debug: bool,
    /// How each backend measures times.
    pub sources: [(Option<Backend>, TimingSource); 2],
    /// Memory samples, oldest first.
    pub history: VecDeque<MemorySample>,
    /// Models with tensors, and one row for tensors without a model.
    pub models: Vec<ModelRow>,
    /// All tensors.
    pub tensors: Vec<TensorRow>,
    /// Device and staging buffers by size class.
    pub pool: Vec<PoolClass>,
    /// The last memory advice, if it was requested.
    pub advice: Option<MemoryAdvice>,
    /// Kernel timings.
    pub timings: Option<TimingReport>,
    /// The most recent times of each kernel in milliseconds, oldest first.
    pub kernel_history: HashMap<KernelKey, VecDeque<f32>>,
    /// Compiled pipelines.
    pub pipelines: PipelineReport,
    /// Tuning results.
    pub tuned: Vec<TuneOutcome>,
    /// [`TensorPipelines::tuned_count`](crate::pipelines::TensorPipelines::tuned_count) when `tuned` was read.
    pub tuned_count: u64,
    /// Id and WGSL source of the selected pipeline.
    pub source: Option<(u64, Arc<str>)>,
    /// The last plan of each backend.
    pub plans: Vec<(Backend, PlanReport)>,
    /// ONNX models and their nodes.
    pub graphs: Vec<GraphRow>,
    /// Log entries, oldest first.
    pub log: VecDeque<LogEntry>,
    /// The values of the selected tensor.
    pub values: Option<Arc<TensorValues>>,
    /// Why reading the values failed.
    pub values_error: Option<String>,
    /// Whether the values are being read.
    pub reading: bool,
}

/// An ONNX model.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphRow {
    /// The model.
    pub model: Entity,
    /// Its name, or a placeholder with its entity.
    pub name: String,
    /// Its nodes, in the order of the file.
    pub nodes: Vec<GraphNodeRow>,
}

/// A node of an ONNX model.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphNodeRow {
    /// Its name.
    pub name: String,
    /// Its operator.
    pub operator: String,
    /// The shape of its first output in the last run.
    pub shape: Option<Shape>,
    /// Where it ran.
    pub place: NodePlace,
    /// The mean time of its launches in a run. `None` if it was not measured, or has none of its own.
    pub time: Option<Duration>,
    /// The kernels that compute it in the last plan.
    pub kernels: Vec<&'static str>,
    /// The other nodes that share a launch with it, by name.
    pub shares: Vec<String>,
}

/// Identifies a kernel variant.
pub type KernelKey = (Backend, &'static str, Arc<str>);

/// The average cost of a frame since the last update.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FrameCost {
    /// Time between two frames.
    pub frame: Option<Duration>,
    /// GPU time of kernels. `None` if the device has no timestamps or nothing ran.
    pub gpu: Option<Duration>,
    /// CPU backend time of kernels. `None` if nothing ran.
    pub cpu: Option<Duration>,
    /// Time for planning, binding, encoding and submitting in the render world.
    pub encode: Duration,
    /// Kernel launches on the device.
    pub dispatches: f64,
    /// Kernels that the CPU backend ran.
    pub cpu_steps: f64,
}

/// Memory use at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemorySample {
    /// Time of the sample, in the app's real time.
    pub time: Duration,
    /// Bytes of tensors on the device.
    pub tensors: u64,
    /// Bytes of scratch memory.
    pub scratch: u64,
    /// Bytes of plan parameters and constants.
    pub plans: u64,
    /// Bytes of idle buffers.
    pub idle: u64,
    /// Host bytes of GPU tensors.
    pub host_copies: u64,
    /// Tensors that were evicted since the previous sample.
    pub evictions: u64,
    /// Device bytes of each model, as in [`ModelRow::own_device_bytes`].
    pub models: Vec<(Option<Entity>, u64)>,
}

impl MemorySample {
    /// Total bytes on the device.
    pub fn total(&self) -> u64 {
        self.tensors + self.scratch + self.plans + self.idle
    }
}

/// A model, or all tensors without a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRow {
    /// The model. `None` for tensors without a model.
    pub model: Option<Entity>,
    /// Its name, or a placeholder with its entity.
    pub name: String,
    /// Memory use of its tensors. Each storage is counted once.
    pub usage: ModelUsage,
    /// Device bytes of storages that no earlier row contains. The sum over all rows is the total of all tensors.
    pub own_device_bytes: u64,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorRow {
    /// The tensor.
    pub entity: Entity,
    /// Its name, or a placeholder with its entity.
    pub name: String,
    /// Its model, if it has one.
    pub model: Option<Entity>,
    /// Sizes of the axes.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
    /// Memory use and location of its storage.
    pub usage: TensorUsage,
    /// Number of tensors that share the storage, including this one.
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

/// The name of the row for tensors without a model.
pub(super) const NO_MODEL: &str = "no model";

/// Builds the rows of all tensors and models. A storage that several models share counts in the usage of each of them,
/// but only once in `own_device_bytes`.
pub(super) fn rows<'a>(
    tensors: impl Iterator<Item = (Entity, &'a crate::tensor::Tensor, Option<&'a Name>, Option<Entity>)>,
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
    // Each storage counts once per model, and once overall.
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
    // Models in creation order, tensors without a model last, so that colours and positions are stable.
    models.sort_by_key(|row| (row.model.is_none(), row.model));
    (models, rows)
}
