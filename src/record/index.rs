//! Gathers and scatters: elements by positions that are data. A negative index counts from the end; one out of range is clamped when it
//! runs and reported as [`RunError::IndexOutOfRange`](crate::RunError::IndexOutOfRange).

use super::{Arg, Axis, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpError;
use crate::ir::{DType, Op, ScatterReduce, Shape};

/// What a scatter does where an element is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ScatterMode {
    /// The last update in order wins.
    #[default]
    Replace,
    /// Updates are added.
    Add,
    /// Updates are multiplied in.
    Mul,
    /// The smallest of element and updates.
    Min,
    /// The largest of element and updates.
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

/// Gathers and scatters.
impl TensorCommands<'_, '_> {
    /// Slices of an axis by integer indices of any shape, which takes the axis's place. Of quantised data the result is `f32`.
    #[track_caller]
    pub fn gather(
        &mut self,
        x: impl Into<TensorOperand>,
        indices: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "gather";
        let (x, indices) = (self.any_arg(OP, x)?, self.index_arg(OP, indices)?);
        let axis = self.axis(OP, x, axis.into())?;
        self.gather_args(OP, x, indices, axis)
    }

    /// Rows of `table [n, d]` by ids of any shape: `[…ids, d]`. Of a quantised table the result is `f32`.
    #[track_caller]
    pub fn embedding(
        &mut self,
        table: impl Into<TensorOperand>,
        ids: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "embedding";
        let (table, ids) = (self.any_arg(OP, table)?, self.index_arg(OP, ids)?);
        if self.part_ref(table).shape(table.node).rank() != 2 {
            return Err(self.shape_error(OP, &[table], "the table must be [n, d]"));
        }
        self.gather_args(OP, table, ids, 0)
    }

    fn gather_args(&mut self, op: &'static str, x: Arg, indices: Arg, axis: usize) -> Result<TensorValue, OpError> {
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
        self.sized(op, x.backend, node)
    }

    /// Data and indices on one backend.
    fn indexed(&mut self, op: &'static str, x: Arg, indices: Arg) -> Result<(Arg, Arg), OpError> {
        let mut args = [x, indices];
        self.same_backend(op, &mut args)?;
        let [x, indices] = args;
        // A number that moved to another backend has lost its type there.
        Ok((x, self.number_as(indices, DType::I32)))
    }

    /// `out[p] = x[p with axis := index[p]]`: one element for each index. Other axes of the indices may be shorter than those of `x`.
    #[track_caller]
    pub fn gather_elements(
        &mut self,
        x: impl Into<TensorOperand>,
        indices: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "gather_elements";
        let (x, indices) = (self.arg(OP, x)?, self.index_arg(OP, indices)?);
        let (x, indices) = self.indexed(OP, x, indices)?;
        let axis = self.axis(OP, x, axis.into())?;
        self.check_elements(OP, x, indices, axis)?;
        let (shape, dtype) = (self.shape_of_arg(indices), self.dtype_of_arg(x));
        let node = self.part(x).push(Op::GatherElements { axis }, &[x.node, indices.node], shape, dtype, &[]);
        Ok(self.value(x.backend, node))
    }

    /// The rule that gathers and scatters of elements share.
    fn check_elements(&self, op: &'static str, x: Arg, indices: Arg, axis: usize) -> Result<(), OpError> {
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

    /// Slices by index tuples `[…, depth]`, each naming a place in the axes of `x` after `batch` shared ones.
    #[track_caller]
    pub fn gather_nd(
        &mut self,
        x: impl Into<TensorOperand>,
        indices: impl Into<TensorOperand>,
        batch: usize,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "gather_nd";
        let (x, indices) = (self.arg(OP, x)?, self.index_arg(OP, indices)?);
        let (x, indices) = self.indexed(OP, x, indices)?;
        let (data, index) = (self.shape_of_arg(x), self.shape_of_arg(indices));
        let depth = self.tuple_depth(OP, x, indices, batch)?;
        if batch >= index.rank() || data[..batch] != index[..batch] {
            return Err(self.shape_error(OP, &[x, indices], format!("the first {batch} axes must be shared")));
        }
        let outer = &index[..index.rank() - 1];
        let shape = Shape::new(outer.iter().chain(&data[batch + depth..]).copied());
        if data[batch..batch + depth].contains(&0) && shape.elements() > 0 {
            return Err(self.shape_error(OP, &[x, indices], "there is nothing to index"));
        }
        let dtype = self.dtype_of_arg(x);
        let node = self.part(x).push(Op::GatherNd { batch }, &[x.node, indices.node], shape, dtype, &[]);
        self.sized(OP, x.backend, node)
    }

    /// How many axes each index tuple names.
    fn tuple_depth(&self, op: &'static str, x: Arg, indices: Arg, batch: usize) -> Result<usize, OpError> {
        let (data, index) = (self.part_ref(x).shape(x.node), self.part_ref(indices).shape(indices.node));
        match index.last() {
            Some(&depth) if depth >= 1 && batch + depth <= data.rank() => Ok(depth),
            Some(&depth) => {
                let reason = format!("tuples of {depth} after {batch} batch axes do not index it");
                Err(self.shape_error(op, &[x, indices], reason))
            }
            None => Err(self.shape_error(op, &[x, indices], "the indices need an axis of tuples")),
        }
    }

    /// A copy of `x` with `updates[p]` put in at `p with axis := index[p]`.
    #[track_caller]
    pub fn scatter_elements(
        &mut self,
        x: impl Into<TensorOperand>,
        indices: impl Into<TensorOperand>,
        updates: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        mode: ScatterMode,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "scatter_elements";
        let (x, indices, updates) = (self.arg(OP, x)?, self.index_arg(OP, indices)?, self.arg(OP, updates)?);
        let (x, indices, updates) = self.scattered(OP, x, indices, updates, mode)?;
        let axis = self.axis(OP, x, axis.into())?;
        self.check_elements(OP, x, indices, axis)?;
        let shape = self.shape_of_arg(indices);
        let updates = self.updates(OP, indices, updates, &shape)?;
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        let op = Op::ScatterElements { axis, reduce: mode.into() };
        let node = self.part(x).push(op, &[x.node, indices.node, updates], shape, dtype, &[]);
        Ok(self.value(x.backend, node))
    }

    /// A copy of `x` with slices of `updates` put in at index tuples `[…, depth]`.
    #[track_caller]
    pub fn scatter_nd(
        &mut self,
        x: impl Into<TensorOperand>,
        indices: impl Into<TensorOperand>,
        updates: impl Into<TensorOperand>,
        mode: ScatterMode,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "scatter_nd";
        let (x, indices, updates) = (self.arg(OP, x)?, self.index_arg(OP, indices)?, self.arg(OP, updates)?);
        let (x, indices, updates) = self.scattered(OP, x, indices, updates, mode)?;
        let depth = self.tuple_depth(OP, x, indices, 0)?;
        let (data, index) = (self.shape_of_arg(x), self.shape_of_arg(indices));
        let slices = Shape::new(index[..index.rank() - 1].iter().chain(&data[depth..]).copied());
        if data[..depth].contains(&0) && slices.elements() > 0 {
            return Err(self.shape_error(OP, &[x, indices], "there is nothing to index"));
        }
        let updates = self.updates(OP, indices, updates, &slices)?;
        let dtype = self.dtype_of_arg(x);
        let op = Op::ScatterNd { reduce: mode.into() };
        let node = self.part(x).push(op, &[x.node, indices.node, updates], data, dtype, &[]);
        Ok(self.value(x.backend, node))
    }

    /// A scatter's operands on one backend, with updates of the data's type.
    fn scattered(
        &mut self,
        op: &'static str,
        x: Arg,
        indices: Arg,
        updates: Arg,
        mode: ScatterMode,
    ) -> Result<(Arg, Arg, Arg), OpError> {
        let mut args = [x, indices, updates];
        self.same_backend(op, &mut args)?;
        let [x, indices, updates] = args;
        let dtype = self.dtype_of_arg(x);
        let (indices, updates) = (self.number_as(indices, DType::I32), self.number_as(updates, dtype));
        if self.dtype_of_arg(updates) != dtype {
            return Err(self.type_error(op, &[x, updates], "both must have one element type; cast one"));
        }
        if dtype == DType::Bool && mode != ScatterMode::Replace {
            return Err(self.type_error(op, &[x], "truth values can only be replaced"));
        }
        Ok((x, indices, updates))
    }

    /// The updates of a scatter: of the shape wanted, or one number for all.
    fn updates(
        &mut self,
        op: &'static str,
        indices: Arg,
        updates: Arg,
        shape: &Shape,
    ) -> Result<super::NodeId, OpError> {
        if updates.number.is_some() {
            return Ok(self.part(updates).broadcast(updates.node, shape));
        }
        if self.part_ref(updates).shape(updates.node) != shape {
            return Err(self.shape_error(op, &[indices, updates], format!("the updates must be {shape}")));
        }
        Ok(updates.node)
    }
}
