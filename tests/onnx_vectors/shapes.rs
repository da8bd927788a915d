//! Reshaping, joining and splitting.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, index, one, signed, sizes};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "Reshape" => reshape(call),
        "Flatten" => flatten(call),
        "Transpose" => transpose(call),
        "Squeeze" => squeeze(call),
        "Unsqueeze" => unsqueeze(call),
        "Expand" => expand(call),
        "Slice" => slice(call),
        "Split" => split(call),
        "Concat" => concat(call),
        "Tile" => tile(call),
        "DepthToSpace" => depth_to_space(call),
        "SpaceToDepth" => {
            let block = call.case.int("blocksize", 1) as usize;
            call.x(0).and_then(|x| one(call.ops.space_to_depth(x, block)))
        }
        _ => return None,
    })
}

fn reshape<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, shape) = (call.x(0)?, call.shape_of(0));
    let keep_zeros = call.case.flag("allowzero", false);
    let mut to = signed(&call.ints_of("shape", 1).unwrap_or_default());
    for (i, size) in to.iter_mut().enumerate() {
        if *size == 0 && !keep_zeros {
            *size = shape[i] as isize;
        }
    }
    one(call.ops.reshape(x, &to))
}

fn flatten<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, shape) = (call.x(0)?, call.shape_of(0));
    let axis = index(call.case.int("axis", 1), shape.len());
    let rows: usize = shape[..axis].iter().product();
    let columns: usize = shape[axis..].iter().product();
    one(call.ops.reshape(x, &[rows as isize, columns as isize]))
}

fn transpose<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, rank) = (call.x(0)?, call.shape_of(0).len() as i64);
    let order = call.case.ints("perm").unwrap_or_else(|| (0..rank).rev().collect());
    one(call.ops.permute(x, &signed(&order)))
}

fn squeeze<'a>(call: &Call<'a>) -> Outputs<'a> {
    let x = call.x(0)?;
    let axes = call.ints_of("axes", 1).map_or(Axes::ALL, |axes| Axes::of(signed(&axes)));
    one(call.ops.squeeze(x, axes))
}

fn unsqueeze<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axes = signed(&call.ints_of("axes", 1).unwrap_or_default());
    let mut x = call.x(0)?;
    if call.perhaps_scalar(0) && call.out_rank(0) == axes.len() {
        // A scalar. The file does not tell.
        x = call.ops.reshape(x, &[])?.into();
    }
    one(call.ops.unsqueeze(x, &axes))
}

fn expand<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, shape) = (call.x(0)?, Shape::from(call.shape_of(0)));
    let asked = Shape::from(sizes(&call.host_ints(1).unwrap_or_default()));
    // The operand may be larger along some axes.
    let to = shape.broadcast(&asked).unwrap_or(asked);
    one(call.ops.broadcast_to(x, to))
}

fn slice<'a>(call: &Call<'a>) -> Outputs<'a> {
    let starts = call.ints_of("starts", 1).unwrap_or_default();
    let ends = call.ints_of("ends", 2).unwrap_or_default();
    let axes = call.ints_of("axes", 3).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = call.host_ints(4).unwrap_or_else(|| vec![1; starts.len()]);
    let x = call.x(0)?;
    let mut value = call.ops.copy(x)?;
    for (i, &axis) in axes.iter().enumerate() {
        let (start, end, step) = (starts[i] as isize, ends[i] as isize, steps[i] as isize);
        value = call.ops.slice_step(value, axis as isize, start, end, step)?;
    }
    one(Ok(value))
}

fn split<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, shape) = (call.x(0)?, call.shape_of(0));
    let axis = index(call.case.int("axis", 0), shape.len());
    let parts = call.ints_of("split", 1).map(|list| sizes(&list)).unwrap_or_else(|| {
        let count = call.case.int("num_outputs", call.case.outputs.len() as i64) as usize;
        // Equal sizes, except for the last, which may be smaller.
        let size = shape[axis].div_ceil(count);
        (0..count).map(|i| shape[axis].saturating_sub(i * size).min(size)).collect()
    });
    Ok(call.ops.split(x, axis, &parts)?.into_iter().map(Some).collect())
}

fn concat<'a>(call: &Call<'a>) -> Outputs<'a> {
    let mut parts = Vec::new();
    for i in 0..call.count() {
        parts.push(call.x(i)?);
    }
    let axis = call.case.int("axis", 1) as isize;
    one(call.ops.concat(parts, axis))
}

fn tile<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, rank) = (call.x(0)?, call.shape_of(0).len());
    let mut counts = sizes(&call.host_ints(1).unwrap_or_default());
    if call.case.opset < 6 {
        // Version 1: the number of repeats and the axis.
        let mut all = vec![1; rank];
        all[index(call.host_number(2).unwrap_or(0.0) as i64, rank)] = counts[0];
        counts = all;
    }
    one(call.ops.tile(x, &counts))
}

fn depth_to_space<'a>(call: &Call<'a>) -> Outputs<'a> {
    let order = match call.case.text("mode", "DCR") {
        "CRD" => DepthOrder::ColumnRowDepth,
        _ => DepthOrder::DepthColumnRow,
    };
    let block = call.case.int("blocksize", 1) as usize;
    let x = call.x(0)?;
    one(call.ops.depth_to_space(x, block, order))
}
