//! What the user asks for: ops recorded in systems, as data. Shapes and types are checked here, so a mistake is an error of the very call.
//!
//! One file per op family holds its methods on [`TensorCommands`] and its rules. Methods resolve operands, apply the rules, and append
//! nodes; nothing runs until the frame's plan does.

mod aside;
mod attention;
mod batch;
mod conv;
mod custom;
mod effects;
mod elementwise;
mod generate;
mod generator;
mod index;
mod matmul;
mod norm;
mod operand;
mod pad;
mod part;
mod pool;
mod quantize;
mod reduce;
mod resize;
mod shape;
#[cfg(test)]
mod tests;

use crate::ir::{Backend, DType, NodeId, Shape, scalar_bits};
use core::panic::Location;

use bevy::ecs::system::{SystemBuffer, SystemMeta, SystemParam};
use bevy::ecs::world::DeferredWorld;
use bevy::prelude::*;

pub use aside::{TuneSettings, WarmUpId};
pub use attention::{AttentionSettings, RopeLayout};
pub use conv::{ConvSettings, ConvTransposeSettings, Padding};
pub use custom::KernelInputs;
pub use index::ScatterMode;
pub use operand::{Axes, Axis, TensorExpression, TensorOperand, TensorValue};
pub use pad::PadMode;
pub use pool::PoolSettings;
pub use resize::{ResizeCoordinates, ResizeMode, ResizeRounding, ResizeSettings, ResizeTo};
pub use shape::DepthOrder;

pub(crate) use aside::{Aside, Purpose};
pub(crate) use batch::Batch;
pub(crate) use generator::generate;
pub(crate) use operand::Arg;
pub(crate) use part::{Part, Recording};

use crate::error::{OpError, OperandInfo};
use crate::readback::{NotificationChannel, ReadRequest};
use crate::support::{ModelBackend, TensorSupport};
use crate::tensor::{Tensor, TensorNames, TensorOf, resolve_axis};

/// Records tensor work in a system, to run this frame.
///
/// Ops take entities, [values](TensorValue) of the same recording, numbers and expressions, and return a value or a typed error that names
/// op, tensors and shapes. Nothing touches the device while recording. Work of different systems runs in the order in which the
/// schedule applies them; order systems that depend on each other's stores.
#[derive(SystemParam)]
pub struct TensorCommands<'w, 's> {
    tensors: Query<'w, 's, (&'static Tensor, Option<&'static TensorOf>, Option<&'static Name>)>,
    models: Query<'w, 's, &'static ModelBackend>,
    names: Res<'w, TensorNames>,
    support: Res<'w, TensorSupport>,
    notifications: Res<'w, NotificationChannel>,
    recording: Deferred<'s, RecordingBuffer>,
}

/// The system's recording until the schedule applies it.
#[derive(Default)]
struct RecordingBuffer(Recording);

/// The frame's recordings, in order.
#[derive(Resource, Default)]
pub(crate) struct FrameRecordings(pub Vec<Recording>);

impl SystemBuffer for RecordingBuffer {
    fn queue(&mut self, _meta: &SystemMeta, mut world: DeferredWorld) {
        if !self.0.is_empty() {
            world.resource_mut::<FrameRecordings>().0.push(core::mem::take(&mut self.0));
        }
    }
}

/// What the op files build on: looking operands up, naming them in errors, appending nodes.
impl TensorCommands<'_, '_> {
    /// Looks an operand up for `op`. A bare number becomes `f32`; binary ops give it the other operand's type.
    #[track_caller]
    fn arg(&mut self, op: &'static str, operand: impl Into<TensorOperand>) -> Result<Arg, OpError> {
        self.resolve(op, operand.into(), Location::caller())
    }

    /// Looks an operand up that may also be quantised, for the few ops that take those.
    #[track_caller]
    fn any_arg(&mut self, op: &'static str, operand: impl Into<TensorOperand>) -> Result<Arg, OpError> {
        self.resolve_any(op, operand.into(), Location::caller())
    }

    /// Looks up an operand whose elements stand on their own.
    fn resolve(
        &mut self,
        op: &'static str,
        operand: TensorOperand,
        site: &'static Location<'static>,
    ) -> Result<Arg, OpError> {
        let arg = self.resolve_any(op, operand, site)?;
        let dtype = self.dtype_of_arg(arg);
        if dtype.is_quantized() {
            return Err(self.type_error(op, &[arg], format!("this op does not take {dtype}; dequantize first")));
        }
        Ok(arg)
    }

    fn resolve_any(
        &mut self,
        op: &'static str,
        operand: TensorOperand,
        site: &'static Location<'static>,
    ) -> Result<Arg, OpError> {
        match operand {
            TensorOperand::Tensor(entity) => {
                let (tensor, backend) = self.tensor(op, entity)?;
                let (storage, layout) = (tensor.storage().clone(), tensor.layout().clone());
                let part = self.begin(backend, op, site);
                let node = part.load(&storage, layout);
                Ok(Arg { node, backend, entity: Some(entity), number: None })
            }
            TensorOperand::Value(value) => {
                if value.recording != self.recording.0.id {
                    return Err(OpError::ForeignValue { op });
                }
                self.begin(value.backend, op, site);
                Ok(Arg { node: value.node, backend: value.backend, entity: None, number: None })
            }
            TensorOperand::Number(number) => {
                let backend = self.support.backend;
                let node = self.begin(backend, op, site).scalar(operand::NUMBER, (number as f32).to_bits());
                Ok(Arg { node, backend, entity: None, number: Some(number) })
            }
            TensorOperand::Expression(expression) => {
                let TensorExpression { op: binary, left, right } = *expression;
                let left = self.resolve(op, left, site)?;
                let right = self.resolve(op, right, site)?;
                self.binary_args(op, binary, left, right)
            }
        }
    }

    /// The tensor of an entity, and the backend it lives on (decided here if it is new).
    fn tensor(&self, op: &'static str, entity: Entity) -> Result<(&Tensor, Backend), OpError> {
        let (tensor, of, name) = self.tensors.get(entity).map_err(|_| OpError::MissingTensor { op, entity })?;
        if let (Some(of), Some(name)) = (of, name)
            && self.names.is_duplicate(of.0, name, entity)
        {
            return Err(OpError::DuplicateName { op, model: of.0, name: name.to_string() });
        }
        let wish = of
            .and_then(|of| self.models.get(of.0).ok())
            .map_or(self.support.backend, |backend| self.support.available(backend.0));
        if let Some(of) = of {
            tensor.storage().set_model(of.0);
        }
        Ok((tensor, tensor.storage().home(wish)))
    }

    /// What `record` records for the GPU, which will not happen as part of the frame. Nobody is told of values it asks for.
    pub(crate) fn aside(&mut self, record: impl FnOnce(&mut Self) -> Result<(), OpError>) -> Result<Part, OpError> {
        let kept = core::mem::take(&mut self.recording.0);
        let result = record(self);
        let mut aside = core::mem::replace(&mut self.recording.0, kept);
        aside.gpu.requests.iter_mut().chain(&mut aside.cpu.requests).for_each(ReadRequest::withdraw);
        result.map(|()| aside.gpu)
    }

    /// Adds work that is prepared for a purpose, not run.
    pub(crate) fn prepare(&mut self, part: Part, purpose: Purpose) {
        self.recording.0.asides.push(Aside { part, purpose });
    }

    /// The value of a tensor that has no entity.
    #[track_caller]
    pub(crate) fn load_aside(&mut self, op: &'static str, tensor: &Tensor) -> TensorValue {
        let backend = tensor.storage().home(self.support.backend);
        let node = self.begin(backend, op, Location::caller()).load(tensor.storage(), tensor.layout().clone());
        self.value(backend, node)
    }

    /// The part of the recording for a backend, with the op being recorded noted in it.
    fn begin(&mut self, backend: Backend, op: &'static str, site: &'static Location<'static>) -> &mut Part {
        let part = self.recording.0.part(backend);
        (part.name, part.site) = (op, site);
        part
    }

    /// The part an operand is in.
    fn part(&mut self, arg: Arg) -> &mut Part {
        self.recording.0.part(arg.backend)
    }

    fn part_ref(&self, arg: Arg) -> &Part {
        match arg.backend {
            Backend::Gpu => &self.recording.0.gpu,
            Backend::Cpu => &self.recording.0.cpu,
        }
    }

    fn shape_of_arg(&self, arg: Arg) -> Shape {
        self.part_ref(arg).shape(arg.node).clone()
    }

    fn dtype_of_arg(&self, arg: Arg) -> DType {
        self.part_ref(arg).dtype(arg.node)
    }

    /// The value an op returns.
    fn value(&self, backend: Backend, node: NodeId) -> TensorValue {
        TensorValue { recording: self.recording.0.id, backend, node }
    }

    /// Checks that all operands live on one backend, which it gives. Numbers move to wherever the others are.
    fn same_backend(&mut self, op: &'static str, args: &mut [Arg]) -> Result<Backend, OpError> {
        let Some(first) = args.iter().find(|a| a.number.is_none()).or(args.first()).copied() else {
            return Ok(self.support.backend);
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

    /// Gives a bare number the element type `dtype`; other operands stay.
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
            (Some(entity), _) => self.entity_name(entity),
            (None, Some(number)) => format!("the number {number}"),
            (None, None) => format!("the value of {}", self.part_ref(arg).graph.node(arg.node).name),
        };
        OperandInfo { name, shape: self.shape_of_arg(arg), dtype: self.dtype_of_arg(arg) }
    }

    /// A tensor as errors name it.
    fn entity_name(&self, entity: Entity) -> String {
        match self.tensors.get(entity) {
            Ok((_, _, Some(name))) => format!("\"{name}\""),
            _ => format!("tensor {entity}"),
        }
    }

    fn shape_error(&self, op: &'static str, args: &[Arg], reason: impl Into<String>) -> OpError {
        OpError::Shape { op, operands: args.iter().map(|&a| self.info(a)).collect(), reason: reason.into() }
    }

    fn type_error(&self, op: &'static str, args: &[Arg], reason: impl Into<String>) -> OpError {
        OpError::Type { op, operands: args.iter().map(|&a| self.info(a)).collect(), reason: reason.into() }
    }

    /// An axis of an operand as an index.
    fn axis(&self, op: &'static str, arg: Arg, axis: Axis) -> Result<usize, OpError> {
        resolve_axis(axis.0, self.part_ref(arg).shape(arg.node)).map_err(|_| OpError::Axis {
            op,
            operand: Box::new(self.info(arg)),
            axis: axis.0,
            reason: "does not exist",
        })
    }

    /// A set of axes of an operand as sorted indices.
    fn axes(&self, op: &'static str, arg: Arg, axes: Axes) -> Result<Vec<usize>, OpError> {
        let list = match axes {
            Axes::All => return Ok((0..self.part_ref(arg).shape(arg.node).rank()).collect()),
            Axes::Of(list) => list,
        };
        let mut indices = Vec::with_capacity(list.len());
        for axis in list {
            let index = self.axis(op, arg, Axis(axis))?;
            if indices.contains(&index) {
                return Err(OpError::Axis { op, operand: Box::new(self.info(arg)), axis, reason: "is named twice" });
            }
            indices.push(index);
        }
        indices.sort_unstable();
        Ok(indices)
    }

    /// An operand that must be of floats.
    #[track_caller]
    fn float_arg(&mut self, op: &'static str, operand: impl Into<TensorOperand>) -> Result<Arg, OpError> {
        let arg = self.arg(op, operand)?;
        if self.dtype_of_arg(arg).is_float() {
            Ok(arg)
        } else {
            Err(self.type_error(op, &[arg], "this op is for f32 and f16; cast first"))
        }
    }

    /// An optional operand that must be of floats.
    #[track_caller]
    fn optional_float_arg(&mut self, op: &'static str, operand: Option<TensorOperand>) -> Result<Option<Arg>, OpError> {
        match operand {
            Some(operand) => self.float_arg(op, operand).map(Some),
            None => Ok(None),
        }
    }

    /// An operand that holds positions: any integer type; a bare number becomes `i32`.
    #[track_caller]
    fn index_arg(&mut self, op: &'static str, operand: impl Into<TensorOperand>) -> Result<Arg, OpError> {
        let arg = self.arg(op, operand)?;
        let arg = self.number_as(arg, DType::I32);
        if self.dtype_of_arg(arg).is_integer() {
            Ok(arg)
        } else {
            Err(self.type_error(op, &[arg], "indices must be integers; cast first"))
        }
    }

    /// The value of an op whose result may be larger than its operands: it must be addressable.
    fn sized(&self, op: &'static str, backend: Backend, node: NodeId) -> Result<TensorValue, OpError> {
        let value = self.value(backend, node);
        let shape = self.part_ref(Arg { node, backend, entity: None, number: None }).shape(node);
        // Positions are 32-bit on the device, signed where strides may be negative.
        match shape.checked_elements() {
            Some(n) if n <= i32::MAX as usize => Ok(value),
            _ => Err(OpError::Argument { op, reason: format!("a result of shape {shape} is too large to address") }),
        }
    }

    /// The shape of a value of this recording.
    pub fn shape(&mut self, operand: impl Into<TensorOperand>) -> Result<Shape, OpError> {
        let arg = self.any_arg("shape", operand)?;
        Ok(self.shape_of_arg(arg))
    }

    /// The element type of a value of this recording.
    pub fn dtype(&mut self, operand: impl Into<TensorOperand>) -> Result<DType, OpError> {
        let arg = self.any_arg("dtype", operand)?;
        Ok(self.dtype_of_arg(arg))
    }
}
