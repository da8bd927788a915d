//! The same elements under other shapes, and parts of them.

use super::{HostCall, HostOutputs, broadcast, limit, positions};
use crate::ir::{Layout, Shape};
use crate::onnx::call::{Stop, axis_index, failed, sizes, unsupported};
use crate::onnx::graph::Node;
use crate::onnx::host::HostTensor;
use crate::tensor::python_range;

/// The part of a shape that the node asks for.
pub(crate) fn shape_range(node: &Node, shape: &Shape) -> Vec<i64> {
    let rank = shape.rank() as i64;
    let place = |axis: i64| (if axis < 0 { axis + rank } else { axis }).clamp(0, rank) as usize;
    let (start, end) = (place(node.int("start", 0)), place(node.int("end", rank)));
    shape.get(start..end).unwrap_or_default().iter().map(|&n| n as i64).collect()
}

pub(super) fn shape(call: &HostCall) -> HostOutputs {
    let shape = shape_range(call, call.x(0)?.shape());
    Ok(vec![HostTensor::from_i64(&shape, [shape.len()])?])
}

pub(super) fn size(call: &HostCall) -> HostOutputs {
    Ok(vec![HostTensor::from_i64(&[call.x(0)?.elements() as i64], [])?])
}

/// The sizes of a reshape, with 0 for a size that is kept and −1 for one that follows from the others.
pub(crate) fn resolve_shape(from: &Shape, asked: &[i64], keep_zeros: bool) -> Result<Vec<i64>, Stop> {
    let mut to = asked.to_vec();
    for (i, size) in to.iter_mut().enumerate() {
        if *size == 0 && !keep_zeros {
            let Some(&kept) = from.get(i) else {
                return failed(format!("{asked:?} keeps a size that {from} does not have"));
            };
            *size = kept as i64;
        }
    }
    let elements = from.elements() as i64;
    if let Some(open) = to.iter().position(|&n| n == -1) {
        let rest = to.iter().enumerate().filter(|&(i, _)| i != open).try_fold(1i64, |n, (_, &d)| n.checked_mul(d));
        match rest {
            Some(0) => to[open] = 0,
            Some(rest) if rest > 0 && elements % rest == 0 => to[open] = elements / rest,
            _ => return failed(format!("{from} cannot be reshaped to {asked:?}")),
        }
    }
    let total = to.iter().try_fold(1i64, |n, &d| if d < 0 { None } else { n.checked_mul(d) });
    if total == Some(elements) { Ok(to) } else { failed(format!("{from} cannot be reshaped to {asked:?}")) }
}

pub(super) fn reshape(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let asked = call.ints_of("shape", 1)?.unwrap_or_default();
    let to = resolve_shape(x.shape(), &asked, call.flag("allowzero", false))?;
    Ok(vec![x.reshaped(sizes(&to)?)?])
}

pub(super) fn flatten(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let rank = x.shape().rank() as i64;
    let axis = call.int("axis", 1);
    let axis = (if axis < 0 { axis + rank } else { axis }).clamp(0, rank) as usize;
    let rows: usize = x.shape()[..axis].iter().product();
    let columns: usize = x.shape()[axis..].iter().product();
    Ok(vec![x.reshaped([rows, columns])?])
}

pub(super) fn squeeze(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let shape = x.shape();
    let dropped: Vec<usize> = match call.ints_of("axes", 1)? {
        Some(axes) => axes.iter().map(|&axis| axis_index(axis, shape.rank())).collect::<Result<_, _>>()?,
        None => (0..shape.rank()).filter(|&i| shape[i] == 1).collect(),
    };
    if dropped.iter().any(|&axis| shape[axis] != 1) {
        return failed(format!("an axis of {shape} that is not 1 cannot be squeezed"));
    }
    let kept: Vec<usize> = (0..shape.rank()).filter(|i| !dropped.contains(i)).map(|i| shape[i]).collect();
    Ok(vec![x.reshaped(kept)?])
}

pub(super) fn unsqueeze(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let axes = call.ints_of("axes", 1)?.unwrap_or_default();
    let rank = x.shape().rank() + axes.len();
    let mut added = vec![false; rank];
    for &axis in &axes {
        if core::mem::replace(&mut added[axis_index(axis, rank)?], true) {
            return failed(format!("the axes {axes:?} are not different"));
        }
    }
    let mut old = x.shape().iter();
    let shape: Vec<usize> = added.iter().map(|&new| if new { 1 } else { old.next().copied().unwrap_or(1) }).collect();
    Ok(vec![x.reshaped(shape)?])
}

pub(super) fn identity(call: &HostCall) -> HostOutputs {
    Ok(vec![call.x(0)?.clone()])
}

/// The elements of a layout of a tensor.
fn view(x: &HostTensor, layout: &Layout) -> Result<HostTensor, Stop> {
    limit(layout.shape.clone())?;
    Ok(x.take(layout.shape.clone(), positions(layout).into_iter())?)
}

pub(super) fn transpose(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let rank = x.shape().rank();
    let order: Vec<usize> = match call.ints("perm") {
        Some(order) => order.iter().map(|&axis| axis_index(axis, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted != (0..rank).collect::<Vec<_>>() {
        return failed(format!("{order:?} is no order of {rank} axes"));
    }
    Ok(vec![view(x, &Layout::contiguous(x.shape().clone()).permute(&order))?])
}

pub(super) fn expand(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let asked = Shape::from(sizes(&call.host_ints(1)?.unwrap_or_default())?);
    let to = broadcast(x.shape(), &asked)?;
    match Layout::contiguous(x.shape().clone()).broadcast_to(&to) {
        Some(layout) => Ok(vec![view(x, &layout)?]),
        None => failed(format!("{} does not broadcast to {asked}", x.shape())),
    }
}

pub(super) fn tile(call: &HostCall) -> HostOutputs {
    if call.version < 6 {
        return unsupported("the first version of Tile");
    }
    let x = call.x(0)?;
    let counts = sizes(&call.host_ints(1)?.unwrap_or_default())?;
    if counts.len() != x.shape().rank() {
        return failed(format!("{} repeats for {}", counts.len(), x.shape()));
    }
    let shape = limit(Shape::new(x.shape().iter().zip(&counts).map(|(n, count)| n.saturating_mul(*count))))?;
    // Each axis twice: how often, and the axis itself.
    let inner = Layout::contiguous(x.shape().clone());
    let doubled = Layout {
        shape: Shape::new(counts.iter().zip(x.shape().iter()).flat_map(|(&count, &n)| [count, n])),
        strides: inner.strides.iter().flat_map(|&stride| [0, stride]).collect(),
        offset: 0,
    };
    Ok(vec![x.take(shape, positions(&doubled).into_iter())?])
}

/// Joins tensors along an axis.
pub(super) fn join(parts: &[&HostTensor], axis: usize) -> Result<HostTensor, Stop> {
    let [first, rest @ ..] = parts else { return failed("nothing to join") };
    let mut shape = first.shape().clone();
    for part in rest {
        let fits = part.element() == first.element()
            && part.shape().rank() == shape.rank()
            && (0..shape.rank()).all(|i| i == axis || part.shape()[i] == shape[i]);
        if !fits {
            return failed(format!("{:?} and {:?} cannot be joined along axis {axis}", first, part));
        }
        shape.dims_mut()[axis] += part.shape()[axis];
    }
    let shape = limit(shape)?;
    let outer: usize = shape[..axis].iter().product();
    if first.strings().is_some() {
        let mut out = Vec::with_capacity(shape.elements());
        for row in 0..outer {
            for strings in parts.iter().filter_map(|part| part.strings()) {
                let size = strings.len() / outer.max(1);
                out.extend_from_slice(&strings[row * size..(row + 1) * size]);
            }
        }
        return Ok(HostTensor::from_strings(out, shape)?);
    }
    let mut out = Vec::with_capacity(shape.elements() * first.element().size());
    for row in 0..outer {
        for part in parts {
            let size = part.bytes().len() / outer.max(1);
            out.extend_from_slice(&part.bytes()[row * size..(row + 1) * size]);
        }
    }
    Ok(HostTensor::from_bytes(first.element(), shape, &out)?)
}

pub(super) fn concat(call: &HostCall) -> HostOutputs {
    let parts: Vec<&HostTensor> = (0..call.inputs.len()).map(|i| call.x(i)).collect::<Result<_, _>>()?;
    let Some(first) = parts.first() else { return failed("nothing to join") };
    let axis = axis_index(call.int("axis", 1), first.shape().rank())?;
    Ok(vec![join(&parts, axis)?])
}

pub(super) fn slice(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let starts = call.ints_of("starts", 1)?.unwrap_or_default();
    let ends = call.ints_of("ends", 2)?.unwrap_or_default();
    let axes = call.ints_of("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = call.host_ints(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return failed("starts, ends, axes and steps have different lengths");
    }
    let mut layout = Layout::contiguous(x.shape().clone());
    for (i, &axis) in axes.iter().enumerate() {
        let axis = axis_index(axis, layout.rank())?;
        let range = python_range(layout.shape[axis], starts[i] as isize, ends[i] as isize, steps[i] as isize);
        let Some((start, count)) = range else { return failed("a step of 0") };
        layout = layout.slice(axis, start, count, steps[i] as isize);
    }
    Ok(vec![view(x, &layout)?])
}

pub(super) fn split(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let axis = axis_index(call.int("axis", 0), x.shape().rank())?;
    let size = x.shape()[axis];
    let parts = match call.ints_of("split", 1)? {
        Some(parts) => sizes(&parts)?,
        None => {
            let count = call.int("num_outputs", call.outputs.len() as i64).max(1) as usize;
            let each = size.div_ceil(count);
            (0..count).map(|i| size.saturating_sub(i * each).min(each)).collect()
        }
    };
    if parts.iter().sum::<usize>() != size {
        return failed(format!("{parts:?} do not add up to {size}"));
    }
    let layout = Layout::contiguous(x.shape().clone());
    let mut start = 0;
    let mut outputs = Vec::with_capacity(parts.len());
    for count in parts {
        outputs.push(view(x, &layout.slice(axis, start, count, 1))?);
        start += count;
    }
    Ok(outputs)
}

/// Indices of an axis of `size`, where negative ones count from the end.
pub(super) fn indices(x: &HostTensor, size: usize) -> Result<Vec<usize>, Stop> {
    x.to_i64()?
        .into_iter()
        .map(|index| {
            let at = if index < 0 { index + size as i64 } else { index };
            let at = usize::try_from(at).ok().filter(|&at| at < size);
            at.ok_or_else(|| Stop::Failed(format!("the index {index} is out of range of {size}")))
        })
        .collect()
}

pub(super) fn gather(call: &HostCall) -> HostOutputs {
    let (x, index) = (call.x(0)?, call.x(1)?);
    let shape = x.shape();
    let axis = axis_index(call.int("axis", 0), shape.rank())?;
    let at = indices(index, shape[axis])?;
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product();
    let out = limit(Shape::new(shape[..axis].iter().chain(index.shape().iter()).chain(&shape[axis + 1..]).copied()))?;
    let positions = (0..outer)
        .flat_map(|row| at.iter().map(move |&i| (row * shape[axis] + i) * inner))
        .flat_map(|start| start..start + inner);
    Ok(vec![x.take(out, positions)?])
}

pub(super) fn gather_elements(call: &HostCall) -> HostOutputs {
    let (x, index) = (call.x(0)?, call.x(1)?);
    let axis = axis_index(call.int("axis", 0), x.shape().rank())?;
    let at = indices(index, x.shape()[axis])?;
    if index.shape().rank() != x.shape().rank() {
        return failed(format!("indices {} for {}", index.shape(), x.shape()));
    }
    let whole = Layout::contiguous(x.shape().clone());
    let mut out = Vec::with_capacity(at.len());
    for (i, &chosen) in at.iter().enumerate() {
        let mut rest = i;
        let mut position = 0;
        for d in (0..whole.rank()).rev() {
            let own = rest % index.shape()[d];
            rest /= index.shape()[d];
            let own = if d == axis { chosen } else { own };
            if own >= whole.shape[d] {
                return failed(format!("indices {} for {}", index.shape(), x.shape()));
            }
            position += own * whole.strides[d] as usize;
        }
        out.push(position);
    }
    Ok(vec![x.take(index.shape().clone(), out.into_iter())?])
}
