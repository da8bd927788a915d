//! Effects: ops that write tensors or send values to the host. Only they keep other ops alive.

use bevy::ecs::entity::Entity;

#[cfg(feature = "onnx")]
use super::TensorValue;
use super::{Arg, Recorder, TensorAxis, TensorCommands, TensorOperand};
use crate::error::{OpError, OpResult, OperandInfo};
use crate::ir::{Backend, DType, Element, Layout, Op};
use crate::readback::{ReadRequest, TensorReceiver};
use crate::tensor::{Tensor, TensorData, pack, resolve_axis};

/// A tensor to write.
struct Target {
    entity: Entity,
    backend: Backend,
    slot: u32,
    layout: Layout,
    dtype: DType,
}

/// Effects. An op whose value reaches no effect does not run.
impl TensorCommands<'_, '_> {
    /// Stores a value in a tensor of the same element type. The value is broadcast to the tensor's shape. Only
    /// quantised values must have that shape.
    #[doc(alias = "copy_")]
    #[track_caller]
    pub fn store<'a>(&'a self, value: impl Into<TensorOperand<'a>>, tensor: Entity) -> OpResult<()> {
        const OP: &str = "store";
        let value = value.into();
        let rec = &mut self.recorder();
        let value = rec.any_arg(OP, value)?;
        let target = rec.target(OP, tensor)?;
        let value = rec.stored(OP, value, &target)?;
        let (shape, of_value) = (&target.layout.shape, rec.part_ref(value).shape(value.node));
        let stretches = target.dtype.is_quantized() && of_value != shape;
        if stretches || of_value.broadcast(shape).as_ref() != Some(shape) {
            return Err(OpError::Shape {
                op: OP,
                operands: vec![rec.info(value), rec.target_info(&target)],
                reason: "the value does not broadcast to the tensor".to_owned(),
            });
        }
        let part = rec.part(value);
        let node = part.broadcast(value.node, &target.layout.shape);
        part.store(node, target.slot, target.layout);
        Ok(())
    }

    /// Writes a value into a preallocated tensor, starting at `position` of an axis, as a key/value cache needs it. All
    /// other sizes must be equal. A new position every frame needs no new plan.
    #[track_caller]
    pub fn append<'a>(
        &'a self,
        cache: Entity,
        value: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        position: usize,
    ) -> OpResult<()> {
        const OP: &str = "append";
        let value = value.into();
        let rec = &mut self.recorder();
        let value = rec.arg(OP, value)?;
        let target = rec.target(OP, cache)?;
        let value = rec.stored(OP, value, &target)?;
        let TensorAxis(asked) = axis.into();
        let (room, shape) = (&target.layout.shape, rec.shape_of_arg(value));
        let axis = resolve_axis(asked, room).map_err(|_| OpError::Axis {
            op: OP,
            operand: Box::new(rec.target_info(&target)),
            axis: asked,
            reason: "does not exist",
        })?;
        let fail = |reason: String| OpError::Shape {
            op: OP,
            operands: vec![rec.info(value), rec.target_info(&target)],
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
        rec.part(value).push(op, &[value.node], shape, target.dtype, &[position as u32]);
        Ok(())
    }

    /// Writes host values, in row-major order, to a tensor with the same element type and number of elements.
    #[track_caller]
    pub fn write<T: Element>(&self, tensor: Entity, values: &[T]) -> OpResult<()> {
        const OP: &str = "write";
        let rec = &mut self.recorder();
        let target = rec.target(OP, tensor)?;
        let elements = target.layout.elements();
        if T::DTYPE != target.dtype {
            return Err(rec.data_error(OP, &target, format!("the values are {}", T::DTYPE)));
        }
        if values.len() != elements {
            return Err(rec.data_error(OP, &target, format!("{} values were given for {elements}", values.len())));
        }
        let part = rec.recording.part(target.backend);
        let node = part.host(pack(values), target.layout.shape.clone(), target.dtype);
        part.store(node, target.slot, target.layout);
        Ok(())
    }

    /// Writes host data to a tensor with the same shape and element type. The data is shared, not copied.
    #[track_caller]
    pub fn write_data(&self, tensor: Entity, data: &TensorData) -> OpResult<()> {
        const OP: &str = "write_data";
        let rec = &mut self.recorder();
        let target = rec.target(OP, tensor)?;
        if data.dtype() != target.dtype {
            return Err(rec.data_error(OP, &target, format!("the values are {}", data.dtype())));
        }
        if *data.shape() != target.layout.shape {
            return Err(rec.data_error(OP, &target, format!("the values are {}", data.shape())));
        }
        let part = rec.recording.part(target.backend);
        let node = part.host(data.shared_words(), target.layout.shape.clone(), target.dtype);
        part.store(node, target.slot, target.layout);
        Ok(())
    }

    /// Requests a tensor's values at this point of the recording. When they arrive, a
    /// [`TensorReady`](crate::readback::TensorReady) event is triggered on the tensor.
    #[track_caller]
    pub fn notify(&self, tensor: Entity) -> OpResult<()> {
        let rec = &mut self.recorder();
        let x = rec.any_arg("notify", tensor.into())?;
        let request = ReadRequest::event(rec.dtype_of_arg(x), rec.shape_of_arg(x), tensor, &rec.ops.notifications);
        rec.part(x).read(x.node, request);
        Ok(())
    }

    /// Requests the values of an operand at this point of the recording. Dropping the receiver cancels the request.
    #[doc(alias = "item")]
    #[doc(alias = "numpy")]
    #[track_caller]
    pub fn read<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorReceiver> {
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.any_arg("read", x)?;
        let (request, receiver) = ReadRequest::receiver(rec.dtype_of_arg(x), rec.shape_of_arg(x));
        rec.part(x).read(x.node, request);
        Ok(receiver)
    }

    /// Requests the values of a tensor that has no entity.
    #[track_caller]
    pub(crate) fn read_tensor(&self, tensor: &Tensor) -> OpResult<TensorReceiver> {
        let rec = &mut self.recorder();
        let (storage, layout) = (tensor.storage(), tensor.layout().clone());
        let backend = storage.home(rec.ops.support.backend);
        let (request, receiver) = ReadRequest::receiver(tensor.dtype(), layout.shape.clone());
        let part = rec.begin(backend, "read");
        let node = part.load(storage, layout);
        part.read(node, request);
        Ok(receiver)
    }

    /// Keeps a value in a new tensor without an entity, for later recordings.
    #[cfg(feature = "onnx")]
    #[track_caller]
    pub(crate) fn keep(&self, value: TensorValue<'_>) -> OpResult<Tensor> {
        let rec = &mut self.recorder();
        let value = rec.any_arg("keep", value.into())?;
        let tensor = Tensor::blank(rec.dtype_of_arg(value), rec.shape_of_arg(value));
        tensor.storage().home(value.backend);
        let part = rec.part(value);
        let slot = part.slot(tensor.storage());
        part.store(value.node, slot, tensor.layout().clone());
        Ok(tensor)
    }

    /// Writes host data to a tensor of the same shape and type that has no entity. Its backend must be decided.
    #[track_caller]
    pub(crate) fn write_tensor(&self, tensor: &Tensor, data: &TensorData) -> OpResult<()> {
        let rec = &mut self.recorder();
        let (storage, layout) = (tensor.storage(), tensor.layout().clone());
        debug_assert!(data.shape() == tensor.shape() && data.dtype() == tensor.dtype());
        let backend = storage.home(rec.ops.support.backend);
        let part = rec.begin(backend, "write");
        let slot = part.slot(storage);
        let node = part.host(data.shared_words(), layout.shape.clone(), data.dtype());
        part.store(node, slot, layout);
        Ok(())
    }
}

impl Recorder<'_> {
    /// Looks up a tensor to write.
    fn target(&mut self, op: &'static str, entity: Entity) -> OpResult<Target> {
        let (tensor, backend) = self.tensor(op, entity)?;
        let (layout, dtype) = (tensor.layout().clone(), tensor.dtype());
        let slot = self.begin(backend, op).slot(tensor.storage());
        let target = Target { entity, backend, slot, layout, dtype };
        if target.layout.overlaps_itself() {
            return Err(OpError::ReadOnlyView { op, operand: Box::new(self.target_info(&target)) });
        }
        Ok(target)
    }

    /// Checks that a value has its target's backend and type. A number takes both.
    fn stored(&mut self, op: &'static str, value: Arg, target: &Target) -> OpResult<Arg> {
        if let Some(number) = value.number {
            if target.dtype.is_quantized() {
                return Err(OpError::Type {
                    op,
                    operands: vec![self.info(value), self.target_info(target)],
                    reason: "a number has no blocks; quantize a value of the tensor's shape".to_owned(),
                });
            }
            let node = self.recording.part(target.backend).number(number, target.dtype);
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

    /// A target as errors name it.
    fn target_info(&self, target: &Target) -> OperandInfo {
        let name = self.ops.entity_name(target.entity);
        OperandInfo { name, shape: target.layout.shape.clone(), dtype: target.dtype }
    }

    fn data_error(&self, op: &'static str, target: &Target, reason: String) -> OpError {
        OpError::Data { op, operand: Box::new(self.target_info(target)), reason }
    }
}
