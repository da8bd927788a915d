//! Compiling ahead of use: what an app asks for, its progress, and what a loading screen waits for.

use bevy::prelude::*;

use super::TensorPipelines;
use crate::error::{OpError, OpResult, RunError};
use crate::ir::{DType, Shape};
use crate::record::{ConvSettings, LAST, Purpose, TensorCommands, TensorOperand, TuneSettings, WarmUpId};
use crate::tensor::Tensor;

/// How far a warm-up is.
#[derive(Clone, Debug, PartialEq)]
pub enum WarmUpState {
    /// Pipelines are being compiled.
    Compiling,
    /// All are there; each is run once.
    Running,
    /// The work will find everything ready.
    Ready,
    /// Something did not compile, or there was no room to run it.
    Failed(RunError),
}

/// One warm-up.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmUpProgress {
    /// Which.
    pub id: WarmUpId,
    /// What the app calls it.
    pub label: String,
    /// Pipelines that are there.
    pub done: usize,
    /// Pipelines it needs; 0 until it has been planned.
    pub total: usize,
    /// How far it is.
    pub state: WarmUpState,
}

impl WarmUpProgress {
    /// Whether nothing more will happen.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, WarmUpState::Ready | WarmUpState::Failed(_))
    }
}

/// A warm-up got further. Observe it with `app.add_observer`.
#[derive(Event, Clone, Debug, PartialEq)]
pub struct TensorWarmUp(pub WarmUpProgress);

/// All warm-ups together: what a loading screen waits for. The run condition is [`tensors_ready`].
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::{TensorReadyState, tensors_ready};
/// # fn play() {}
/// fn loading_screen(state: Res<TensorReadyState>) {
///     println!("{:.0} %", state.progress() * 100.0);
/// }
/// # let mut app = App::new();
/// app.add_systems(Update, (loading_screen.run_if(not(tensors_ready)), play.run_if(tensors_ready)));
/// ```
#[derive(Resource, Clone, Debug, Default, PartialEq)]
pub struct TensorReadyState {
    /// Every warm-up so far.
    pub warm_ups: Vec<WarmUpProgress>,
}

impl TensorReadyState {
    /// Whether no warm-up is under way.
    pub fn is_ready(&self) -> bool {
        self.warm_ups.iter().all(WarmUpProgress::is_finished)
    }

    /// From 0 to 1: the part of all pipelines that is there.
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

    /// What went wrong, if anything did.
    pub fn errors(&self) -> impl Iterator<Item = &RunError> {
        self.warm_ups.iter().filter_map(|warm_up| match &warm_up.state {
            WarmUpState::Failed(error) => Some(error),
            _ => None,
        })
    }
}

/// A run condition: no warm-up is under way.
pub fn tensors_ready(state: Res<TensorReadyState>) -> bool {
    state.is_ready()
}

/// Brings the main world's view up to date and tells of what changed.
pub(crate) fn trigger_warm_ups(
    pipelines: Res<TensorPipelines>,
    mut state: ResMut<TensorReadyState>,
    mut commands: Commands,
) {
    let now = pipelines.warm_ups();
    if now == state.warm_ups {
        return;
    }
    for (i, progress) in now.iter().enumerate() {
        if state.warm_ups.get(i) != Some(progress) {
            commands.trigger(TensorWarmUp(progress.clone()));
        }
    }
    state.warm_ups = now;
}

/// An op with the shapes and types it will be used with, to be compiled ahead: [`TensorCommands::warm_up_ops`].
#[derive(Clone, Debug, PartialEq)]
pub struct OpSpec {
    /// The op's name, as the method of [`TensorCommands`] is called.
    pub op: String,
    /// Its tensors, in order.
    pub inputs: Vec<(Shape, DType)>,
}

impl OpSpec {
    /// An op on `f32` tensors.
    pub fn new(op: impl Into<String>, shapes: impl IntoIterator<Item = impl Into<Shape>>) -> Self {
        Self { op: op.into(), inputs: shapes.into_iter().map(|shape| (shape.into(), DType::F32)).collect() }
    }
}

/// Compiling ahead.
impl TensorCommands<'_, '_> {
    /// Records work to compile without running it for real.
    ///
    /// Its kernels are compiled in the background, higher priorities first. Once compiled, each kernel runs once on scratch
    /// memory, since some drivers finish compiling only then. Tensors that the work uses are uploaded to the device and keep
    /// their values. Values recorded in the closure cannot leave it, and values recorded before cannot be used in it.
    ///
    /// The label is for [`TensorWarmUp`] events and [`TensorReadyState`].
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

    /// Measures the forms of each kernel that the recorded work needs, and uses the fastest from then on. The work itself does
    /// not run. [`TensorPipelines::tuned`] returns the results. On a device without timestamps nothing is measured.
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
        let few = || bad(format!("{} takes more tensors than {}", spec.op, spec.inputs.len()));
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
