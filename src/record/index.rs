//! Gathers and scatters. Negative indices count from the end. An index out of range is clamped at run time and reported
//! as [`RunError::IndexOutOfRange`](crate::error::RunError::IndexOutOfRange).

use bevy::ecs::entity::Entity;

use super::{Arg, Recorder, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpResult;
use crate::ir::{BinaryOp, DType, NodeId, Op, ScatterReduce, Shape};

/// How a scatter combines an element with its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ScatterMode {
    /// The last update replaces the element.
    #[default]
    Replace,
    /// Updates are added to the element.
    Add,
    /// The element is multiplied by the updates.
    Mul,
    /// The minimum of element and updates.
    Min,
    /// The maximum of element and updates.
    Max,
}

impl From<ScatterMode> for ScatterReduce {
    fn from(mode: ScatterMode) -> Self {
        match mode {
            ScatterMode::Replace => Self::Replace,
            ScatterMode::Add => Self::Add,
            ScatterMode::Mul => Self::Mul,
            ScatterMode::Min => Self::Min,
            ScatterMode::Max => Self::Max,
        }
    }
}

/// Gathers and scatters. Negative indices count from the end. An index out of range is clamped at run time and reported
/// as [`RunError::IndexOutOfRange`](crate::error::RunError::IndexOutOfRange).
impl TensorCommands<'_, '_> {
    /// `count` elements of a tensor of one axis, from `start` on, which continue at its beginning. A new start needs no new
    /// plan.
    #[track_caller]
    pub(crate) fn gather_ring(
        &self,
        op: &'static str,
        ring: Entity,
        start: usize,
        count: usize,
    ) -> OpResult<TensorValue<'_>> {
        let rec = &mut self.recorder();
        let x = rec.arg(op, ring.into())?;
        let (size, dtype) = (rec.shape_of_arg(x).elements(), rec.dtype_of_arg(x));
        let part = rec.part(x);
        let index = part.iota(count);
        let index = part.binary_number(BinaryOp::Add, index, start as f64);
        let index = part.binary_number(BinaryOp::Rem, index, size as f64);
        let node = part.push(Op::Gather { axis: 0 }, &[x.node, index], Shape::from([count]), dtype, &[]);
        rec.value(x.backend, node)
    }

    /// Slices of an axis by integer indices of any shape. The axes of the indices replace the axis. Quantised data
    /// gives `f32`.
    #[doc(alias = "take")]
    #[doc(alias = "index_select")]
    #[track_caller]
    pub fn gather<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        indices: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "gather";
        let (x, indices) = (x.into(), indices.into());
        let rec = &mut self.recorder();
        let (x, indices) = (rec.any_arg(OP, x)?, rec.index_arg(OP, indices)?);
        let axis = rec.axis(OP, x, axis.into())?;
        rec.gather_args(OP, x, indices, axis)
    }

    /// Rows of `table [n, d]` by ids of any shape: `[…ids, d]`. A quantised table gives `f32`.
    #[track_caller]
    pub fn embedding<'a>(
        &'a self,
        table: impl Into<TensorOperand<'a>>,
        ids: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "embedding";
        let (table, ids) = (table.into(), ids.into());
        let rec = &mut self.recorder();
        let (table, ids) = (rec.any_arg(OP, table)?, rec.index_arg(OP, ids)?);
        if rec.part_ref(table).shape(table.node).rank() != 2 {
            return Err(rec.shape_error(OP, &[table], "the table must be [n, d]"));
        }
        rec.gather_args(OP, table, ids, 0)
    }

    /// One element for each index: `out[p] = x[p with axis := index[p]]`. The other axes of the indices may be shorter
    /// than those of `x`.
    #[doc(alias = "take_along_axis")]
    #[doc(alias = "take_along_dim")]
    #[track_caller]
    pub fn gather_elements<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        indices: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "gather_elements";
        let (x, indices) = (x.into(), indices.into());
        let rec = &mut self.recorder();
        let (x, indices) = (rec.arg(OP, x)?, rec.index_arg(OP, indices)?);
        let (x, indices) = rec.indexed(OP, x, indices)?;
        let axis = rec.axis(OP, x, axis.into())?;
        rec.check_elements(OP, x, indices, axis)?;
        let (shape, dtype) = (rec.shape_of_arg(indices), rec.dtype_of_arg(x));
        let node = rec.part(x).push(Op::GatherElements { axis }, &[x.node, indices.node], shape, dtype, &[]);
        rec.value(x.backend, node)
    }

    /// Slices by index tuples `[…, depth]`. A tuple is a position in the axes of `x` that follow `batch` shared axes.
    #[track_caller]
    pub fn gather_nd<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        indices: impl Into<TensorOperand<'a>>,
        batch: usize,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "gather_nd";
        let (x, indices) = (x.into(), indices.into());
        let rec = &mut self.recorder();
        let (x, indices) = (rec.arg(OP, x)?, rec.index_arg(OP, indices)?);
        let (x, indices) = rec.indexed(OP, x, indices)?;
        let (data, index) = (rec.shape_of_arg(x), rec.shape_of_arg(indices));
        let depth = rec.tuple_depth(OP, x, indices, batch)?;
        if batch >= index.rank() || data[..batch] != index[..batch] {
            return Err(rec.shape_error(OP, &[x, indices], format!("the first {batch} axes must be shared")));
        }
        let outer = &index[..index.rank() - 1];
        let shape = Shape::new(outer.iter().chain(&data[batch + depth..]).copied());
        if data[batch..batch + depth].contains(&0) && shape.elements() > 0 {
            return Err(rec.shape_error(OP, &[x, indices], "an indexed axis is empty"));
        }
        let dtype = rec.dtype_of_arg(x);
        let node = rec.part(x).push(Op::GatherNd { batch }, &[x.node, indices.node], shape, dtype, &[]);
        rec.value(x.backend, node)
    }

    /// A copy of `x` with `updates[p]` written at `p with axis := index[p]`.
    #[doc(alias = "put_along_axis")]
    #[doc(alias = "scatter")]
    #[doc(alias = "scatter_add")]
    #[track_caller]
    pub fn scatter_elements<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        indices: impl Into<TensorOperand<'a>>,
        updates: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        mode: ScatterMode,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "scatter_elements";
        let (x, indices, updates) = (x.into(), indices.into(), updates.into());
        let rec = &mut self.recorder();
        let (x, indices, updates) = (rec.arg(OP, x)?, rec.index_arg(OP, indices)?, rec.arg(OP, updates)?);
        let (x, indices, updates) = rec.scattered(OP, x, indices, updates, mode)?;
        let axis = rec.axis(OP, x, axis.into())?;
        rec.check_elements(OP, x, indices, axis)?;
        let shape = rec.shape_of_arg(indices);
        let updates = rec.updates(OP, indices, updates, &shape)?;
        if shape.elements() == 0 {
            return rec.value(x.backend, x.node);
        }
        let (shape, dtype) = (rec.shape_of_arg(x), rec.dtype_of_arg(x));
        let op = Op::ScatterElements { axis, reduce: mode.into() };
        let node = rec.part(x).push(op, &[x.node, indices.node, updates], shape, dtype, &[]);
        rec.value(x.backend, node)
    }

    /// A copy of `x` with slices of `updates` written at index tuples `[…, depth]`.
    #[doc(alias = "index_put")]
    #[track_caller]
    pub fn scatter_nd<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        indices: impl Into<TensorOperand<'a>>,
        updates: impl Into<TensorOperand<'a>>,
        mode: ScatterMode,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "scatter_nd";
        let (x, indices, updates) = (x.into(), indices.into(), updates.into());
        let rec = &mut self.recorder();
        let (x, indices, updates) = (rec.arg(OP, x)?, rec.index_arg(OP, indices)?, rec.arg(OP, updates)?);
        let (x, indices, updates) = rec.scattered(OP, x, indices, updates, mode)?;
        let depth = rec.tuple_depth(OP, x, indices, 0)?;
        let (data, index) = (rec.shape_of_arg(x), rec.shape_of_arg(indices));
        let slices = Shape::new(index[..index.rank() - 1].iter().chain(&data[depth..]).copied());
        if data[..depth].contains(&0) && slices.elements() > 0 {
            return Err(rec.shape_error(OP, &[x, indices], "an indexed axis is empty"));
        }
        let updates = rec.updates(OP, indices, updates, &slices)?;
        if slices.elements() == 0 {
            return rec.value(x.backend, x.node);
        }
        let dtype = rec.dtype_of_arg(x);
        let op = Op::ScatterNd { reduce: mode.into() };
        let node = rec.part(x).push(op, &[x.node, indices.node, updates], data, dtype, &[]);
        rec.value(x.backend, node)
    }
}

impl<'a> Recorder<'a> {
    fn gather_args(&mut self, op: &'static str, x: Arg, indices: Arg, axis: usize) -> OpResult<TensorValue<'a>> {
        let (x, indices) = self.indexed(op, x, indices)?;
        let (data, index) = (self.part_ref(x).shape(x.node), self.part_ref(indices).shape(indices.node));
        if data[axis] == 0 && index.elements() > 0 {
            return Err(self.shape_error(op, &[x, indices], format!("axis {axis} is empty")));
        }
        let shape = Shape::new(data[..axis].iter().chain(index.iter()).chain(&data[axis + 1..]).copied());
        let dtype = match self.dtype_of_arg(x) {
            quantized if quantized.is_quantized() => DType::F32,
            dtype => dtype,
        };
        let node = self.part(x).push(Op::Gather { axis }, &[x.node, indices.node], shape, dtype, &[]);
        self.value(x.backend, node)
    }

    /// Moves data and indices to one backend.
    fn indexed(&mut self, op: &'static str, x: Arg, indices: Arg) -> OpResult<(Arg, Arg)> {
        let mut args = [x, indices];
        self.same_backend(op, &mut args)?;
        let [x, indices] = args;
        // A number that moved to another backend lost its type.
        Ok((x, self.number_as(indices, DType::I32)))
    }

    /// The shape rule of gathers and scatters of elements.
    fn check_elements(&self, op: &'static str, x: Arg, indices: Arg, axis: usize) -> OpResult<()> {
        let (data, index) = (self.part_ref(x).shape(x.node), self.part_ref(indices).shape(indices.node));
        if data.rank() != index.rank() {
            return Err(self.shape_error(op, &[x, indices], "both must have the same number of axes"));
        }
        if let Some(i) = (0..data.rank()).find(|&i| i != axis && index[i] > data[i]) {
            let reason = format!("axis {i} of the indices is longer");
            return Err(self.shape_error(op, &[x, indices], reason));
        }
        if data[axis] == 0 && index.elements() > 0 {
            return Err(self.shape_error(op, &[x, indices], format!("axis {axis} is empty")));
        }
        Ok(())
    }

    /// The length of the index tuples.
    fn tuple_depth(&self, op: &'static str, x: Arg, indices: Arg, batch: usize) -> OpResult<usize> {
        let (data, index) = (self.part_ref(x).shape(x.node), self.part_ref(indices).shape(indices.node));
        match index.last() {
            Some(&depth) if depth >= 1 && batch.saturating_add(depth) <= data.rank() => Ok(depth),
            Some(&depth) => {
                let reason = format!("tuples of {depth} do not fit the axes after {batch} batch axes");
                Err(self.shape_error(op, &[x, indices], reason))
            }
            None => Err(self.shape_error(op, &[x, indices], "the indices need an axis of tuples")),
        }
    }

    /// Checks that a scatter's operands are on one backend and the updates have the data's type.
    fn scattered(
        &mut self,
        op: &'static str,
        x: Arg,
        indices: Arg,
        updates: Arg,
        mode: ScatterMode,
    ) -> OpResult<(Arg, Arg, Arg)> {
        let mut args = [x, indices, updates];
        self.same_backend(op, &mut args)?;
        let [x, indices, updates] = args;
        let dtype = self.dtype_of_arg(x);
        let (indices, updates) = (self.number_as(indices, DType::I32), self.number_as(updates, dtype));
        if self.dtype_of_arg(updates) != dtype {
            return Err(self.type_error(op, &[x, updates], "both must have one element type; cast one"));
        }
        if dtype == DType::Bool && mode != ScatterMode::Replace {
            return Err(self.type_error(op, &[x], "bool elements can only be replaced"));
        }
        Ok((x, indices, updates))
    }

    /// The updates of a scatter: of the given shape, or one number for all.
    fn updates(&mut self, op: &'static str, indices: Arg, updates: Arg, shape: &Shape) -> OpResult<NodeId> {
        if updates.number.is_some() {
            return Ok(self.part(updates).broadcast(updates.node, shape));
        }
        if self.part_ref(updates).shape(updates.node) != shape {
            return Err(self.shape_error(op, &[indices, updates], format!("the updates must be {shape}")));
        }
        Ok(updates.node)
    }
}
