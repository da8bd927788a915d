//! Ops on shapes. Most are views, which copy nothing. `concat`, `stack` and `copy` write new memory.

use smallvec::SmallVec;

use super::{Arg, Axes, AxisSet, Recorder, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{Backend, Layout, NodeId, Op, Shape};
use crate::tensor::{python_range, resolve_permutation};

/// The order in which channels hold a block of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DepthOrder {
    /// The position in the block is the outer part of the channel index (ONNX `DCR`, TensorFlow).
    #[default]
    DepthColumnRow,
    /// The position in the block is the inner part of the channel index (ONNX `CRD`, PyTorch's pixel shuffle).
    ColumnRowDepth,
}

/// Shapes.
impl TensorCommands<'_, '_> {
    /// The same elements in row-major order with another shape. One size may be −1 and is computed from the others.
    #[doc(alias = "view")]
    #[track_caller]
    pub fn reshape<'a>(&'a self, x: impl Into<TensorOperand<'a>>, shape: &[isize]) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.any_arg("reshape", x)?;
        let to = rec.reshaped(x, shape)?;
        rec.block_view("reshape", x, |_| Layout::contiguous(to.clone()))?;
        let node = rec.part(x).reshape(x.node, &to);
        rec.value(x.backend, node)
    }

    /// Merges the axes `first` to `last`, both included, into one. A rank-0 operand becomes `[1]`.
    #[track_caller]
    pub fn flatten<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        first: impl Into<TensorAxis>,
        last: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "flatten";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let shape = rec.shape_of_arg(x);
        let to = if shape.rank() == 0 {
            Shape::from([1])
        } else {
            let (first, last) = (rec.axis(OP, x, first.into())?, rec.axis(OP, x, last.into())?);
            if first > last {
                return Err(rec.shape_error(OP, &[x], format!("axis {first} comes after axis {last}")));
            }
            let merged = Shape::from(&shape[first..=last]).elements();
            Shape::new(shape[..first].iter().copied().chain([merged]).chain(shape[last + 1..].iter().copied()))
        };
        let node = rec.part(x).reshape(x.node, &to);
        rec.value(x.backend, node)
    }

    /// Swaps the last two axes. [`permute`](Self::permute) reorders any axes.
    #[doc(alias = "swapaxes")]
    #[doc(alias = "mT")]
    #[track_caller]
    pub fn transpose<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        const OP: &str = "transpose";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        rec.axis(OP, x, TensorAxis(-2))?;
        let node = rec.part(x).transpose(x.node);
        rec.value(x.backend, node)
    }

    /// Reorders the axes: axis `i` of the result is axis `order[i]` of `x`.
    #[doc(alias = "transpose")]
    #[track_caller]
    pub fn permute<'a>(&'a self, x: impl Into<TensorOperand<'a>>, order: &[isize]) -> OpResult<TensorValue<'a>> {
        const OP: &str = "permute";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let resolved = resolve_permutation(order, rec.part_ref(x).shape(x.node))
            .map_err(|_| rec.shape_error(OP, &[x], format!("{order:?} does not list every axis once")))?;
        let node = rec.part(x).permute(x.node, &resolved);
        rec.value(x.backend, node)
    }

    /// Drops axes of size 1: the given ones, or every one for [`Axes::ALL`].
    #[track_caller]
    pub fn squeeze<'a>(&'a self, x: impl Into<TensorOperand<'a>>, axes: impl Into<Axes>) -> OpResult<TensorValue<'a>> {
        const OP: &str = "squeeze";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let shape = rec.shape_of_arg(x);
        let axes = axes.into();
        let to = if axes.set == AxisSet::All {
            Shape::new(shape.iter().copied().filter(|&n| n != 1))
        } else {
            let axes = rec.axes(OP, x, axes)?;
            if let Some(&axis) = axes.iter().find(|&&axis| shape[axis] != 1) {
                let reason = format!("axis {axis} has size {}, not 1", shape[axis]);
                return Err(rec.shape_error(OP, &[x], reason));
            }
            Shape::new(shape.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &n)| n))
        };
        let node = rec.part(x).reshape(x.node, &to);
        rec.value(x.backend, node)
    }

    /// Inserts axes of size 1. `axes` are their positions in the result.
    #[doc(alias = "expand_dims")]
    #[track_caller]
    pub fn unsqueeze<'a>(&'a self, x: impl Into<TensorOperand<'a>>, axes: &[isize]) -> OpResult<TensorValue<'a>> {
        const OP: &str = "unsqueeze";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let shape = rec.shape_of_arg(x);
        let rank = shape.rank() + axes.len();
        let mut new: SmallVec<[bool; 8]> = SmallVec::from_elem(false, rank);
        for &axis in axes {
            let index = if axis < 0 { axis + rank as isize } else { axis };
            let fail = |reason| OpError::Axis { op: OP, operand: Box::new(rec.info(x)), axis, reason };
            match usize::try_from(index).ok().and_then(|i| new.get_mut(i)) {
                None => return Err(fail("does not exist in the result")),
                Some(true) => return Err(fail("is named twice")),
                Some(place) => *place = true,
            }
        }
        let mut old = shape.iter().copied();
        let to = Shape::new(new.iter().map(|&new| if new { 1 } else { old.next().unwrap_or(1) }));
        let node = rec.part(x).reshape(x.node, &to);
        rec.value(x.backend, node)
    }

    /// Broadcasts to `shape` by NumPy's rules.
    #[doc(alias = "expand")]
    #[track_caller]
    pub fn broadcast_to<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        shape: impl Into<Shape>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "broadcast_to";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let shape = shape.into();
        let node = rec.broadcast_arg(OP, x, &shape)?;
        rec.value(x.backend, node)
    }

    /// The range `start..end` of an axis. Negative numbers count from the end. Ends beyond the axis are clamped.
    #[doc(alias = "narrow")]
    #[track_caller]
    pub fn slice<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        start: isize,
        end: isize,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().slice_op("slice", x, axis.into(), [start, end, 1])
    }

    /// Every `step`-th element of `start..end` of an axis, by Python's rules. A negative step goes backwards.
    #[track_caller]
    pub fn slice_step<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        start: isize,
        end: isize,
        step: isize,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().slice_op("slice_step", x, axis.into(), [start, end, step])
    }

    /// Splits an axis into pieces of the given sizes, which must add up to the size of the axis.
    #[doc(alias = "chunk")]
    #[track_caller]
    pub fn split<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        sizes: &[usize],
    ) -> OpResult<Vec<TensorValue<'a>>> {
        const OP: &str = "split";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let axis = rec.axis(OP, x, axis.into())?;
        let size = rec.part_ref(x).shape(x.node)[axis];
        if sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(size) {
            return Err(rec.shape_error(OP, &[x], format!("{sizes:?} does not add up to {size}, axis {axis}")));
        }
        let mut start = 0;
        sizes
            .iter()
            .map(|&count| {
                let node = rec.part(x).slice(x.node, axis, start, count, 1);
                start += count;
                rec.value(x.backend, node)
            })
            .collect()
    }

    /// Reverses the order of elements along axes.
    #[track_caller]
    pub fn flip<'a>(&'a self, x: impl Into<TensorOperand<'a>>, axes: impl Into<Axes>) -> OpResult<TensorValue<'a>> {
        const OP: &str = "flip";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let mut node = x.node;
        for axis in rec.axes(OP, x, axes.into())? {
            node = rec.part(x).flip(node, axis);
        }
        rec.value(x.backend, node)
    }

    /// Repeats the whole operand, `counts[i]` times along axis `i`. If there are more axes than counts, or more counts
    /// than axes, ones are added in front.
    #[track_caller]
    pub fn tile<'a>(&'a self, x: impl Into<TensorOperand<'a>>, counts: &[usize]) -> OpResult<TensorValue<'a>> {
        const OP: &str = "tile";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let shape = rec.shape_of_arg(x);
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
        let part = rec.part(x);
        let node = part.reshape(x.node, &split);
        let node = part.broadcast(node, &stretched);
        let node = part.reshape(node, &out);
        rec.value(x.backend, node)
    }

    /// Repeats each element of an axis `count` times.
    #[doc(alias = "repeat_interleave")]
    #[track_caller]
    pub fn repeat<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        count: usize,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "repeat";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let axis = rec.axis(OP, x, axis.into())?;
        let mut shape = rec.shape_of_arg(x);
        shape.dims_mut().insert(axis + 1, 1);
        let part = rec.part(x);
        let node = part.reshape(x.node, &shape);
        shape.dims_mut()[axis + 1] = count;
        let node = part.broadcast(node, &shape);
        shape.dims_mut().remove(axis + 1);
        shape.dims_mut()[axis] = shape[axis].saturating_mul(count);
        let node = part.reshape(node, &shape);
        rec.value(x.backend, node)
    }

    /// Joins operands of one element type along an axis. All other sizes must be equal.
    #[doc(alias = "cat")]
    #[doc(alias = "concatenate")]
    #[track_caller]
    pub fn concat<'a, T: Into<TensorOperand<'a>>>(
        &'a self,
        parts: impl IntoIterator<Item = T>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "concat";
        // The iterator may itself record ops.
        let parts: SmallVec<[TensorOperand<'_>; 4]> = parts.into_iter().map(Into::into).collect();
        let rec = &mut self.recorder();
        let (args, backend) = rec.joinable(OP, parts)?;
        let first = args[0];
        let axis = rec.axis(OP, first, axis.into())?;
        for &arg in &args[1..] {
            let (a, b) = (rec.part_ref(first).shape(first.node), rec.part_ref(arg).shape(arg.node));
            if a.rank() != b.rank() || a.iter().zip(b.iter()).enumerate().any(|(i, (a, b))| i != axis && a != b) {
                let reason = format!("only axis {axis} may differ");
                return Err(rec.shape_error(OP, &[first, arg], reason));
            }
        }
        let nodes: SmallVec<[NodeId; 4]> = args.iter().map(|arg| arg.node).collect();
        let node = rec.part(first).concat(&nodes, axis);
        rec.value(backend, node)
    }

    /// Joins operands of one element type and shape along a new axis.
    #[track_caller]
    pub fn stack<'a, T: Into<TensorOperand<'a>>>(
        &'a self,
        parts: impl IntoIterator<Item = T>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "stack";
        // The iterator may itself record ops.
        let parts: SmallVec<[TensorOperand<'_>; 4]> = parts.into_iter().map(Into::into).collect();
        let rec = &mut self.recorder();
        let (args, backend) = rec.joinable(OP, parts)?;
        let first = args[0];
        let mut shape = rec.shape_of_arg(first);
        let TensorAxis(asked) = axis.into();
        let axis = if asked < 0 { asked + shape.rank() as isize + 1 } else { asked };
        if !(0..=shape.rank() as isize).contains(&axis) {
            let operand = rec.info(first);
            return Err(OpError::Axis {
                op: OP,
                operand: Box::new(operand),
                axis: asked,
                reason: "does not exist in the result",
            });
        }
        if let Some(&arg) = args.iter().find(|arg| *rec.part_ref(**arg).shape(arg.node) != shape) {
            return Err(rec.shape_error(OP, &[first, arg], "all must have one shape"));
        }
        shape.dims_mut().insert(axis as usize, 1);
        let part = rec.part(first);
        let nodes: SmallVec<[NodeId; 4]> = args.iter().map(|arg| part.reshape(arg.node, &shape)).collect();
        let node = part.concat(&nodes, axis as usize);
        rec.value(backend, node)
    }

    /// A contiguous copy. Other ops read views without a copy.
    #[doc(alias = "contiguous")]
    #[doc(alias = "clone")]
    #[track_caller]
    pub fn copy<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg("copy", x)?;
        let (shape, dtype) = (rec.shape_of_arg(x), rec.dtype_of_arg(x));
        let places = Box::new([Layout::contiguous(shape.clone())]);
        let node = rec.part(x).push(Op::Assemble { places, fill: false }, &[x.node], shape, dtype, &[]);
        rec.value(x.backend, node)
    }

    /// Moves channels into pixels: `[n, c · b², h, w]` → `[n, c, h · b, w · b]`.
    #[doc(alias = "pixel_shuffle")]
    #[track_caller]
    pub fn depth_to_space<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        block: usize,
        order: DepthOrder,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "depth_to_space";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let shape = rec.shape_of_arg(x);
        let [n, c, h, w] = shape[..] else {
            return Err(rec.shape_error(OP, &[x], "it must be [n, c, h, w]"));
        };
        let square = block.checked_mul(block).filter(|&square| square > 0 && c.is_multiple_of(square));
        let Some(square) = square else {
            let reason = format!("{c} channels do not divide into blocks of {block} × {block}");
            return Err(rec.shape_error(OP, &[x], reason));
        };
        let depth = c / square;
        let (split, places) = match order {
            DepthOrder::DepthColumnRow => ([n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2]),
            DepthOrder::ColumnRowDepth => ([n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3]),
        };
        let part = rec.part(x);
        let node = part.reshape(x.node, &Shape::from(split));
        let node = part.permute(node, &places);
        let node = part.reshape(node, &Shape::from([n, depth, h.saturating_mul(block), w.saturating_mul(block)]));
        rec.value(x.backend, node)
    }

    /// Moves pixels into channels: `[n, c, h · b, w · b]` → `[n, b² · c, h, w]`. The position in the block is the outer
    /// part of the channel index.
    #[doc(alias = "pixel_unshuffle")]
    #[track_caller]
    pub fn space_to_depth<'a>(&'a self, x: impl Into<TensorOperand<'a>>, block: usize) -> OpResult<TensorValue<'a>> {
        const OP: &str = "space_to_depth";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let shape = rec.shape_of_arg(x);
        let [n, c, h, w] = shape[..] else {
            return Err(rec.shape_error(OP, &[x], "it must be [n, c, h, w]"));
        };
        if block == 0 || !h.is_multiple_of(block) || !w.is_multiple_of(block) {
            let reason = format!("{h} × {w} does not divide into blocks of {block} × {block}");
            return Err(rec.shape_error(OP, &[x], reason));
        }
        let (h, w) = (h / block, w / block);
        let part = rec.part(x);
        let node = part.reshape(x.node, &Shape::from([n, c, h, block, w, block]));
        let node = part.permute(node, &[0, 3, 5, 1, 2, 4]);
        let channels = c.saturating_mul(block).saturating_mul(block);
        let node = part.reshape(node, &Shape::from([n, channels, h, w]));
        rec.value(x.backend, node)
    }
}

impl<'a> Recorder<'a> {
    /// The shape rule of `reshape`.
    fn reshaped(&self, x: Arg, shape: &[isize]) -> OpResult<Shape> {
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

    /// Broadcasts an operand to `shape`.
    pub(super) fn broadcast_arg(&mut self, op: &'static str, x: Arg, shape: &Shape) -> OpResult<NodeId> {
        if self.part_ref(x).shape(x.node).broadcast(shape).as_ref() == Some(shape) {
            Ok(self.part(x).broadcast(x.node, shape))
        } else {
            Err(self.shape_error(op, &[x], format!("it does not broadcast to {shape}")))
        }
    }

    fn slice_op(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        axis: TensorAxis,
        [start, end, step]: [isize; 3],
    ) -> OpResult<TensorValue<'a>> {
        let x = self.any_arg(op, x)?;
        let axis = self.axis(op, x, axis)?;
        let (start, count) = python_range(self.part_ref(x).shape(x.node)[axis], start, end, step)
            .ok_or_else(|| OpError::Argument { op, reason: "the step must not be 0".to_owned() })?;
        self.block_view(op, x, |whole| whole.slice(axis, start, count, step))?;
        let node = self.part(x).slice(x.node, axis, start, count, step);
        self.value(x.backend, node)
    }

    /// Checks what joining needs: at least one operand, one backend, one element type.
    fn joinable(
        &mut self,
        op: &'static str,
        parts: SmallVec<[TensorOperand<'_>; 4]>,
    ) -> OpResult<(SmallVec<[Arg; 4]>, Backend)> {
        let mut args: SmallVec<[Arg; 4]> = SmallVec::new();
        for part in parts {
            args.push(self.arg(op, part)?);
        }
        let backend = self.same_backend(op, &mut args)?;
        let Some(&first) = args.iter().find(|arg| arg.number.is_none()).or(args.first()) else {
            return Err(OpError::Argument { op, reason: "no operands were given".to_owned() });
        };
        let dtype = self.dtype_of_arg(first);
        for arg in &mut args {
            *arg = self.number_as(*arg, dtype);
            if self.dtype_of_arg(*arg) != dtype {
                return Err(self.type_error(op, &[first, *arg], "all must have one element type; cast first"));
            }
        }
        Ok((args, backend))
    }
}
