//! What leaves a recording: values kept in tensors, host data written to them, values sent back.

use core::panic::Location;

use bevy::ecs::entity::Entity;

use super::{Arg, Axis, TensorCommands, TensorOperand};
use crate::error::{OpError, OperandInfo};
use crate::ir::{Backend, DType, Element, Layout, Op};
use crate::readback::{ReadRequest, TensorReceiver};
use crate::tensor::{Tensor, TensorData, pack, resolve_axis};

/// A tensor about to be written.
struct Target {
    entity: Entity,
    backend: Backend,
    slot: u32,
    layout: Layout,
    dtype: DType,
}

/// Effects.
impl TensorCommands<'_, '_> {
    /// Puts a value into a tensor. The types must be equal; a smaller value, or a number, is broadcast to the tensor's shape, unless it is
    /// quantised: then the shapes must be equal.
    #[track_caller]
    pub fn store(&mut self, value: impl Into<TensorOperand>, tensor: Entity) -> Result<(), OpError> {
        const OP: &str = "store";
        let value = self.any_arg(OP, value)?;
        let target = self.target(OP, tensor, Location::caller())?;
        let value = self.stored(OP, value, &target)?;
        let (shape, of_value) = (&target.layout.shape, self.part_ref(value).shape(value.node));
        let stretches = target.dtype.is_quantized() && of_value != shape;
        if stretches || of_value.broadcast(shape).as_ref() != Some(shape) {
            return Err(OpError::Shape {
                op: OP,
                operands: vec![self.info(value), self.target_info(&target)],
                reason: "the value does not broadcast to the tensor".to_owned(),
            });
        }
        let part = self.part(value);
        let node = part.broadcast(value.node, &target.layout.shape);
        part.store(node, target.slot, target.layout);
        Ok(())
    }

    /// Writes a value into a preallocated tensor from `position` of an axis on, as a key/value cache grows. All other sizes must be equal.
    /// The position may change from frame to frame at no cost.
    #[track_caller]
    pub fn append(
        &mut self,
        cache: Entity,
        value: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        position: usize,
    ) -> Result<(), OpError> {
        const OP: &str = "append";
        let value = self.arg(OP, value)?;
        let target = self.target(OP, cache, Location::caller())?;
        let value = self.stored(OP, value, &target)?;
        let Axis(asked) = axis.into();
        let (room, shape) = (&target.layout.shape, self.shape_of_arg(value));
        let axis = resolve_axis(asked, room).map_err(|_| OpError::Axis {
            op: OP,
            operand: Box::new(self.target_info(&target)),
            axis: asked,
            reason: "does not exist",
        })?;
        let fail = |reason: String| OpError::Shape {
            op: OP,
            operands: vec![self.info(value), self.target_info(&target)],
            reason,
        };
        if shape.rank() != room.rank() || (0..room.rank()).any(|i| i != axis && shape[i] != room[i]) {
            return Err(fail(format!("only axis {axis} may differ")));
        }
        let (count, size) = (shape[axis], room[axis]);
        if position.checked_add(count).is_none_or(|end| end > size) {
            return Err(fail(format!("{count} from position {position} do not fit in {size}, axis {axis}")));
        }
        let layout = target.layout.slice(axis, 0, count, 1);
        let op = Op::Store { slot: target.slot, layout, at: Some(axis) };
        self.part(value).push(op, &[value.node], shape, target.dtype, &[position as u32]);
        Ok(())
    }

    /// Writes host values, in row-major order, into a tensor of their type and number.
    #[track_caller]
    pub fn write<T: Element>(&mut self, tensor: Entity, values: &[T]) -> Result<(), OpError> {
        const OP: &str = "write";
        let target = self.target(OP, tensor, Location::caller())?;
        let elements = target.layout.elements();
        if T::DTYPE != target.dtype {
            return Err(self.data_error(OP, &target, format!("the values are {}", T::DTYPE)));
        }
        if values.len() != elements {
            return Err(self.data_error(OP, &target, format!("{} values were given for {elements}", values.len())));
        }
        let part = self.recording.0.part(target.backend);
        let node = part.host(pack(values), target.layout.shape.clone(), target.dtype);
        part.store(node, target.slot, target.layout);
        Ok(())
    }

    /// Writes host data into a tensor of its shape and type, without copying it on the way.
    #[track_caller]
    pub fn write_data(&mut self, tensor: Entity, data: &TensorData) -> Result<(), OpError> {
        const OP: &str = "write_data";
        let target = self.target(OP, tensor, Location::caller())?;
        if data.dtype() != target.dtype {
            return Err(self.data_error(OP, &target, format!("the values are {}", data.dtype())));
        }
        if *data.shape() != target.layout.shape {
            return Err(self.data_error(OP, &target, format!("the values are {}", data.shape())));
        }
        let part = self.recording.0.part(target.backend);
        let node = part.host(data.words().clone(), target.layout.shape.clone(), target.dtype);
        part.store(node, target.slot, target.layout);
        Ok(())
    }

    /// Asks for a tensor's values as they are at this point: a [`TensorReady`](crate::TensorReady) event on the tensor when they are here.
    #[track_caller]
    pub fn notify(&mut self, tensor: Entity) -> Result<(), OpError> {
        let x = self.any_arg("notify", tensor)?;
        let request = ReadRequest::event(self.dtype_of_arg(x), self.shape_of_arg(x), tensor, &self.notifications);
        self.part(x).read(x.node, request);
        Ok(())
    }

    /// Asks for the values of any operand as they are at this point. Dropping the receiver cancels.
    #[track_caller]
    pub fn read(&mut self, x: impl Into<TensorOperand>) -> Result<TensorReceiver, OpError> {
        let x = self.any_arg("read", x)?;
        let (request, receiver) = ReadRequest::receiver(self.dtype_of_arg(x), self.shape_of_arg(x));
        self.part(x).read(x.node, request);
        Ok(receiver)
    }

    /// Asks for the values of a tensor that no entity shows.
    #[track_caller]
    pub(crate) fn read_tensor(&mut self, tensor: &Tensor) -> Result<TensorReceiver, OpError> {
        let (storage, layout) = (tensor.storage(), tensor.layout().clone());
        let backend = storage.home(self.support.backend);
        let (request, receiver) = ReadRequest::receiver(tensor.dtype(), layout.shape.clone());
        let part = self.begin(backend, "read", Location::caller());
        let node = part.load(storage, layout);
        part.read(node, request);
        Ok(receiver)
    }

    /// Writes host data into a tensor of its shape and type that no entity shows; its backend must be decided.
    #[track_caller]
    pub(crate) fn write_tensor(&mut self, tensor: &Tensor, data: &TensorData) -> Result<(), OpError> {
        let (storage, layout) = (tensor.storage(), tensor.layout().clone());
        debug_assert!(data.shape() == tensor.shape() && data.dtype() == tensor.dtype());
        let backend = storage.home(self.support.backend);
        let part = self.begin(backend, "write", Location::caller());
        let slot = part.slot(storage);
        let node = part.host(data.words().clone(), layout.shape.clone(), data.dtype());
        part.store(node, slot, layout);
        Ok(())
    }

    /// Looks a tensor up to write it.
    fn target(
        &mut self,
        op: &'static str,
        entity: Entity,
        site: &'static Location<'static>,
    ) -> Result<Target, OpError> {
        let (tensor, backend) = self.tensor(op, entity)?;
        let (storage, layout, dtype) = (tensor.storage().clone(), tensor.layout().clone(), tensor.dtype());
        let slot = self.begin(backend, op, site).slot(&storage);
        let target = Target { entity, backend, slot, layout, dtype };
        if target.layout.overlaps_itself() {
            return Err(OpError::ReadOnlyView { op, operand: Box::new(self.target_info(&target)) });
        }
        Ok(target)
    }

    /// A value that fits its target's backend and type.
    fn stored(&mut self, op: &'static str, value: Arg, target: &Target) -> Result<Arg, OpError> {
        if let Some(number) = value.number {
            if target.dtype.is_quantized() {
                return Err(OpError::Type {
                    op,
                    operands: vec![self.info(value), self.target_info(target)],
                    reason: "a number has no blocks; quantize a value of the tensor's shape".to_owned(),
                });
            }
            let node = self.recording.0.part(target.backend).number(number, target.dtype);
            return Ok(Arg { node, backend: target.backend, ..value });
        }
        if value.backend != target.backend {
            return Err(OpError::MixedBackends {
                op,
                first: self.info(value).name,
                first_backend: value.backend,
                second: self.target_info(target).name,
                second_backend: target.backend,
            });
        }
        if self.dtype_of_arg(value) != target.dtype {
            return Err(OpError::Type {
                op,
                operands: vec![self.info(value), self.target_info(target)],
                reason: "both must have one element type; cast the value".to_owned(),
            });
        }
        Ok(value)
    }

    /// A tensor about to be written, as errors name it.
    fn target_info(&self, target: &Target) -> OperandInfo {
        let name = self.entity_name(target.entity);
        OperandInfo { name, shape: target.layout.shape.clone(), dtype: target.dtype }
    }

    fn data_error(&self, op: &'static str, target: &Target, reason: String) -> OpError {
        OpError::Data { op, operand: Box::new(self.target_info(target)), reason }
    }
}
