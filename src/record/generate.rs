//! Values that no operand is needed for, and masks that depend on positions only. New values live on the app's backend.

use super::{Arg, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
#[cfg(feature = "onnx")]
use crate::ir::UnaryOp;
use crate::ir::{Backend, BinaryOp, DType, NodeId, Shape};
use crate::tensor::{TensorData, pack};

/// New values.
impl TensorCommands<'_, '_> {
    /// A value filled with one number, which is converted as by a cast.
    #[doc(alias = "fill")]
    #[doc(alias = "full_like")]
    #[doc(alias = "zeros")]
    #[doc(alias = "ones")]
    #[track_caller]
    pub fn full(&self, shape: impl Into<Shape>, value: f64, dtype: DType) -> OpResult<TensorValue<'_>> {
        const OP: &str = "full";
        let rec = &mut self.recorder();
        rec.plain_type(OP, dtype)?;
        let backend = rec.ops.support.backend;
        let node = rec.begin(backend, OP).full(value, &shape.into(), dtype);
        rec.value(backend, node)
    }

    /// Numbers that are part of the plan, on the backend of another value.
    pub(crate) fn constant_like(
        &self,
        like: TensorValue<'_>,
        values: &[f32],
        shape: impl Into<Shape>,
    ) -> OpResult<TensorValue<'_>> {
        let rec = &mut self.recorder();
        let node = rec.recording.part(like.backend).constant(pack(values), shape.into(), DType::F32);
        rec.value(like.backend, node)
    }

    /// Host values on a backend. A constant is part of the plan; other values are uploaded with every recording.
    #[track_caller]
    pub(crate) fn host_value(&self, backend: Backend, data: &TensorData, constant: bool) -> OpResult<TensorValue<'_>> {
        const OP: &str = "host values";
        let rec = &mut self.recorder();
        let (shape, dtype) = (data.shape().clone(), data.dtype());
        let part = rec.begin(backend, OP);
        let node = match (data.words().first(), shape.elements()) {
            // One number is a parameter, which needs no buffer.
            (Some(&word), 1) => {
                let number = part.scalar(dtype, widened(word, dtype));
                part.reshape(number, &shape)
            }
            _ if constant => part.constant(data.shared_words(), shape, dtype),
            _ => part.host(data.shared_words(), shape, dtype),
        };
        rec.value(backend, node)
    }

    /// A number as a rank-0 value on a backend.
    #[cfg(feature = "onnx")]
    #[track_caller]
    pub(crate) fn number_value(&self, backend: Backend, value: f64, dtype: DType) -> TensorValue<'_> {
        let rec = &mut self.recorder();
        let node = rec.begin(backend, "number").number(value, dtype);
        rec.small_value(backend, node)
    }

    /// 0, 1, 2, … as `i32 [count]` on a backend.
    #[cfg(feature = "onnx")]
    #[track_caller]
    pub(crate) fn steps_value(&self, backend: Backend, count: usize) -> OpResult<TensorValue<'_>> {
        const OP: &str = "steps";
        let rec = &mut self.recorder();
        let node = rec.begin(backend, OP).iota(count);
        rec.value(backend, node)
    }

    /// Random f32 on a backend: uniform in [0, 1), or normal. The seed is a parameter, not part of the plan.
    #[cfg(feature = "onnx")]
    #[track_caller]
    pub(crate) fn random_value(
        &self,
        backend: Backend,
        normal: bool,
        shape: Shape,
        seed: u32,
    ) -> OpResult<TensorValue<'_>> {
        const OP: &str = "random";
        let function = if normal { UnaryOp::RandomNormal } else { UnaryOp::RandomUniform };
        let rec = &mut self.recorder();
        let part = rec.begin(backend, OP);
        let flat = part.random(function, shape.elements(), seed);
        let node = part.reshape(flat, &shape);
        rec.value(backend, node)
    }

    /// `count` numbers: `start`, `start + step`, ….
    #[doc(alias = "range")]
    #[track_caller]
    pub fn arange(&self, start: f64, step: f64, count: usize, dtype: DType) -> OpResult<TensorValue<'_>> {
        const OP: &str = "arange";
        let rec = &mut self.recorder();
        rec.plain_type(OP, dtype)?;
        if dtype == DType::Bool {
            return Err(OpError::Argument { op: OP, reason: "bool is not a number".to_owned() });
        }
        let backend = rec.ops.support.backend;
        let part = rec.begin(backend, OP);
        let index = part.iota(count);
        let index = part.cast(index, dtype.wide());
        let scaled = part.binary_number(BinaryOp::Mul, index, step);
        let node = part.binary_number(BinaryOp::Add, scaled, start);
        let node = part.cast(node, dtype);
        rec.value(backend, node)
    }

    /// A matrix `[rows, columns]` with ones on diagonal `k` (column = row + `k`) and zeros elsewhere.
    #[doc(alias = "identity")]
    #[track_caller]
    pub fn eye(&self, rows: usize, columns: usize, k: i32, dtype: DType) -> OpResult<TensorValue<'_>> {
        const OP: &str = "eye";
        let rec = &mut self.recorder();
        rec.plain_type(OP, dtype)?;
        let backend = rec.ops.support.backend;
        rec.begin(backend, OP);
        let node = rec.diagonal(backend, rows, columns, k, BinaryOp::Eq);
        let node = rec.recording.part(backend).cast(node, dtype);
        rec.value(backend, node)
    }

    /// The lower triangle of the last two axes: zeros above diagonal `k`.
    #[track_caller]
    pub fn tril<'a>(&'a self, x: impl Into<TensorOperand<'a>>, k: i32) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg("tril", x)?;
        rec.triangle("tril", x, k, BinaryOp::Le)
    }

    /// The upper triangle of the last two axes: zeros below diagonal `k`.
    #[track_caller]
    pub fn triu<'a>(&'a self, x: impl Into<TensorOperand<'a>>, k: i32) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg("triu", x)?;
        rec.triangle("triu", x, k, BinaryOp::Ge)
    }

    /// Adds a last axis of size `depth` with a one at each index and zeros elsewhere. Negative indices count from the
    /// end. Indices out of range give zeros.
    #[track_caller]
    pub fn one_hot<'a>(
        &'a self,
        indices: impl Into<TensorOperand<'a>>,
        depth: usize,
        dtype: DType,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "one_hot";
        let indices = indices.into();
        let rec = &mut self.recorder();
        rec.plain_type(OP, dtype)?;
        let indices = rec.index_arg(OP, indices)?;
        let mut shape = rec.shape_of_arg(indices);
        shape.dims_mut().push(1);
        let part = rec.part(indices);
        let index = part.cast(indices.node, DType::I32);
        let index = part.reshape(index, &shape);
        let zero = part.full(0.0, &shape, DType::I32);
        let negative = part.binary(BinaryOp::Lt, index, zero);
        let wrapped = part.binary_number(BinaryOp::Add, index, depth as f64);
        let index = part.select(negative, wrapped, index);
        let column = part.iota(depth);
        let node = part.binary_broadcast(BinaryOp::Eq, index, column);
        let node = part.cast(node, dtype);
        rec.value(indices.backend, node)
    }
}

impl<'a> Recorder<'a> {
    /// Compares each column with row + `k`: `bool [rows, columns]`.
    fn diagonal(&mut self, backend: Backend, rows: usize, columns: usize, k: i32, compare: BinaryOp) -> NodeId {
        let part = self.recording.part(backend);
        let row = part.iota(rows);
        // Diagonals beyond the matrix are all alike, and a huge `k` would overflow.
        let k = i64::from(k).clamp(-(rows.min(i32::MAX as usize) as i64), columns.min(i32::MAX as usize) as i64);
        let row = part.binary_number(BinaryOp::Add, row, k as f64);
        let row = part.reshape(row, &Shape::from([rows, 1]));
        let column = part.iota(columns);
        let column = part.reshape(column, &Shape::from([1, columns]));
        part.binary_broadcast(compare, column, row)
    }

    fn triangle(&mut self, op: &'static str, x: Arg, k: i32, keep: BinaryOp) -> OpResult<TensorValue<'a>> {
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        let [.., rows, columns] = shape[..] else {
            return Err(self.shape_error(op, &[x], "it needs two axes"));
        };
        let mask = self.diagonal(x.backend, rows, columns, k, keep);
        let part = self.part(x);
        let mask = part.broadcast(mask, &shape);
        let zero = part.full(0.0, &shape, dtype);
        let node = part.select(mask, x.node, zero);
        self.value(x.backend, node)
    }
}

/// The first element of a word, as bits of its 32-bit type.
fn widened(word: u32, dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::I32 | DType::U32 | DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => word,
        DType::F16 => half::f16::from_bits(word as u16).to_f32().to_bits(),
        DType::BF16 => word << 16,
        DType::I8 => i32::from(word as i8) as u32,
        DType::U8 | DType::Bool => word & 0xff,
    }
}
