//! The same elements under other shapes.

use super::{HostCall, HostOutputs};
use crate::ir::Shape;
use crate::onnx::call::{Stop, failed};
use crate::onnx::graph::Node;
use crate::onnx::host::HostTensor;

/// The part of a shape that the node asks for.
pub(crate) fn shape_range(node: &Node, shape: &Shape) -> Vec<i64> {
    let rank = shape.rank() as i64;
    let place = |axis: i64| (if axis < 0 { axis + rank } else { axis }).clamp(0, rank) as usize;
    let (start, end) = (place(node.int("start", 0)), place(node.int("end", rank)));
    shape.get(start..end).unwrap_or_default().iter().map(|&n| n as i64).collect()
}

pub(crate) fn shape(call: &HostCall) -> HostOutputs {
    let shape = shape_range(call, call.x(0)?.shape());
    Ok(vec![HostTensor::from_i64(&shape, [shape.len()])?])
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

pub(crate) fn reshape(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let asked = call.ints_of("shape", 1)?.unwrap_or_default();
    let to = resolve_shape(x.shape(), &asked, call.flag("allowzero", false))?;
    Ok(vec![x.reshaped(to.iter().map(|&n| n as usize).collect::<Vec<_>>())?])
}
