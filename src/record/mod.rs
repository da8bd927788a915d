//! Recording: systems record ops as plain data.
//!
//! Every call checks shapes and element types and returns an error that names the op, the tensors and their shapes.
//! Each op family has one file with its methods on [`TensorCommands`] and its rules. A method converts its operands,
//! looks them up with a [`Recorder`], applies the rules and appends nodes. Nothing runs until the frame's plan does.

mod aside;
mod batch;
mod conv;
mod crossing;
mod custom;
mod dct;
mod effects;
mod elementwise;
mod fourier;
mod generate;
mod generator;
mod index;
mod infer;
mod integer;
mod matmul;
mod mel;
mod norm;
mod operand;
mod pad;
mod part;
mod pool;
mod quantize;
mod recurrent;
mod reduce;
mod resample;
mod resize;
mod sample;
mod sequence;
mod shape;
mod spectrum;
#[cfg(test)]
mod tests;

use core::cell::{RefCell, RefMut};
use core::marker::PhantomData;
use core::panic::Location;
#[cfg(feature = "onnx")]
use std::sync::Arc;

use bevy::ecs::system::{SystemBuffer, SystemMeta, SystemParam};
use bevy::ecs::world::DeferredWorld;
use bevy::prelude::*;
use smallvec::SmallVec;

pub use aside::{TuneSettings, WarmUpId};
pub use conv::{ConvSettings, ConvTransposeSettings, Padding};
pub use custom::KernelInputs;
pub use dct::DctKind;
pub use index::ScatterMode;
pub use mel::{DbSettings, LogMelSettings, MelScale, MelSettings};
pub use operand::{Axes, LAST, OptionalOperand, TensorAxis, TensorExpression, TensorOperand, TensorValue};
pub use pad::PadMode;
pub use pool::PoolSettings;
pub use recurrent::{GruSettings, LstmSettings, RecurrentActivation, RnnSettings};
pub use reduce::CumsumSettings;
pub use resize::{ResizeCoordinates, ResizeMode, ResizeRounding, ResizeSettings, ResizeTo};
pub use sample::{RoiAlignSettings, SampleSettings};
pub use sequence::{AttentionSettings, RopeLayout, RopeSettings};
pub use shape::DepthOrder;
pub use spectrum::{FrameWindow, StftSettings};

pub(crate) use aside::{Aside, Purpose};
pub(crate) use batch::Batch;
pub(crate) use crossing::move_storage;
pub(crate) use generator::generate;
pub(crate) use operand::Arg;
use operand::AxisSet;
pub(crate) use part::{Part, Recording};

use crate::error::{OpError, OpResult, OperandInfo};
use crate::ir::{Backend, DType, NodeId, Shape, scalar_bits};
use crate::kernel::host::has_memory_for;
use crate::readback::{NotificationChannel, ReadRequest};
use crate::schedule::{Backlog, TensorBacklogs};
use crate::support::{ModelBackend, TensorSupport};
use crate::tensor::{Tensor, TensorNames, TensorOf, resolve_axis};

/// A system parameter that records tensor work, which runs this frame.
///
/// Ops take entities, [values](TensorValue) of the same recording, numbers and expressions. They return a value, or an
/// [error](OpError) that names the op, the tensors and their shapes. Recording does not touch the device.
///
/// All methods take `&self`, so calls nest:
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// # #[derive(Component)]
/// # struct Matcher { images: Entity, captions: Entity, scores: Entity }
/// fn compare(matcher: Single<&Matcher>, ops: TensorCommands) -> Result {
///     let images = ops.l2_normalize(matcher.images, LAST)?;
///     let captions = ops.l2_normalize(matcher.captions, LAST)?;
///     let scores = ops.softmax(ops.matmul_nt(images, captions)? * 5.0, LAST)?;
///     ops.store(scores, matcher.scores)?;
///     Ok(())
/// }
/// ```
///
/// Work of different systems runs in the order in which the schedule applies the systems. Order systems that depend on
/// each other's stores.
#[derive(SystemParam)]
pub struct TensorCommands<'w, 's> {
    tensors: Query<'w, 's, (&'static Tensor, Option<&'static TensorOf>, Option<&'static Name>)>,
    models: Query<'w, 's, &'static ModelBackend>,
    names: Res<'w, TensorNames>,
    support: Res<'w, TensorSupport>,
    notifications: Res<'w, NotificationChannel>,
    backlogs: Res<'w, TensorBacklogs>,
    recording: Deferred<'s, RecordingBuffer>,
}

/// A system's recording, until the schedule applies it. The cell lets ops take `&self`, so that calls nest.
#[derive(Default)]
struct RecordingBuffer(RefCell<Recording>);

/// The frame's recordings, in order.
#[derive(Resource, Default)]
pub(crate) struct FrameRecordings(pub Vec<Recording>);

impl SystemBuffer for RecordingBuffer {
    fn queue(&mut self, _meta: &SystemMeta, mut world: DeferredWorld) {
        let recording = self.0.get_mut();
        if !recording.is_empty() {
            world.resource_mut::<FrameRecordings>().0.push(core::mem::take(recording));
        }
    }
}

impl<'w, 's> TensorCommands<'w, 's> {
    /// Begins one op. The recording is borrowed until the op is done, so operands are converted before.
    #[track_caller]
    fn recorder(&self) -> Recorder<'_> {
        let mut recording = self.recording.0.borrow_mut();
        (recording.gpu.too_large, recording.cpu.too_large) = (None, None);
        Recorder { ops: self, recording, site: Location::caller() }
    }

    /// The tensor of an entity, and its owner.
    fn lookup(&self, op: &'static str, entity: Entity) -> OpResult<(&Tensor, Option<&TensorOf>)> {
        let (tensor, of, name) = self.tensors.get(entity).map_err(|_| OpError::MissingTensor { op, entity })?;
        if let (Some(of), Some(name)) = (of, name)
            && self.names.is_duplicate(of.0, name, entity)
        {
            return Err(OpError::DuplicateName { op, model: of.0, name: name.to_string() });
        }
        Ok((tensor, of))
    }

    /// The backend that a tensor's owner asks for.
    fn wish(&self, of: Option<&TensorOf>) -> Backend {
        of.and_then(|of| self.models.get(of.0).ok())
            .map_or(self.support.backend, |backend| self.support.available(backend.0))
    }

    /// Sets what reports call the ops that are recorded from now on. `None` calls them by their own names.
    #[cfg(feature = "onnx")]
    pub(crate) fn set_label(&self, label: Option<&'static str>) {
        self.recording.0.borrow_mut().label = label;
    }

    /// Sets the node of a model's graph that is recorded from now on.
    #[cfg(feature = "onnx")]
    pub(crate) fn set_node(&self, node: Option<Arc<str>>) {
        self.recording.0.borrow_mut().node = node;
    }

    /// The backend that a model asks for, or that of the app.
    #[cfg(feature = "onnx")]
    pub(crate) fn model_backend(&self, model: Entity) -> Backend {
        self.wish(Some(&TensorOf(model)))
    }

    /// The tensor of an entity, the backend it lives on (decided here if it is new), and its model.
    fn tensor(&self, op: &'static str, entity: Entity) -> OpResult<(&Tensor, Backend, Option<Entity>)> {
        let (tensor, of) = self.lookup(op, entity)?;
        let wish = self.wish(of);
        if let Some(of) = of {
            tensor.storage().set_model(of.0);
        }
        Ok((tensor, tensor.storage().home(wish), of.map(|of| of.0)))
    }

    /// The unfinished recordings of a model. Ops that use its tensors return [`OpError::Busy`] while `busy` is set.
    pub fn backlog(&self, model: Entity) -> Backlog {
        self.backlogs.of(Some(model))
    }

    /// A tensor as errors name it.
    fn entity_name(&self, entity: Entity) -> String {
        match self.tensors.get(entity) {
            Ok((_, _, Some(name))) => format!("\"{name}\""),
            _ => format!("tensor {entity}"),
        }
    }

    /// Records work for the GPU that will not run as part of the frame. Readbacks in it are never answered.
    pub(crate) fn aside(&self, record: impl FnOnce(&Self) -> OpResult<()>) -> OpResult<Part> {
        let kept = self.recording.0.replace(Recording { is_aside: true, ..Recording::default() });
        let result = record(self);
        let mut aside = self.recording.0.replace(kept);
        self.recording.0.borrow_mut().asides.append(&mut aside.asides);
        aside.gpu.requests.iter_mut().chain(&mut aside.cpu.requests).for_each(ReadRequest::withdraw);
        result.map(|()| aside.gpu)
    }

    /// Adds work that is recorded for a purpose and not run.
    pub(crate) fn prepare(&self, part: Part, purpose: Purpose) {
        self.recording.0.borrow_mut().asides.push(Aside { part, purpose });
    }

    /// The value of a tensor that has no entity.
    #[track_caller]
    pub(crate) fn load_aside(&self, op: &'static str, tensor: &Tensor) -> TensorValue<'_> {
        let rec = &mut self.recorder();
        let backend = tensor.storage().home(self.support.backend);
        let node = rec.begin(backend, op).load(tensor.storage(), tensor.layout().clone());
        rec.small_value(backend, node)
    }
}

/// One op being recorded.
struct Recorder<'a> {
    ops: &'a TensorCommands<'a, 'a>,
    recording: RefMut<'a, Recording>,
    /// Where user code called the op.
    site: &'static Location<'static>,
}

/// What the op files build on: looking operands up, naming them in errors, appending nodes.
impl<'a> Recorder<'a> {
    /// Looks up an operand whose elements can be used one by one. A bare number becomes `f32`; binary ops give it the
    /// other operand's type.
    fn arg(&mut self, op: &'static str, operand: TensorOperand<'_>) -> OpResult<Arg> {
        let arg = self.any_arg(op, operand)?;
        let dtype = self.dtype_of_arg(arg);
        if dtype.is_quantized() {
            return Err(self.type_error(op, &[arg], format!("this op does not take {dtype}; dequantize first")));
        }
        Ok(arg)
    }

    /// Looks up an operand that may also be quantised, for the few ops that take those.
    fn any_arg(&mut self, op: &'static str, operand: TensorOperand<'_>) -> OpResult<Arg> {
        match operand {
            TensorOperand::Tensor(entity) => {
                let (tensor, backend) = self.tensor(op, entity)?;
                let node = self.begin(backend, op).load(tensor.storage(), tensor.layout().clone());
                Ok(Arg { node, backend, entity: Some(entity), number: None })
            }
            TensorOperand::Value(value) => {
                if value.recording != self.recording.id {
                    return Err(OpError::ForeignValue { op });
                }
                self.begin(value.backend, op);
                let node = self.current(value);
                Ok(Arg { node, backend: value.backend, entity: value.entity, number: None })
            }
            TensorOperand::Number(number) => {
                let backend = self.ops.support.backend;
                let node = self.begin(backend, op).scalar(operand::NUMBER, (number as f32).to_bits());
                Ok(Arg { node, backend, entity: None, number: Some(number) })
            }
            TensorOperand::Expression(expression) => {
                let TensorExpression { op: binary, left, right } = *expression;
                let left = self.arg(op, left)?;
                let right = self.arg(op, right)?;
                let value = self.binary_args(op, binary, left, right)?;
                self.check_sizes(value.backend)?;
                Ok(value)
            }
        }
    }

    /// Looks up a tensor and counts the recording for its model. Fails if the model is busy.
    fn tensor(&mut self, op: &'static str, entity: Entity) -> OpResult<(&'a Tensor, Backend)> {
        let ops = self.ops;
        let (tensor, backend, model) = ops.tensor(op, entity)?;
        // A recording that uses the model already goes on: half of it would be of no use.
        if !self.recording.is_aside && !self.recording.owners.contains(&model) {
            if let Some(Backlog { in_flight, waiting, .. }) = ops.backlogs.busy(model) {
                ops.backlogs.refused();
                return Err(OpError::Busy { op, model, in_flight, waiting });
            }
            self.recording.add_owner(model);
        }
        Ok((tensor, backend))
    }

    /// The part of the recording for a backend, with the current op noted in it.
    fn begin(&mut self, backend: Backend, op: &'static str) -> &mut Part {
        let site = self.site;
        let name = self.recording.label.unwrap_or(op);
        let node = self.recording.node.clone();
        let part = self.recording.part(backend);
        (part.name, part.site, part.label) = (name, site, node);
        part
    }

    /// The part that an operand is in.
    fn part(&mut self, arg: Arg) -> &mut Part {
        self.recording.part(arg.backend)
    }

    fn part_ref(&self, arg: Arg) -> &Part {
        self.recording.part_ref(arg.backend)
    }

    fn shape_of_arg(&self, arg: Arg) -> Shape {
        self.part_ref(arg).shape(arg.node).clone()
    }

    fn dtype_of_arg(&self, arg: Arg) -> DType {
        self.part_ref(arg).dtype(arg.node)
    }

    /// The value an op returns. Fails if the op needs anything that is too large to address.
    fn value(&self, backend: Backend, node: NodeId) -> OpResult<TensorValue<'a>> {
        self.check_sizes(backend)?;
        Ok(self.small_value(backend, node))
    }

    /// The value of an op that is known to be addressable.
    fn small_value(&self, backend: Backend, node: NodeId) -> TensorValue<'a> {
        let (recording, segment) = (self.recording.id, self.recording.segment(backend));
        TensorValue { recording, backend, segment, node, entity: None, commands: PhantomData }
    }

    /// Fails if this op has added a node that is too large to address. The nodes of a failed op stay in the recording, but
    /// nothing uses them.
    fn check_sizes(&self, backend: Backend) -> OpResult<()> {
        let part = self.recording.part_ref(backend);
        match &part.too_large {
            Some(shape) => Err(OpError::too_large(part.name, shape)),
            None => Ok(()),
        }
    }

    /// Fails if a table of positions and weights cannot be made on the host.
    fn check_table(&self, op: &'static str, out: usize, taps: usize) -> OpResult<()> {
        let shape = Shape::from([out, taps]);
        self.check_size(op, &shape)?;
        // Positions and weights, each once while they are made and once as part of the plan.
        let bytes = shape.elements() as u64 * 16;
        if has_memory_for(bytes) { Ok(()) } else { Err(OpError::too_large(op, &shape)) }
    }

    /// Fails if a result of this shape is too large to address, before anything of that size is made on the host.
    fn check_size(&self, op: &'static str, shape: &Shape) -> OpResult<()> {
        if shape.is_addressable() { Ok(()) } else { Err(OpError::too_large(op, shape)) }
    }

    /// Checks that all operands live on one backend and returns it. Numbers move to the backend of the others.
    fn same_backend(&mut self, op: &'static str, args: &mut [Arg]) -> OpResult<Backend> {
        let Some(first) = args.iter().find(|a| a.number.is_none()).or(args.first()).copied() else {
            return Ok(self.ops.support.backend);
        };
        for arg in args {
            if arg.backend == first.backend {
                continue;
            }
            let Some(number) = arg.number else {
                return Err(OpError::MixedBackends {
                    op,
                    first: self.info(first).name,
                    first_backend: first.backend,
                    second: self.info(*arg).name,
                    second_backend: arg.backend,
                });
            };
            arg.node = self.part(first).scalar(operand::NUMBER, (number as f32).to_bits());
            arg.backend = first.backend;
        }
        Ok(first.backend)
    }

    /// Gives a number the element type `dtype`. Other operands stay as they are.
    fn number_as(&mut self, arg: Arg, dtype: DType) -> Arg {
        match arg.number {
            Some(number) if self.dtype_of_arg(arg) != dtype => {
                let node = self.part(arg).scalar(dtype, scalar_bits(number, dtype));
                Arg { node, ..arg }
            }
            _ => arg,
        }
    }

    /// An operand as errors name it.
    fn info(&self, arg: Arg) -> OperandInfo {
        let name = match (arg.entity, arg.number) {
            (Some(entity), _) => self.ops.entity_name(entity),
            (None, Some(number)) => format!("the number {number}"),
            (None, None) => format!("the value of {}", self.part_ref(arg).graph.node(arg.node).name),
        };
        OperandInfo { name, shape: self.shape_of_arg(arg), dtype: self.dtype_of_arg(arg) }
    }

    fn shape_error(&self, op: &'static str, args: &[Arg], reason: impl Into<String>) -> OpError {
        OpError::Shape { op, operands: args.iter().map(|&a| self.info(a)).collect(), reason: reason.into() }
    }

    fn type_error(&self, op: &'static str, args: &[Arg], reason: impl Into<String>) -> OpError {
        OpError::Type { op, operands: args.iter().map(|&a| self.info(a)).collect(), reason: reason.into() }
    }

    /// Resolves an axis of an operand to an index.
    fn axis(&self, op: &'static str, arg: Arg, axis: TensorAxis) -> OpResult<usize> {
        resolve_axis(axis.0, self.part_ref(arg).shape(arg.node)).map_err(|_| OpError::Axis {
            op,
            operand: Box::new(self.info(arg)),
            axis: axis.0,
            reason: "does not exist",
        })
    }

    /// Resolves axes of an operand to sorted indices.
    fn axes(&self, op: &'static str, arg: Arg, axes: Axes) -> OpResult<SmallVec<[usize; 6]>> {
        let list = match axes.set {
            AxisSet::All => return Ok((0..self.part_ref(arg).shape(arg.node).rank()).collect()),
            AxisSet::Of(list) => list,
        };
        let mut indices = SmallVec::new();
        for axis in list {
            let index = self.axis(op, arg, TensorAxis(axis))?;
            if indices.contains(&index) {
                return Err(OpError::Axis { op, operand: Box::new(self.info(arg)), axis, reason: "is named twice" });
            }
            indices.push(index);
        }
        indices.sort_unstable();
        Ok(indices)
    }

    /// Looks up an operand that must have a float type.
    fn float_arg(&mut self, op: &'static str, operand: TensorOperand<'_>) -> OpResult<Arg> {
        let arg = self.arg(op, operand)?;
        if self.dtype_of_arg(arg).is_float() {
            Ok(arg)
        } else {
            Err(self.type_error(op, &[arg], "this op is for floats; cast first"))
        }
    }

    /// Looks up an optional operand that must have a float type.
    fn optional_float_arg(&mut self, op: &'static str, operand: Option<TensorOperand<'_>>) -> OpResult<Option<Arg>> {
        match operand {
            Some(operand) => self.float_arg(op, operand).map(Some),
            None => Ok(None),
        }
    }

    /// Looks up an operand of indices: any integer type. A number becomes `i32`.
    fn index_arg(&mut self, op: &'static str, operand: TensorOperand<'_>) -> OpResult<Arg> {
        let arg = self.arg(op, operand)?;
        let arg = self.number_as(arg, DType::I32);
        if self.dtype_of_arg(arg).is_integer() {
            Ok(arg)
        } else {
            Err(self.type_error(op, &[arg], "indices must be integers; cast first"))
        }
    }
}
