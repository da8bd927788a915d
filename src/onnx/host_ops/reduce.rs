//! Reductions, scans, and operators whose result's shape only the values decide.

use std::cmp::Ordering;

use super::{HostCall, HostOutputs};
use crate::ir::Shape;
use crate::onnx::call::{Stop, axis_index, failed, unsupported};
use crate::onnx::host::{HostTensor, Numbers};

/// The axes to reduce, as flags. `None` if the input is returned as it is.
fn reduced_axes(call: &HostCall, rank: usize) -> Result<Option<Vec<bool>>, Stop> {
    let axes = call.ints_of("axes", 1)?.unwrap_or_default();
    if axes.is_empty() {
        return Ok((!call.flag("noop_with_empty_axes", false)).then(|| vec![true; rank]));
    }
    let mut reduced = vec![false; rank];
    for axis in axes {
        reduced[axis_index(axis, rank)?] = true;
    }
    Ok(Some(reduced))
}

fn reduce(
    call: &HostCall,
    int: impl Fn(&[i128]) -> Option<i128>,
    float: impl Fn(&[f64]) -> Option<f64>,
) -> HostOutputs {
    let x = call.x(0)?;
    let shape = x.shape();
    let Some(reduced) = reduced_axes(call, shape.rank())? else { return unsupported("a reduction of no axes") };
    let kept = |i: usize| if reduced[i] { 1 } else { shape[i] };
    let full = Shape::new((0..shape.rank()).map(kept));
    // The place in the result of every element.
    let mut groups = vec![Vec::new(); full.elements()];
    for at in 0..x.elements() {
        let (mut rest, mut place, mut stride) = (at, 0, 1);
        for i in (0..shape.rank()).rev() {
            let index = rest % shape[i];
            rest /= shape[i];
            if !reduced[i] {
                place += index * stride;
                stride *= shape[i];
            }
        }
        groups[place].push(at);
    }
    let empty = || Stop::Failed("a reduction of no elements".to_owned());
    let numbers = match x.numbers()? {
        Numbers::Int(values) => Numbers::Int(
            groups
                .iter()
                .map(|group| int(&group.iter().map(|&at| values[at]).collect::<Vec<_>>()).ok_or_else(empty))
                .collect::<Result<_, _>>()?,
        ),
        Numbers::Float(values) => Numbers::Float(
            groups
                .iter()
                .map(|group| float(&group.iter().map(|&at| values[at]).collect::<Vec<_>>()).ok_or_else(empty))
                .collect::<Result<_, _>>()?,
        ),
    };
    let out = match call.flag("keepdims", true) {
        true => full,
        false => Shape::new((0..shape.rank()).filter(|&i| !reduced[i]).map(|i| shape[i])),
    };
    Ok(vec![HostTensor::from_numbers(x.element(), out, &numbers)?])
}

pub(super) fn sum(call: &HostCall) -> HostOutputs {
    reduce(call, |v| Some(v.iter().sum()), |v| Some(v.iter().sum()))
}

pub(super) fn prod(call: &HostCall) -> HostOutputs {
    reduce(call, |v| Some(v.iter().fold(1i128, |a, &b| a.wrapping_mul(b))), |v| Some(v.iter().product()))
}

/// Of no elements, the smallest number of the type.
pub(super) fn max(call: &HostCall) -> HostOutputs {
    let lowest = call.x(0)?.element().integer_range().map_or(0, |(low, _)| low);
    reduce(
        call,
        |v| Some(v.iter().copied().max().unwrap_or(lowest)),
        |v| Some(v.iter().copied().fold(f64::NEG_INFINITY, highest)),
    )
}

/// Of no elements, the largest number of the type.
pub(super) fn min(call: &HostCall) -> HostOutputs {
    let highest = call.x(0)?.element().integer_range().map_or(1, |(_, high)| high);
    reduce(
        call,
        |v| Some(v.iter().copied().min().unwrap_or(highest)),
        |v| Some(v.iter().copied().fold(f64::INFINITY, lowest)),
    )
}

/// NaN if one of them is.
fn highest(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn lowest(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

pub(super) fn mean(call: &HostCall) -> HostOutputs {
    reduce(
        call,
        |v| (!v.is_empty()).then(|| v.iter().sum::<i128>() / v.len() as i128),
        |v| (!v.is_empty()).then(|| v.iter().sum::<f64>() / v.len() as f64),
    )
}

pub(super) fn cum_sum(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let Some(axis) = call.host_ints(1)?.and_then(|axis| axis.first().copied()) else { return failed("no axis") };
    let axis = axis_index(axis, x.shape().rank())?;
    let (exclusive, reverse) = (call.flag("exclusive", false), call.flag("reverse", false));
    let size = x.shape()[axis];
    let inner: usize = x.shape()[axis + 1..].iter().product();
    fn scan<T: Copy + core::ops::Add<Output = T> + Default>(
        values: &mut [T],
        (size, inner): (usize, usize),
        exclusive: bool,
        reverse: bool,
    ) {
        for block in values.chunks_mut((size * inner).max(1)) {
            for column in 0..inner {
                let mut total = T::default();
                for i in 0..size {
                    let at = if reverse { size - 1 - i } else { i } * inner + column;
                    let before = total;
                    total = total + block[at];
                    block[at] = if exclusive { before } else { total };
                }
            }
        }
    }
    let mut numbers = x.numbers()?;
    match &mut numbers {
        Numbers::Int(values) => scan(values, (size, inner), exclusive, reverse),
        Numbers::Float(values) => scan(values, (size, inner), exclusive, reverse),
    }
    Ok(vec![HostTensor::from_numbers(x.element(), x.shape(), &numbers)?])
}

pub(super) fn non_zero(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let found: Vec<usize> = match x.numbers()? {
        Numbers::Int(values) => values.iter().enumerate().filter(|(_, v)| **v != 0).map(|(i, _)| i).collect(),
        Numbers::Float(values) => values.iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(i, _)| i).collect(),
    };
    let shape = x.shape();
    let rank = shape.rank();
    let mut out = vec![0i64; rank * found.len()];
    for (column, &at) in found.iter().enumerate() {
        let mut rest = at;
        for axis in (0..rank).rev() {
            out[axis * found.len() + column] = (rest % shape[axis]) as i64;
            rest /= shape[axis];
        }
    }
    Ok(vec![HostTensor::from_i64(&out, [rank, found.len()])?])
}

pub(super) fn compress(call: &HostCall) -> HostOutputs {
    let (x, condition) = (call.x(0)?, call.x(1)?.to_i64()?);
    let chosen: Vec<usize> = condition.iter().enumerate().filter(|(_, v)| **v != 0).map(|(i, _)| i).collect();
    let flat;
    let (x, axis) = match call.maybe_int("axis") {
        Some(axis) => (x, axis_index(axis, x.shape().rank())?),
        None => {
            flat = x.reshaped([x.elements()])?;
            (&flat, 0)
        }
    };
    let shape = x.shape();
    if chosen.last().is_some_and(|&last| last >= shape[axis]) {
        return failed(format!("a condition of {} values for {shape}", condition.len()));
    }
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product();
    let mut out = shape.clone();
    out.dims_mut()[axis] = chosen.len();
    let positions = (0..outer)
        .flat_map(|row| chosen.iter().map(move |&i| (row * shape[axis] + i) * inner))
        .flat_map(|start| start..start + inner);
    Ok(vec![x.take(out, positions)?])
}

/// The order of two rows of numbers.
fn order(numbers: &Numbers, a: &[usize], b: &[usize]) -> Ordering {
    let pairs = || a.iter().zip(b);
    match numbers {
        Numbers::Int(values) => pairs().map(|(&i, &j)| values[i].cmp(&values[j])).find(|o| o.is_ne()),
        Numbers::Float(values) => pairs().map(|(&i, &j)| values[i].total_cmp(&values[j])).find(|o| o.is_ne()),
    }
    .unwrap_or(Ordering::Equal)
}

pub(super) fn unique(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    if x.strings().is_some() {
        return unsupported("strings");
    }
    let flat;
    let (x, axis) = match call.maybe_int("axis") {
        Some(axis) => (x, axis_index(axis, x.shape().rank())?),
        None => {
            flat = x.reshaped([x.elements()])?;
            (&flat, 0)
        }
    };
    let shape = x.shape();
    let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let outer: usize = shape[..axis].iter().product();
    let row = |i: usize| -> Vec<usize> {
        (0..outer).flat_map(|o| (0..inner).map(move |k| (o * size + i) * inner + k)).collect()
    };
    let rows: Vec<Vec<usize>> = (0..size).map(row).collect();
    let numbers = x.numbers()?;
    let mut sorted: Vec<usize> = (0..size).collect();
    sorted.sort_by(|&a, &b| order(&numbers, &rows[a], &rows[b]).then(a.cmp(&b)));
    // Groups of equal rows, each with its first occurrence.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for &i in &sorted {
        match groups.last_mut() {
            Some(group) if order(&numbers, &rows[group[0]], &rows[i]).is_eq() => group.push(i),
            _ => groups.push(vec![i]),
        }
    }
    if !call.flag("sorted", true) {
        groups.sort_by_key(|group| group[0]);
    }
    let mut inverse = vec![0i64; size];
    for (number, group) in groups.iter().enumerate() {
        group.iter().for_each(|&i| inverse[i] = number as i64);
    }
    let firsts: Vec<i64> = groups.iter().map(|group| group[0] as i64).collect();
    let counts: Vec<i64> = groups.iter().map(|group| group.len() as i64).collect();
    let mut out = shape.clone();
    out.dims_mut()[axis] = groups.len();
    let positions = (0..outer)
        .flat_map(|o| firsts.iter().map(move |&i| (o * size + i as usize) * inner))
        .flat_map(|start| start..start + inner);
    let n = firsts.len();
    Ok(vec![
        x.take(out, positions)?,
        HostTensor::from_i64(&firsts, [n])?,
        HostTensor::from_i64(&inverse, [size])?,
        HostTensor::from_i64(&counts, [n])?,
    ])
}

pub(super) fn non_max_suppression(call: &HostCall) -> HostOutputs {
    let (boxes, scores) = (call.x(0)?, call.x(1)?);
    let ([batches, count, 4], [score_batches, classes, score_count]) = (&boxes.shape()[..], &scores.shape()[..]) else {
        return failed(format!("boxes {} and scores {}", boxes.shape(), scores.shape()));
    };
    if batches != score_batches || count != score_count {
        return failed(format!("boxes {} and scores {}", boxes.shape(), scores.shape()));
    }
    let number = |i: usize| -> Result<Option<f64>, Stop> {
        Ok(call.maybe(i).map(HostTensor::to_f64).transpose()?.and_then(|v| v.first().copied()))
    };
    let most = number(2)?.unwrap_or(0.0).max(0.0) as usize;
    let overlap = number(3)?.unwrap_or(0.0) as f32;
    let least = number(4)?.map(|v| v as f32);
    let centre = call.flag("center_point_box", false);
    let (boxes, scores) = (boxes.to_f32()?, scores.to_f32()?);
    let corners = |b: &[f32]| -> [f32; 4] {
        let &[p, q, r, s] = b else { return [0.0; 4] };
        match centre {
            true => [q - s / 2.0, p - r / 2.0, q + s / 2.0, p + r / 2.0],
            false => [p.min(r), q.min(s), p.max(r), q.max(s)],
        }
    };
    let area = |b: &[f32; 4]| (b[2] - b[0]) * (b[3] - b[1]);
    let mut chosen = Vec::new();
    for batch in 0..*batches {
        let frame: Vec<[f32; 4]> =
            boxes[batch * count * 4..(batch + 1) * count * 4].chunks_exact(4).map(corners).collect();
        for class in 0..*classes {
            let row = &scores[(batch * classes + class) * count..][..*count];
            let mut candidates: Vec<usize> =
                (0..*count).filter(|&i| least.is_none_or(|least| row[i] > least)).collect();
            candidates.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            let mut kept: Vec<usize> = Vec::new();
            for i in candidates {
                if kept.len() == most {
                    break;
                }
                let fits = kept.iter().all(|&j| {
                    let (a, b) = (&frame[i], &frame[j]);
                    let height = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
                    let width = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
                    let common = height * width;
                    let union = area(a) + area(b) - common;
                    union <= 0.0 || common / union <= overlap
                });
                if fits {
                    kept.push(i);
                }
            }
            chosen.extend(kept.into_iter().flat_map(|i| [batch as i64, class as i64, i as i64]));
        }
    }
    let rows = chosen.len() / 3;
    Ok(vec![HostTensor::from_i64(&chosen, [rows, 3])?])
}
