//! Gathers and scatters.

use bevy_tensor_compute::ops::ScatterMode;

use super::call::{Call, Outputs, Stop, one};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "Gather" => gather(call),
        "GatherElements" => gather_elements(call),
        "GatherND" => gather_nd(call),
        "Scatter" | "ScatterElements" => scatter_elements(call),
        "ScatterND" => scatter_nd(call),
        "OneHot" => one_hot(call),
        _ => return None,
    })
}

fn gather<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axis = call.case.int("axis", 0) as isize;
    let (x, mut indices) = (call.x(0)?, call.x(1)?);
    if call.perhaps_scalar(1) && call.out_rank(0) + 1 == call.shape_of(0).len() {
        // A scalar index. The file does not tell.
        indices = call.ops.reshape(indices, &[])?.into();
    }
    one(call.ops.gather(x, indices, axis))
}

fn gather_elements<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axis = call.case.int("axis", 0) as isize;
    let (x, indices) = (call.x(0)?, call.x(1)?);
    one(call.ops.gather_elements(x, indices, axis))
}

fn gather_nd<'a>(call: &Call<'a>) -> Outputs<'a> {
    let batch = call.case.int("batch_dims", 0) as usize;
    let (x, indices) = (call.x(0)?, call.x(1)?);
    one(call.ops.gather_nd(x, indices, batch))
}

fn mode(call: &Call) -> Result<ScatterMode, Stop> {
    Ok(match call.case.text("reduction", "none") {
        "none" => ScatterMode::Replace,
        "add" => ScatterMode::Add,
        "mul" => ScatterMode::Mul,
        "min" => ScatterMode::Min,
        "max" => ScatterMode::Max,
        other => return Err(Stop::Failed(format!("{other} is no reduction"))),
    })
}

fn scatter_elements<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axis = call.case.int("axis", 0) as isize;
    let (x, indices, updates, mode) = (call.x(0)?, call.x(1)?, call.x(2)?, mode(call)?);
    one(call.ops.scatter_elements(x, indices, updates, axis, mode))
}

fn scatter_nd<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, indices, updates, mode) = (call.x(0)?, call.x(1)?, call.x(2)?, mode(call)?);
    one(call.ops.scatter_nd(x, indices, updates, mode))
}

fn one_hot<'a>(call: &Call<'a>) -> Outputs<'a> {
    use bevy_tensor_compute::tensor::DType;
    let depth = call.host_number(1).unwrap_or(0.0) as usize;
    let (mut indices, values) = (call.x(0)?, call.x(2)?);
    if !call.dtype_of(0)?.is_integer() {
        indices = call.ops.cast(indices, DType::I32)?.into();
    }
    if call.perhaps_scalar(0) && call.out_rank(0) == 1 {
        indices = call.ops.reshape(indices, &[])?.into();
    }
    let hot = call.ops.one_hot(indices, depth, DType::Bool)?;
    let rank = call.ops.shape(hot)?.rank();
    let axis = super::call::index(call.case.int("axis", -1), rank);
    let mut order: Vec<isize> = (0..rank as isize - 1).collect();
    order.insert(axis, rank as isize - 1);
    let hot = call.ops.permute(hot, &order)?;
    let off = call.ops.slice(values.clone(), 0, 0, 1)?;
    let on = call.ops.slice(values, 0, 1, 2)?;
    one(call.ops.select(hot, on, off))
}
