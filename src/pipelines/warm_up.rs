//! Warm-up: compiling pipelines before they are needed, and waiting for them.

use bevy::prelude::*;

use super::TensorPipelines;
use crate::error::{OpError, OpResult, RunError};
use crate::ir::{DType, Shape};
use crate::record::{ConvSettings, LAST, Purpose, TensorCommands, TensorOperand, TuneSettings, WarmUpId};
use crate::tensor::Tensor;

/// Maximum number of finished warm-ups that are listed. The oldest are dropped first.
const LISTED: usize = 256;

/// The state of a warm-up.
#[derive(Clone, Debug, PartialEq)]
pub enum WarmUpState {
    /// Pipelines are being compiled.
    Compiling,
    /// All pipelines are compiled. Each is run once.
    Running,
    /// All pipelines are ready.
    Ready,
    /// A pipeline did not compile, or the memory budget is too small to run it.
    Failed(RunError),
}

/// The progress of one warm-up.
#[derive(Clone, Debug, PartialEq, Reflect)]
#[reflect(opaque)]
#[reflect(Debug, PartialEq, Clone)]
pub struct WarmUpProgress {
    /// Its id.
    pub id: WarmUpId,
    /// The label that the app gave it.
    pub label: String,
    /// Number of pipelines that are ready.
    pub done: usize,
    /// Number of pipelines it needs. 0 until it has been planned.
    pub total: usize,
    /// Its state.
    pub state: WarmUpState,
}

impl WarmUpProgress {
    /// Whether the warm-up has succeeded or failed.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, WarmUpState::Ready | WarmUpState::Failed(_))
    }
}

/// Triggered when a warm-up made progress. Observe it with `app.add_observer`.
#[derive(Event, Clone, Debug, PartialEq)]
pub struct TensorWarmUp(pub WarmUpProgress);

/// The status of all warm-ups, for example for a loading screen. [`warmed_up`] is the matching run condition.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::pipelines::{WarmUpStatus, warmed_up};
/// # fn play() {}
/// fn loading_screen(status: Res<WarmUpStatus>) {
///     println!("{:.0} %", status.progress() * 100.0);
/// }
/// # let mut app = App::new();
/// app.add_systems(Update, (loading_screen.run_if(not(warmed_up)), play.run_if(warmed_up)));
/// ```
#[derive(Resource, Clone, Debug, Default, PartialEq, Reflect)]
#[reflect(Resource, Default, Debug, PartialEq, Clone)]
pub struct WarmUpStatus {
    /// All warm-ups in progress, and the last 256 that have finished.
    pub warm_ups: Vec<WarmUpProgress>,
}

impl WarmUpStatus {
    /// Whether all warm-ups have finished. Also true if there are none.
    pub fn is_ready(&self) -> bool {
        self.warm_ups.iter().all(WarmUpProgress::is_finished)
    }

    /// Overall progress, from 0 to 1: the fraction of pipelines that are ready.
    pub fn progress(&self) -> f32 {
        if self.is_ready() {
            return 1.0;
        }
        let (done, total) = self.warm_ups.iter().fold((0, 0), |(done, total), warm_up| {
            let all = warm_up.total.max(1);
            (done + if warm_up.is_finished() { all } else { warm_up.done }, total + all)
        });
        done as f32 / total as f32
    }

    /// Errors of failed warm-ups.
    pub fn errors(&self) -> impl Iterator<Item = &RunError> {
        self.warm_ups.iter().filter_map(|warm_up| match &warm_up.state {
            WarmUpState::Failed(error) => Some(error),
            _ => None,
        })
    }
}

/// Run condition: all warm-ups have finished.
pub fn warmed_up(status: Res<WarmUpStatus>) -> bool {
    status.is_ready()
}

/// Updates [`WarmUpStatus`] and triggers [`TensorWarmUp`] for warm-ups that made progress.
pub(crate) fn trigger_warm_ups(
    pipelines: Res<TensorPipelines>,
    mut state: ResMut<WarmUpStatus>,
    mut seen: Local<u64>,
    mut commands: Commands,
) {
    // Counted before the list is read: a change in between is seen again in the next frame.
    let changes = pipelines.warm_up_changes();
    if core::mem::replace(&mut *seen, changes) == changes {
        return;
    }
    let mut now = pipelines.warm_ups();
    for progress in &now {
        if state.warm_ups.iter().find(|before| before.id == progress.id) != Some(progress) {
            commands.trigger(TensorWarmUp(progress.clone()));
        }
    }
    let over = now.iter().filter(|progress| progress.is_finished()).count().saturating_sub(LISTED);
    if over > 0 {
        let finished = now.iter().filter(|progress| progress.is_finished());
        let oldest: Vec<WarmUpId> = finished.take(over).map(|progress| progress.id).collect();
        pipelines.forget_warm_ups(&oldest);
        now.retain(|progress| !oldest.contains(&progress.id));
    }
    state.warm_ups = now;
}

/// An op with the shapes and types of its inputs, for [`TensorCommands::warm_up_ops`].
#[derive(Clone, Debug, PartialEq)]
pub struct OpSpec {
    /// Name of the op: the name of the method of [`TensorCommands`].
    pub op: String,
    /// Shapes and types of its inputs, in order.
    pub inputs: Vec<(Shape, DType)>,
}

impl OpSpec {
    /// An op on `f32` tensors.
    pub fn new(op: impl Into<String>, shapes: impl IntoIterator<Item = impl Into<Shape>>) -> Self {
        Self { op: op.into(), inputs: shapes.into_iter().map(|shape| (shape.into(), DType::F32)).collect() }
    }
}

/// Warm-up and tuning.
impl TensorCommands<'_, '_> {
    /// Records work to compile without running it for real.
    ///
    /// Its kernels are compiled in the background, higher priorities first. Once compiled, each kernel runs once on
    /// scratch memory, because some drivers finish compiling only at the first run. Tensors that the work uses are
    /// uploaded to the device and keep their values. Values recorded in the closure cannot leave it, and values
    /// recorded before cannot be used in it.
    ///
    /// The label identifies the warm-up in [`TensorWarmUp`] events and in [`WarmUpStatus`].
    pub fn warm_up(
        &self,
        label: &str,
        priority: i32,
        record: impl FnOnce(&Self) -> OpResult<()>,
    ) -> OpResult<WarmUpId> {
        let part = self.aside(record)?;
        let id = WarmUpId::next();
        self.prepare(part, Purpose::WarmUp { id, label: label.to_owned(), priority });
        Ok(id)
    }

    /// [`TensorCommands::warm_up`] for single ops by name: the elementwise ops, `matmul`, `matmul_nt`, `softmax`,
    /// `log_softmax`, `layer_norm`, `rms_norm`, `sum`, `mean`, `max_of` and `min_of` (over the last axis), `conv2d` and
    /// `embedding`. For ops that fuse with others, use `warm_up` and record them together.
    pub fn warm_up_ops(&self, label: &str, priority: i32, ops: &[OpSpec]) -> OpResult<WarmUpId> {
        self.warm_up(label, priority, |commands| ops.iter().try_for_each(|spec| commands.record_spec(spec)))
    }

    /// Measures the variants of each kernel that the recorded work needs, and uses the fastest from then on. The work
    /// itself does not run. [`TensorPipelines::tuned`] returns the results. On a device without timestamps nothing is
    /// measured.
    pub fn tune(&self, settings: TuneSettings, record: impl FnOnce(&Self) -> OpResult<()>) -> OpResult<()> {
        let part = self.aside(record)?;
        self.prepare(part, Purpose::Tune(settings));
        Ok(())
    }

    /// Records one op on new tensors.
    #[track_caller]
    fn record_spec(&self, spec: &OpSpec) -> OpResult<()> {
        const OP: &str = "warm_up_ops";
        let bad = |reason: String| OpError::Argument { op: OP, reason };
        let mut values = Vec::with_capacity(spec.inputs.len());
        for (shape, dtype) in &spec.inputs {
            let tensor = Tensor::zeros(shape.clone(), *dtype).map_err(|error| bad(error.to_string()))?;
            values.push(self.load_aside(OP, &tensor));
        }
        let few = || bad(format!("`{}` needs more than {} inputs", spec.op, spec.inputs.len()));
        let get = |i: usize| values.get(i).copied().ok_or_else(few);
        let optional = |i: usize| values.get(i).copied().map(TensorOperand::from);
        let x = get(0)?;
        let y = match spec.op.as_str() {
            "matmul" => self.matmul(x, get(1)?)?,
            "matmul_nt" => self.matmul_nt(x, get(1)?)?,
            "softmax" => self.softmax(x, LAST)?,
            "log_softmax" => self.log_softmax(x, LAST)?,
            "layer_norm" => self.layer_norm(x, optional(1), optional(2), LAST, 1e-5)?,
            "rms_norm" => self.rms_norm(x, optional(1), LAST, 1e-5)?,
            "sum" => self.sum(x, LAST)?,
            "mean" => self.mean(x, LAST)?,
            "max_of" => self.max_of(x, LAST)?,
            "min_of" => self.min_of(x, LAST)?,
            "conv2d" => self.conv2d(x, get(1)?, optional(2), ConvSettings::default())?,
            "embedding" => self.embedding(x, get(1)?)?,
            name => self
                .elementwise_by_name(name, x, values.get(1).copied())
                .unwrap_or_else(|| Err(bad(format!("no op named \"{name}\" can be compiled by name"))))?,
        };
        self.read(y).map(drop)
    }
}
