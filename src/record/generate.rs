//! Values that are made, not computed from others, and those that depend on positions alone. They live on the app's backend.

use crate::ir::{BinaryOp, DType, Shape};
use core::panic::Location;

use super::{Arg, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpError;
use crate::tensor::pack;

/// Made values.
impl TensorCommands<'_, '_> {
    /// One number everywhere, converted as a cast would.
    #[track_caller]
    pub fn fill(&mut self, shape: impl Into<Shape>, value: f64, dtype: DType) -> Result<TensorValue, OpError> {
        const OP: &str = "fill";
        self.plain_type(OP, dtype)?;
        let backend = self.support.backend;
        let node = self.begin(backend, OP, Location::caller()).full(value, &shape.into(), dtype);
        self.sized(OP, backend, node)
    }

    /// Numbers that are part of the structure, on the backend of a value they are to meet.
    pub(crate) fn constant_like(
        &mut self,
        like: TensorValue,
        values: &[f32],
        shape: impl Into<Shape>,
    ) -> Result<TensorValue, OpError> {
        let node = self.recording.0.part(like.backend).constant(pack(values), shape.into(), DType::F32);
        Ok(self.value(like.backend, node))
    }

    /// `start`, `start + step`, …: `count` numbers.
    #[track_caller]
    pub fn arange(&mut self, start: f64, step: f64, count: usize, dtype: DType) -> Result<TensorValue, OpError> {
        const OP: &str = "arange";
        self.plain_type(OP, dtype)?;
        if dtype == DType::Bool {
            return Err(OpError::Argument { op: OP, reason: "truth values cannot be counted".to_owned() });
        }
        let backend = self.support.backend;
        let part = self.begin(backend, OP, Location::caller());
        let index = part.iota(count);
        let index = part.cast(index, dtype.wide());
        let scaled = part.binary_number(BinaryOp::Mul, index, step);
        let node = part.binary_number(BinaryOp::Add, scaled, start);
        let node = part.cast(node, dtype);
        self.sized(OP, backend, node)
    }

    /// `[rows, columns]` with ones where column = row + `k`.
    #[track_caller]
    pub fn eye(&mut self, rows: usize, columns: usize, k: i32, dtype: DType) -> Result<TensorValue, OpError> {
        const OP: &str = "eye";
        self.plain_type(OP, dtype)?;
        let backend = self.support.backend;
        self.begin(backend, OP, Location::caller());
        let node = self.diagonal(backend, rows, columns, k, BinaryOp::Eq);
        let node = self.recording.0.part(backend).cast(node, dtype);
        self.sized(OP, backend, node)
    }

    /// How the column compares with row + `k`, as `bool [rows, columns]`.
    fn diagonal(
        &mut self,
        backend: crate::Backend,
        rows: usize,
        columns: usize,
        k: i32,
        compare: BinaryOp,
    ) -> super::NodeId {
        let part = self.recording.0.part(backend);
        let row = part.iota(rows);
        let row = part.binary_number(BinaryOp::Add, row, f64::from(k));
        let row = part.reshape(row, &Shape::from([rows, 1]));
        let column = part.iota(columns);
        let column = part.reshape(column, &Shape::from([1, columns]));
        part.binary_broadcast(compare, column, row)
    }

    /// The last two axes with zeros above diagonal `k`.
    #[track_caller]
    pub fn tril(&mut self, x: impl Into<TensorOperand>, k: i32) -> Result<TensorValue, OpError> {
        let x = self.arg("tril", x)?;
        self.triangle("tril", x, k, BinaryOp::Le)
    }

    /// The last two axes with zeros below diagonal `k`.
    #[track_caller]
    pub fn triu(&mut self, x: impl Into<TensorOperand>, k: i32) -> Result<TensorValue, OpError> {
        let x = self.arg("triu", x)?;
        self.triangle("triu", x, k, BinaryOp::Ge)
    }

    fn triangle(&mut self, op: &'static str, x: Arg, k: i32, keep: BinaryOp) -> Result<TensorValue, OpError> {
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        let [.., rows, columns] = shape[..] else {
            return Err(self.shape_error(op, &[x], "it needs two axes"));
        };
        let mask = self.diagonal(x.backend, rows, columns, k, keep);
        let part = self.part(x);
        let mask = part.broadcast(mask, &shape);
        let zero = part.full(0.0, &shape, dtype);
        let node = part.select(mask, x.node, zero);
        Ok(self.value(x.backend, node))
    }

    /// A new last axis of size `depth` with a one at each index (negative from the end) and zeros elsewhere; indices out of range give zeros.
    #[track_caller]
    pub fn one_hot(
        &mut self,
        indices: impl Into<TensorOperand>,
        depth: usize,
        dtype: DType,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "one_hot";
        self.plain_type(OP, dtype)?;
        let indices = self.index_arg(OP, indices)?;
        let mut shape = self.shape_of_arg(indices);
        shape.dims_mut().push(1);
        let part = self.part(indices);
        let index = part.cast(indices.node, DType::I32);
        let index = part.reshape(index, &shape);
        let zero = part.full(0.0, &shape, DType::I32);
        let negative = part.binary(BinaryOp::Lt, index, zero);
        let wrapped = part.binary_number(BinaryOp::Add, index, depth as f64);
        let index = part.select(negative, wrapped, index);
        let column = part.iota(depth);
        let node = part.binary_broadcast(BinaryOp::Eq, index, column);
        let node = part.cast(node, dtype);
        self.sized(OP, indices.backend, node)
    }

    /// The name NumPy and ONNX have for [`select`](Self::select).
    #[track_caller]
    pub fn where_(
        &mut self,
        condition: impl Into<TensorOperand>,
        yes: impl Into<TensorOperand>,
        no: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        self.select(condition, yes, no)
    }
}
