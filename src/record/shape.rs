//! Ops that see the same elements differently, and those that lay elements side by side. All but the joining ones are views: no copy.

use crate::ir::{Layout, Op, Shape};
use smallvec::SmallVec;

use super::{Arg, Axes, Axis, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpError;
use crate::tensor::{python_range, resolve_permutation};

/// How channels hold a block of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DepthOrder {
    /// The block's place is the outer part of the channel (ONNX `DCR`, TensorFlow).
    #[default]
    DepthColumnRow,
    /// The block's place is the inner part of the channel (ONNX `CRD`, PyTorch's pixel shuffle).
    ColumnRowDepth,
}

/// Shapes.
impl TensorCommands<'_, '_> {
    /// The same elements in row-major order under another shape; one size may be −1 and follows from the rest.
    #[track_caller]
    pub fn reshape(&mut self, x: impl Into<TensorOperand>, shape: &[isize]) -> Result<TensorValue, OpError> {
        let x = self.any_arg("reshape", x)?;
        let to = self.reshaped(x, shape)?;
        self.block_view("reshape", x, |_| Layout::contiguous(to.clone()))?;
        let node = self.part(x).reshape(x.node, &to);
        Ok(self.value(x.backend, node))
    }

    /// The rule of [`reshape`](Self::reshape).
    fn reshaped(&self, x: Arg, shape: &[isize]) -> Result<Shape, OpError> {
        const OP: &str = "reshape";
        let elements = self.part_ref(x).shape(x.node).elements();
        let mut free = None;
        let mut known = 1usize;
        for (i, &size) in shape.iter().enumerate() {
            match size {
                -1 if free.is_none() => free = Some(i),
                0.. => known = known.saturating_mul(size as usize),
                _ => return Err(self.shape_error(OP, &[x], format!("{shape:?} is not a shape"))),
            }
        }
        let mut to = Shape::new(shape.iter().map(|&size| size.max(0) as usize));
        if let Some(free) = free {
            if known == 0 || !elements.is_multiple_of(known) {
                let reason = format!("{elements} elements do not divide into {shape:?}");
                return Err(self.shape_error(OP, &[x], reason));
            }
            to.dims_mut()[free] = elements / known;
        }
        if to.checked_elements() != Some(elements) {
            let reason = format!("{elements} elements cannot become {to} with {}", to.elements());
            return Err(self.shape_error(OP, &[x], reason));
        }
        Ok(to)
    }

    /// Axes `first` to `last`, both included, merged into one. A rank-0 operand becomes `[1]`.
    #[track_caller]
    pub fn flatten(
        &mut self,
        x: impl Into<TensorOperand>,
        first: impl Into<Axis>,
        last: impl Into<Axis>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "flatten";
        let x = self.arg(OP, x)?;
        let shape = self.shape_of_arg(x);
        let to = if shape.rank() == 0 {
            Shape::from([1])
        } else {
            let (first, last) = (self.axis(OP, x, first.into())?, self.axis(OP, x, last.into())?);
            if first > last {
                return Err(self.shape_error(OP, &[x], format!("axis {first} comes after axis {last}")));
            }
            let merged = shape[first..=last].iter().product();
            Shape::new(shape[..first].iter().copied().chain([merged]).chain(shape[last + 1..].iter().copied()))
        };
        let node = self.part(x).reshape(x.node, &to);
        Ok(self.value(x.backend, node))
    }

    /// The last two axes swapped.
    #[track_caller]
    pub fn transpose(&mut self, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        const OP: &str = "transpose";
        let x = self.arg(OP, x)?;
        self.axis(OP, x, Axis(-2))?;
        let node = self.part(x).transpose(x.node);
        Ok(self.value(x.backend, node))
    }

    /// Axes reordered: axis `i` of the result is axis `order[i]` of `x`.
    #[track_caller]
    pub fn permute(&mut self, x: impl Into<TensorOperand>, order: &[isize]) -> Result<TensorValue, OpError> {
        const OP: &str = "permute";
        let x = self.arg(OP, x)?;
        let resolved = resolve_permutation(order, self.part_ref(x).shape(x.node))
            .map_err(|_| self.shape_error(OP, &[x], format!("{order:?} does not list every axis once")))?;
        let node = self.part(x).permute(x.node, &resolved);
        Ok(self.value(x.backend, node))
    }

    /// Axes of size 1 dropped: the ones named, or all there are.
    #[track_caller]
    pub fn squeeze(&mut self, x: impl Into<TensorOperand>, axes: impl Into<Axes>) -> Result<TensorValue, OpError> {
        const OP: &str = "squeeze";
        let x = self.arg(OP, x)?;
        let shape = self.shape_of_arg(x);
        let to = match axes.into() {
            Axes::All => Shape::new(shape.iter().copied().filter(|&n| n != 1)),
            axes => {
                let axes = self.axes(OP, x, axes)?;
                if let Some(&axis) = axes.iter().find(|&&axis| shape[axis] != 1) {
                    let reason = format!("axis {axis} has size {}, not 1", shape[axis]);
                    return Err(self.shape_error(OP, &[x], reason));
                }
                Shape::new(shape.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &n)| n))
            }
        };
        let node = self.part(x).reshape(x.node, &to);
        Ok(self.value(x.backend, node))
    }

    /// Axes of size 1 put in, so that the result has them at the places named.
    #[track_caller]
    pub fn unsqueeze(&mut self, x: impl Into<TensorOperand>, axes: &[isize]) -> Result<TensorValue, OpError> {
        const OP: &str = "unsqueeze";
        let x = self.arg(OP, x)?;
        let shape = self.shape_of_arg(x);
        let rank = shape.rank() + axes.len();
        let mut new: SmallVec<[bool; 8]> = SmallVec::from_elem(false, rank);
        for &axis in axes {
            let index = if axis < 0 { axis + rank as isize } else { axis };
            let fail = |reason| OpError::Axis { op: OP, operand: Box::new(self.info(x)), axis, reason };
            match usize::try_from(index).ok().and_then(|i| new.get_mut(i)) {
                None => return Err(fail("does not exist in the result")),
                Some(true) => return Err(fail("is named twice")),
                Some(place) => *place = true,
            }
        }
        let mut old = shape.iter().copied();
        let to = Shape::new(new.iter().map(|&new| if new { 1 } else { old.next().unwrap_or(1) }));
        let node = self.part(x).reshape(x.node, &to);
        Ok(self.value(x.backend, node))
    }

    /// Stretched to `shape` by NumPy's rules, also known as `broadcast_to`.
    #[track_caller]
    pub fn expand(&mut self, x: impl Into<TensorOperand>, shape: impl Into<Shape>) -> Result<TensorValue, OpError> {
        const OP: &str = "expand";
        let x = self.arg(OP, x)?;
        let shape = shape.into();
        let node = self.broadcast_arg(OP, x, &shape)?;
        self.sized(OP, x.backend, node)
    }

    /// An operand stretched to `shape`, or the error that it does not fit.
    pub(super) fn broadcast_arg(&mut self, op: &'static str, x: Arg, shape: &Shape) -> Result<super::NodeId, OpError> {
        if self.part_ref(x).shape(x.node).broadcast(shape).as_ref() == Some(shape) {
            Ok(self.part(x).broadcast(x.node, shape))
        } else {
            Err(self.shape_error(op, &[x], format!("it does not broadcast to {shape}")))
        }
    }

    /// `start..end` of an axis; negative numbers count from the back, ends beyond the axis are clamped.
    #[track_caller]
    pub fn slice(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        start: isize,
        end: isize,
    ) -> Result<TensorValue, OpError> {
        self.slice_op("slice", x.into(), axis.into(), [start, end, 1])
    }

    /// Every `step`-th element of `start..end` of an axis, by Python's rules; a negative step walks backwards.
    #[track_caller]
    pub fn slice_step(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        start: isize,
        end: isize,
        step: isize,
    ) -> Result<TensorValue, OpError> {
        self.slice_op("slice_step", x.into(), axis.into(), [start, end, step])
    }

    #[track_caller]
    fn slice_op(
        &mut self,
        op: &'static str,
        x: TensorOperand,
        axis: Axis,
        [start, end, step]: [isize; 3],
    ) -> Result<TensorValue, OpError> {
        let x = self.any_arg(op, x)?;
        let axis = self.axis(op, x, axis)?;
        let (start, count) = python_range(self.part_ref(x).shape(x.node)[axis], start, end, step)
            .ok_or_else(|| OpError::Argument { op, reason: "a step of 0 goes nowhere".to_owned() })?;
        self.block_view(op, x, |whole| whole.slice(axis, start, count, step))?;
        let node = self.part(x).slice(x.node, axis, start, count, step);
        Ok(self.value(x.backend, node))
    }

    /// Pieces of an axis, of these sizes, which must add up to the axis.
    #[track_caller]
    pub fn split(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        sizes: &[usize],
    ) -> Result<Vec<TensorValue>, OpError> {
        const OP: &str = "split";
        let x = self.arg(OP, x)?;
        let axis = self.axis(OP, x, axis.into())?;
        let size = self.part_ref(x).shape(x.node)[axis];
        if sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(size) {
            return Err(self.shape_error(OP, &[x], format!("{sizes:?} does not add up to {size}, axis {axis}")));
        }
        let mut start = 0;
        Ok(sizes
            .iter()
            .map(|&count| {
                let node = self.part(x).slice(x.node, axis, start, count, 1);
                start += count;
                self.value(x.backend, node)
            })
            .collect())
    }

    /// Axes walked backwards.
    #[track_caller]
    pub fn flip(&mut self, x: impl Into<TensorOperand>, axes: impl Into<Axes>) -> Result<TensorValue, OpError> {
        const OP: &str = "flip";
        let x = self.arg(OP, x)?;
        let mut node = x.node;
        for axis in self.axes(OP, x, axes.into())? {
            node = self.part(x).flip(node, axis);
        }
        Ok(self.value(x.backend, node))
    }

    /// The whole repeated along each axis, `counts[i]` times along axis `i`; fewer counts than axes, or more, are filled up with ones
    /// in front.
    #[track_caller]
    pub fn tile(&mut self, x: impl Into<TensorOperand>, counts: &[usize]) -> Result<TensorValue, OpError> {
        const OP: &str = "tile";
        let x = self.arg(OP, x)?;
        let shape = self.shape_of_arg(x);
        let rank = shape.rank().max(counts.len());
        let (mut split, mut stretched, mut out) = (Shape::default(), Shape::default(), Shape::default());
        for i in 0..rank {
            let n = (i + shape.rank()).checked_sub(rank).map_or(1, |i| shape[i]);
            let count = (i + counts.len()).checked_sub(rank).map_or(1, |i| counts[i]);
            if count != 1 {
                split.dims_mut().push(1);
                stretched.dims_mut().push(count);
            }
            split.dims_mut().push(n);
            stretched.dims_mut().push(n);
            out.dims_mut().push(n.saturating_mul(count));
        }
        let part = self.part(x);
        let node = part.reshape(x.node, &split);
        let node = part.broadcast(node, &stretched);
        let node = part.reshape(node, &out);
        self.sized(OP, x.backend, node)
    }

    /// Each element of an axis `count` times in a row.
    #[track_caller]
    pub fn repeat(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        count: usize,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "repeat";
        let x = self.arg(OP, x)?;
        let axis = self.axis(OP, x, axis.into())?;
        let mut shape = self.shape_of_arg(x);
        shape.dims_mut().insert(axis + 1, 1);
        let part = self.part(x);
        let node = part.reshape(x.node, &shape);
        shape.dims_mut()[axis + 1] = count;
        let node = part.broadcast(node, &shape);
        shape.dims_mut().remove(axis + 1);
        shape.dims_mut()[axis] = shape[axis].saturating_mul(count);
        let node = part.reshape(node, &shape);
        self.sized(OP, x.backend, node)
    }

    /// Operands of one type laid side by side along an axis; all other sizes must be equal.
    #[track_caller]
    pub fn concat<T: Into<TensorOperand>>(
        &mut self,
        parts: impl IntoIterator<Item = T>,
        axis: impl Into<Axis>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "concat";
        let mut args: SmallVec<[Arg; 4]> = SmallVec::new();
        for part in parts {
            args.push(self.arg(OP, part)?);
        }
        let backend = self.joinable(OP, &mut args)?;
        let first = args[0];
        let axis = self.axis(OP, first, axis.into())?;
        for &arg in &args[1..] {
            let (a, b) = (self.part_ref(first).shape(first.node), self.part_ref(arg).shape(arg.node));
            if a.rank() != b.rank() || a.iter().zip(b.iter()).enumerate().any(|(i, (a, b))| i != axis && a != b) {
                let reason = format!("only axis {axis} may differ");
                return Err(self.shape_error(OP, &[first, arg], reason));
            }
        }
        let nodes: SmallVec<[super::NodeId; 4]> = args.iter().map(|arg| arg.node).collect();
        let node = self.part(first).concat(&nodes, axis);
        self.sized(OP, backend, node)
    }

    /// Operands of one type and shape as slices of a new axis.
    #[track_caller]
    pub fn stack<T: Into<TensorOperand>>(
        &mut self,
        parts: impl IntoIterator<Item = T>,
        axis: impl Into<Axis>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "stack";
        let mut args: SmallVec<[Arg; 4]> = SmallVec::new();
        for part in parts {
            args.push(self.arg(OP, part)?);
        }
        let backend = self.joinable(OP, &mut args)?;
        let first = args[0];
        let mut shape = self.shape_of_arg(first);
        let Axis(asked) = axis.into();
        let axis = if asked < 0 { asked + shape.rank() as isize + 1 } else { asked };
        if !(0..=shape.rank() as isize).contains(&axis) {
            let operand = self.info(first);
            return Err(OpError::Axis {
                op: OP,
                operand: Box::new(operand),
                axis: asked,
                reason: "does not exist in the result",
            });
        }
        if let Some(&arg) = args.iter().find(|arg| *self.part_ref(**arg).shape(arg.node) != shape) {
            return Err(self.shape_error(OP, &[first, arg], "all must have one shape"));
        }
        shape.dims_mut().insert(axis as usize, 1);
        let part = self.part(first);
        let nodes: SmallVec<[super::NodeId; 4]> = args.iter().map(|arg| part.reshape(arg.node, &shape)).collect();
        let node = part.concat(&nodes, axis as usize);
        self.sized(OP, backend, node)
    }

    /// Checks what joining needs: at least one operand, one backend, one element type.
    fn joinable(&mut self, op: &'static str, args: &mut [Arg]) -> Result<crate::Backend, OpError> {
        let backend = self.same_backend(op, args)?;
        let Some(&first) = args.iter().find(|arg| arg.number.is_none()).or(args.first()) else {
            return Err(OpError::Argument { op, reason: "there is nothing to join".to_owned() });
        };
        let dtype = self.dtype_of_arg(first);
        for arg in args {
            *arg = self.number_as(*arg, dtype);
            if self.dtype_of_arg(*arg) != dtype {
                return Err(self.type_error(op, &[first, *arg], "all must have one element type; cast first"));
            }
        }
        Ok(backend)
    }

    /// A contiguous copy of its own memory. Views are otherwise read where they lie.
    #[track_caller]
    pub fn copy(&mut self, x: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        let x = self.arg("copy", x)?;
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        let places = Box::new([Layout::contiguous(shape.clone())]);
        let node = self.part(x).push(Op::Assemble { places, fill: false }, &[x.node], shape, dtype, &[]);
        self.sized("copy", x.backend, node)
    }

    /// Channels become pixels: `[n, c · b², h, w]` → `[n, c, h · b, w · b]`.
    #[track_caller]
    pub fn depth_to_space(
        &mut self,
        x: impl Into<TensorOperand>,
        block: usize,
        order: DepthOrder,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "depth_to_space";
        let x = self.arg(OP, x)?;
        let shape = self.shape_of_arg(x);
        let [n, c, h, w] = shape[..] else {
            return Err(self.shape_error(OP, &[x], "it must be [n, c, h, w]"));
        };
        if block == 0 || !c.is_multiple_of(block * block) {
            let reason = format!("{c} channels do not divide into blocks of {block} × {block}");
            return Err(self.shape_error(OP, &[x], reason));
        }
        let depth = c / (block * block);
        let (split, places) = match order {
            DepthOrder::DepthColumnRow => ([n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2]),
            DepthOrder::ColumnRowDepth => ([n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3]),
        };
        let part = self.part(x);
        let node = part.reshape(x.node, &Shape::from(split));
        let node = part.permute(node, &places);
        let node = part.reshape(node, &Shape::from([n, depth, h * block, w * block]));
        Ok(self.value(x.backend, node))
    }

    /// Pixels become channels: `[n, c, h · b, w · b]` → `[n, b² · c, h, w]`, the block's place outermost.
    #[track_caller]
    pub fn space_to_depth(&mut self, x: impl Into<TensorOperand>, block: usize) -> Result<TensorValue, OpError> {
        const OP: &str = "space_to_depth";
        let x = self.arg(OP, x)?;
        let shape = self.shape_of_arg(x);
        let [n, c, h, w] = shape[..] else {
            return Err(self.shape_error(OP, &[x], "it must be [n, c, h, w]"));
        };
        if block == 0 || !h.is_multiple_of(block) || !w.is_multiple_of(block) {
            let reason = format!("{h} × {w} does not divide into blocks of {block} × {block}");
            return Err(self.shape_error(OP, &[x], reason));
        }
        let (h, w) = (h / block, w / block);
        let part = self.part(x);
        let node = part.reshape(x.node, &Shape::from([n, c, h, block, w, block]));
        let node = part.permute(node, &[0, 3, 5, 1, 2, 4]);
        let node = part.reshape(node, &Shape::from([n, c * block * block, h, w]));
        Ok(self.value(x.backend, node))
    }
}
