//! Updates the snapshot while the inspector is open. Cheap figures are updated every frame. The rest is updated a few
//! times per second, and only for visible panels.

use core::time::Duration;
use std::sync::Arc;

use bevy::prelude::*;
use bevy::tasks::AsyncComputeTaskPool;

use super::log::{InspectorLog, LogKind};
use super::snapshot::{FrameCost, InspectorSnapshot, MemorySample, SAMPLES, SPARKS, rows};
use super::values::TensorValues;
use super::{InspectorPanel, InspectorState, TensorInspector, format};
use crate::error::catch;
use crate::figures::{TensorDiagnostics, TensorFigures};
use crate::ir::Backend;
use crate::memory::MemorySettings;
use crate::pipelines::TensorPipelines;
use crate::record::TensorCommands;
use crate::support::TensorSupport;
use crate::tensor::{Tensor, TensorOf};

/// Tensors with at most this many elements are read automatically when they are selected.
const READ_ALONE: usize = 1 << 22;

/// Data that accumulates between two updates of the snapshot.
#[derive(Default)]
pub(super) struct Pace {
    frames: u32,
    since: Duration,
    figures: TensorFigures,
    /// Time of the last run.
    last: Option<Duration>,
    /// Moving average of the frame time.
    usual: Duration,
}

#[expect(clippy::too_many_arguments, reason = "a system's parameters")]
pub(super) fn gather(
    mut snapshot: ResMut<InspectorSnapshot>,
    mut log: ResMut<InspectorLog>,
    inspector: Res<TensorInspector>,
    state: Res<InspectorState>,
    diagnostics: Res<TensorDiagnostics>,
    pipelines: Res<TensorPipelines>,
    support: Option<Res<TensorSupport>>,
    settings: Res<MemorySettings>,
    time: Option<Res<Time<Real>>>,
    tensors: Query<(Entity, &Tensor, Option<&Name>, Option<&TensorOf>)>,
    names: Query<&Name>,
    mut pace: Local<Pace>,
) {
    let (now, delta) = time.map_or((Duration::ZERO, Duration::ZERO), |time| (time.elapsed(), time.delta()));
    let figures = diagnostics.figures();
    if pace.last.replace(now).is_some_and(|last| last + delta == now) {
        // If all frames are slow, none of them is reported.
        let slow = inspector.slow_frame.max(pace.usual * 2);
        note_events(&mut log, &snapshot.figures, &figures, now, delta, slow);
        pace.usual = (pace.usual * 15 + delta) / 16;
    } else {
        // The inspector was just opened. The time before does not count towards the frame cost.
        (pace.frames, pace.since, pace.figures) = (0, now.saturating_sub(delta), figures);
        pace.usual = delta;
    }
    pace.frames += 1;
    let elapsed = now.saturating_sub(pace.since);
    snapshot.figures = figures;
    snapshot.stalls = diagnostics.stalls();
    if elapsed < inspector.refresh && !inspector.is_changed() && snapshot.revision > 0 {
        return;
    }
    let snapshot = &mut *snapshot;
    let before = core::mem::replace(&mut pace.figures, figures);
    let frames = core::mem::take(&mut pace.frames).max(1);
    pace.since = now;
    snapshot.revision += 1;
    snapshot.time = now;
    snapshot.settings = *settings;
    snapshot.debug = diagnostics.debug();
    if support.as_ref().is_some_and(|support| snapshot.support.as_ref() != Some(support)) {
        snapshot.support = support.map(|support| support.clone());
    }
    for (slot, backend) in snapshot.sources.iter_mut().zip([Backend::Gpu, Backend::Cpu]) {
        *slot = (Some(backend), diagnostics.timing_source(backend));
    }
    let per_frame = |n: u64| n as f64 / f64::from(frames);
    let busy = |backend: Backend, ran: bool| {
        let (_, time) = diagnostics.last_complete_frame(backend).filter(|_| ran)?;
        Some(time)
    };
    snapshot.frame = FrameCost {
        frame: (!elapsed.is_zero()).then(|| elapsed / frames),
        gpu: busy(Backend::Gpu, figures.dispatches > before.dispatches),
        cpu: busy(Backend::Cpu, figures.cpu_steps > before.cpu_steps),
        encode: Duration::from_nanos((figures.encode_nanos - before.encode_nanos) / u64::from(frames)),
        dispatches: per_frame(figures.dispatches - before.dispatches),
        cpu_steps: per_frame(figures.cpu_steps - before.cpu_steps),
    };
    let all = tensors.iter().map(|(entity, tensor, name, of)| (entity, tensor, name, of.map(|of| of.0)));
    (snapshot.models, snapshot.tensors) = rows(all, |model| names.get(model).ok().map(|name| name.to_string()));
    if snapshot.history.len() == SAMPLES {
        snapshot.history.pop_front();
    }
    snapshot.history.push_back(MemorySample {
        time: now,
        tensors: figures.device_bytes,
        scratch: figures.scratch_bytes,
        plans: figures.plan_bytes,
        idle: figures.pool_idle_bytes,
        host_copies: figures.host_copy_bytes,
        evictions: figures.evictions - before.evictions,
        models: snapshot.models.iter().map(|row| (row.model, row.own_device_bytes)).collect(),
    });
    if inspector.wants(InspectorPanel::Memory) {
        snapshot.pool = diagnostics.pool();
        snapshot.advice.clone_from(&log.advice);
    }
    if inspector.wants(InspectorPanel::Kernels) {
        snapshot.timings = diagnostics.timings();
        let kernels = snapshot.timings.iter().flat_map(|timings| &timings.kernels);
        let known: usize = kernels.clone().count();
        if snapshot.kernel_history.len() > known * 2 {
            // Remove kernels that no longer exist.
            snapshot.kernel_history.clear();
        }
        for kernel in kernels {
            let key = (kernel.backend, kernel.kernel, kernel.variant.clone());
            let sparks = snapshot.kernel_history.entry(key).or_default();
            if sparks.len() == SPARKS {
                sparks.pop_front();
            }
            sparks.push_back(kernel.stats.last.as_secs_f32() * 1e3);
        }
    }
    if inspector.wants(InspectorPanel::Pipelines) || inspector.wants(InspectorPanel::Overview) {
        snapshot.pipelines = pipelines.report();
    }
    if inspector.wants(InspectorPanel::Pipelines) {
        if snapshot.tuned_count != pipelines.tuned_count() {
            snapshot.tuned_count = pipelines.tuned_count();
            snapshot.tuned = pipelines.tuned();
        }
        snapshot.source = state.pipelines.selected.and_then(|id| pipelines.wgsl(id).map(|text| (id, text)));
    }
    if inspector.wants(InspectorPanel::Plan) {
        let plan = |backend: Backend| diagnostics.last_plan(backend).map(|plan| (backend, plan));
        snapshot.plans = [Backend::Gpu, Backend::Cpu].into_iter().filter_map(plan).collect();
    }
    if snapshot.log != *log.entries() {
        snapshot.log.clone_from(log.entries());
    }
}

/// Updates the nodes of ONNX models, as often as the rest.
#[cfg(feature = "onnx")]
pub(super) fn gather_graphs(
    mut snapshot: ResMut<InspectorSnapshot>,
    inspector: Res<TensorInspector>,
    diagnostics: Res<TensorDiagnostics>,
    models: Query<(Entity, &crate::onnx::OnnxModel, Option<&Name>)>,
    mut seen: Local<u64>,
) {
    if !inspector.wants(InspectorPanel::Graph) || core::mem::replace(&mut *seen, snapshot.revision) == snapshot.revision
    {
        return;
    }
    let timings = diagnostics.timings().map(|report| report.nodes).unwrap_or_default();
    let mut steps = Vec::new();
    for backend in [Backend::Gpu, Backend::Cpu] {
        let kernels = diagnostics.last_plan(backend).map(|plan| plan.steps).unwrap_or_default();
        steps.extend(kernels.into_iter().map(|step| step.kernel).zip(diagnostics.last_plan_nodes(backend)));
    }
    let row = |node: crate::onnx::OnnxNode, all: &[crate::onnx::OnnxNode]| {
        let has = |nodes: &[Arc<str>]| nodes.contains(&node.label);
        let launches = || steps.iter().filter(|(_, nodes)| has(nodes));
        let times = timings.iter().filter(|timing| has(&timing.nodes)).map(|timing| timing.stats.mean);
        let others = launches().flat_map(|(_, nodes)| nodes.iter()).filter(|label| **label != node.label);
        let mut shares: Vec<String> = others
            .filter_map(|label| all.iter().find(|other| other.label == *label))
            .map(|other| other.name.clone())
            .collect();
        shares.dedup();
        let mut kernels: Vec<&'static str> = launches().map(|(kernel, _)| *kernel).collect();
        kernels.dedup();
        super::snapshot::GraphNodeRow {
            time: times.reduce(|a, b| a + b),
            kernels,
            shares,
            name: node.name,
            operator: node.operator,
            shape: node.shape,
            place: node.place,
        }
    };
    let graph = |(model, onnx, name): (Entity, &crate::onnx::OnnxModel, Option<&Name>)| {
        let nodes = onnx.graph().map(crate::onnx::OnnxGraph::node_list).unwrap_or_default();
        super::snapshot::GraphRow {
            model,
            name: name.map_or_else(|| format!("model {model}"), |name| name.to_string()),
            nodes: nodes.iter().map(|node| row(node.clone(), &nodes)).collect(),
        }
    };
    snapshot.graphs = models.iter().map(graph).collect();
}

/// Logs events that follow from the figures of two frames.
fn note_events(
    log: &mut ResMut<InspectorLog>,
    before: &TensorFigures,
    figures: &TensorFigures,
    now: Duration,
    delta: Duration,
    slow: Duration,
) {
    if figures.evictions > before.evictions {
        let left = figures.evictions - before.evictions;
        let noun = if left == 1 { "tensor" } else { "tensors" };
        log.push(now, LogKind::Memory, format!("{left} {noun} evicted from the device"));
    }
    if before.devices > 0 && figures.devices > before.devices {
        log.push(now, LogKind::Recovery, "the device was replaced after a loss");
    }
    if delta > slow {
        let encode = Duration::from_nanos(figures.encode_nanos - before.encode_nanos);
        let built = figures.pipelines_built - before.pipelines_built;
        let mut text =
            format!("slow frame: {}, of which {} encoding tensor work", format::time(delta), { format::time(encode) });
        if built > 0 {
            text += &format!("; pipelines compiled: {built}");
        }
        log.push(now, LogKind::SlowFrame, text);
    }
}

/// A pending readback of the selected tensor.
struct Pending {
    tensor: Entity,
    answer: async_channel::Receiver<Result<TensorValues, String>>,
}

/// Time of the last readback of the selected tensor, and the pending one.
#[derive(Default)]
pub(super) struct Reads {
    pending: Option<Pending>,
    asked: Option<(Entity, Duration)>,
}

/// Reads the selected tensor, at most as often as the panel allows. The values are analysed in the background.
pub(super) fn read_values(
    ops: TensorCommands,
    mut snapshot: ResMut<InspectorSnapshot>,
    mut state: ResMut<InspectorState>,
    inspector: Res<TensorInspector>,
    tensors: Query<&Tensor>,
    time: Option<Res<Time<Real>>>,
    mut reads: Local<Reads>,
) {
    let now = time.map_or(Duration::ZERO, |time| time.elapsed());
    let selected = state.tensors.selected.filter(|_| inspector.wants(InspectorPanel::Tensors));
    let Some((entity, tensor)) = selected.and_then(|entity| Some((entity, tensors.get(entity).ok()?))) else {
        *reads = Reads::default();
        if snapshot.values.is_some() || snapshot.reading {
            (snapshot.values, snapshot.values_error, snapshot.reading) = (None, None, false);
        }
        return;
    };
    if let Some(pending) = &reads.pending
        && let Ok(answer) = pending.answer.try_recv()
    {
        let wanted = pending.tensor == entity;
        reads.pending = None;
        if wanted {
            match answer {
                Ok(values) => (snapshot.values, snapshot.values_error) = (Some(Arc::new(values)), None),
                Err(error) => snapshot.values_error = Some(error),
            }
        }
    }
    let asked = reads.asked.filter(|asked| asked.0 == entity);
    let small = tensor.shape().elements() <= READ_ALONE;
    let due = match asked {
        None => small,
        Some((_, then)) => state.tensors.live && small && now.saturating_sub(then) >= state.tensors.interval,
    };
    let due = due || core::mem::take(&mut state.tensors.read_now);
    if due && reads.pending.as_ref().is_none_or(|pending| pending.tensor != entity) {
        reads.asked = Some((entity, now));
        match ops.read(entity) {
            Ok(receiver) => {
                let (sender, answer) = async_channel::bounded(1);
                let task = async move {
                    let values = receiver.recv().await.map_err(|error| error.to_string());
                    let values = values.and_then(|data| catch(|| TensorValues::new(entity, now, &data)));
                    // Fails only if the inspector no longer needs the values.
                    let _ = sender.try_send(values);
                };
                AsyncComputeTaskPool::get().spawn(task).detach();
                reads.pending = Some(Pending { tensor: entity, answer });
            }
            Err(error) => snapshot.values_error = Some(error.to_string()),
        }
    }
    let reading = reads.pending.is_some();
    let stale = snapshot.values.as_ref().is_some_and(|values| values.tensor != entity);
    if stale {
        (snapshot.values, snapshot.values_error) = (None, None);
    }
    if snapshot.reading != reading {
        snapshot.reading = reading;
    }
}
