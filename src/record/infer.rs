//! What can be asked of an operand without recording anything: its shape and element type.

use std::borrow::Cow;

use super::elementwise::{Misfit, binary_shape};
use super::{Recording, TensorCommands, TensorExpression, TensorOperand, TensorValue, operand};
use crate::error::{OpError, OpResult, OperandInfo};
use crate::ir::{Backend, BinaryOp, DType, Shape};

/// What is known of an operand that may not have been recorded yet.
struct Known<'a> {
    operand: &'a TensorOperand<'a>,
    shape: Cow<'a, Shape>,
    dtype: DType,
    backend: Backend,
}

impl Known<'_> {
    fn is_number(&self) -> bool {
        matches!(self.operand, TensorOperand::Number(_))
    }
}

/// Operands themselves.
impl TensorCommands<'_, '_> {
    /// Turns an operand into a value.
    ///
    /// The value of an entity is its tensor with the content it has at this point of the recording. This is not an op:
    /// nothing is copied and no kernel is launched. An expression is recorded once, so that several ops can share it.
    #[track_caller]
    pub fn value<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.any_arg("value", x)?;
        Ok(TensorValue { entity: x.entity, ..rec.value(x.backend, x.node)? })
    }

    /// The shape of an operand. Records nothing.
    #[doc(alias = "size")]
    pub fn shape<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<Shape> {
        let x = x.into();
        let recording = self.recording.0.borrow();
        Ok(self.known("shape", &x, &recording)?.shape.into_owned())
    }

    /// The element type of an operand. Records nothing.
    pub fn dtype<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<DType> {
        let x = x.into();
        let recording = self.recording.0.borrow();
        Ok(self.known("dtype", &x, &recording)?.dtype)
    }

    fn known<'a>(
        &'a self,
        op: &'static str,
        operand: &'a TensorOperand<'a>,
        recording: &'a Recording,
    ) -> OpResult<Known<'a>> {
        let (shape, dtype, backend) = match operand {
            TensorOperand::Tensor(entity) => {
                let (tensor, of) = self.lookup(op, *entity)?;
                let backend = tensor.storage().decided_home().unwrap_or_else(|| self.wish(of));
                (Cow::Borrowed(tensor.shape()), tensor.dtype(), backend)
            }
            TensorOperand::Value(value) => {
                if value.recording != recording.id {
                    return Err(OpError::ForeignValue { op });
                }
                let node = recording.part_of(value.backend, value.segment).graph.node(value.node);
                (Cow::Borrowed(&node.shape), node.dtype, value.backend)
            }
            TensorOperand::Number(_) => (Cow::Owned(Shape::default()), operand::NUMBER, self.support.backend),
            TensorOperand::Expression(expression) => {
                let TensorExpression { op: binary, left, right } = &**expression;
                let left = self.known_element(op, left, recording)?;
                let right = self.known_element(op, right, recording)?;
                return self.known_binary(op, *binary, operand, left, right, recording);
            }
        };
        Ok(Known { operand, shape, dtype, backend })
    }

    /// An operand of arithmetic, which cannot be quantised.
    fn known_element<'a>(
        &'a self,
        op: &'static str,
        operand: &'a TensorOperand<'a>,
        recording: &'a Recording,
    ) -> OpResult<Known<'a>> {
        let known = self.known(op, operand, recording)?;
        if known.dtype.is_quantized() {
            let reason = format!("this op does not take {}; dequantize first", known.dtype);
            return Err(OpError::Type { op, operands: vec![self.known_info(op, &known, recording)], reason });
        }
        Ok(known)
    }

    /// The rules of recording an expression, without recording it.
    fn known_binary<'a>(
        &'a self,
        op: &'static str,
        function: BinaryOp,
        operand: &'a TensorOperand<'a>,
        mut left: Known<'a>,
        mut right: Known<'a>,
        recording: &Recording,
    ) -> OpResult<Known<'a>> {
        match (left.is_number(), right.is_number()) {
            (true, false) => (left.dtype, left.backend) = (right.dtype, right.backend),
            (false, true) => (right.dtype, right.backend) = (left.dtype, left.backend),
            _ => {}
        }
        let info = |known: &Known| self.known_info(op, known, recording);
        if left.backend != right.backend {
            return Err(OpError::MixedBackends {
                op,
                first: info(&left).name,
                first_backend: left.backend,
                second: info(&right).name,
                second_backend: right.backend,
            });
        }
        match binary_shape(function, (&left.shape, left.dtype), (&right.shape, right.dtype)) {
            Ok(shape) => Ok(Known { operand, shape: Cow::Owned(shape), dtype: left.dtype, backend: left.backend }),
            Err(Misfit::Type(reason)) => {
                Err(OpError::Type { op, operands: vec![info(&left), info(&right)], reason: reason.to_owned() })
            }
            Err(Misfit::Shape(reason)) => {
                Err(OpError::Shape { op, operands: vec![info(&left), info(&right)], reason: reason.to_owned() })
            }
        }
    }

    /// An operand as errors name it.
    fn known_info(&self, op: &'static str, known: &Known, recording: &Recording) -> OperandInfo {
        let name = match known.operand {
            TensorOperand::Tensor(entity) | TensorOperand::Value(TensorValue { entity: Some(entity), .. }) => {
                self.entity_name(*entity)
            }
            TensorOperand::Value(value) => {
                format!("the value of {}", recording.part_of(value.backend, value.segment).graph.node(value.node).name)
            }
            TensorOperand::Number(number) => format!("the number {number}"),
            TensorOperand::Expression(_) => format!("the value of {op}"),
        };
        OperandInfo { name, shape: known.shape.clone().into_owned(), dtype: known.dtype }
    }
}
