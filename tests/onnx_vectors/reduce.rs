//! Reductions, cumulative sums and searches along axes, and matrix products.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, Stop, one, signed};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        op if op.starts_with("Reduce") => reduce(call),
        "ArgMax" | "ArgMin" => position(call),
        "CumSum" => cumsum(call),
        "TopK" => top_k(call),
        "MatMul" => matmul(call),
        "Gemm" => gemm(call),
        _ => return None,
    })
}

fn reduce<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axes = match call.ints_of("axes", 1) {
        Some(axes) if !axes.is_empty() => Axes::of(signed(&axes)),
        _ if call.case.flag("noop_with_empty_axes", false) => Axes::from([]),
        _ => Axes::ALL,
    };
    let axes = if call.case.flag("keepdims", true) { axes.keep() } else { axes };
    let (x, to) = (call.x(0)?, call.dtype_of(0)?);
    let op = call.case.op.clone();
    let fractional = matches!(op.as_str(), "ReduceL2" | "ReduceMean" | "ReduceLogSum" | "ReduceLogSumExp");
    let ops = call.ops;
    // Roots, means and logarithms of integers are computed as floats and truncated.
    let x = if fractional && !to.is_float() { ops.cast(x, DType::F32)?.into() } else { x };
    let value = match op.as_str() {
        "ReduceSum" => ops.sum(x, axes),
        "ReduceMean" => ops.mean(x, axes),
        "ReduceMax" => ops.max_of(x, axes),
        "ReduceMin" => ops.min_of(x, axes),
        "ReduceProd" => ops.prod(x, axes),
        "ReduceSumSquare" => ops.sum_squares(x, axes),
        "ReduceL1" => ops.l1_norm(x, axes),
        "ReduceL2" => ops.l2_norm(x, axes),
        "ReduceLogSumExp" => ops.log_sum_exp(x, axes),
        "ReduceLogSum" => {
            let sum = ops.sum(x, axes)?;
            ops.log(sum)
        }
        _ => return super::call::unsupported(format!("{op} is not among the crate's features")),
    }?;
    call.narrowed(value, to)
}

fn position<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let axis = TensorAxis(case.int("axis", 0) as isize);
    let axis = if case.flag("keepdims", true) { axis.keep() } else { axis.into() };
    let x = call.x(0)?;
    one(match (case.op.as_str(), case.flag("select_last_index", false)) {
        ("ArgMax", false) => call.ops.argmax(x, axis),
        ("ArgMax", true) => call.ops.argmax_last(x, axis),
        (_, false) => call.ops.argmin(x, axis),
        (_, true) => call.ops.argmin_last(x, axis),
    })
}

fn cumsum<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (exclusive, reverse) = (call.case.flag("exclusive", false), call.case.flag("reverse", false));
    let axis = call.host_number(1).unwrap_or(0.0) as isize;
    let (x, to) = (call.x(0)?, call.dtype_of(0)?);
    let sums = call.ops.cumsum_with(x, axis, CumsumSettings { exclusive, reverse })?;
    call.narrowed(sums, to)
}

fn top_k<'a>(call: &Call<'a>) -> Outputs<'a> {
    let k = call.host_number(1).unwrap_or(call.case.int("k", 1) as f64) as usize;
    let (axis, largest) = (call.case.int("axis", -1) as isize, call.case.flag("largest", true));
    let x = call.x(0)?;
    // Best first is one of the orders that `sorted = 0` allows.
    let (values, positions) = if largest { call.ops.top_k(x, k, axis)? } else { call.ops.bottom_k(x, k, axis)? };
    Ok(vec![Some(values), Some(positions)])
}

fn matmul<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (a, b, to) = (call.x(0)?, call.x(1)?, call.dtype_of(0)?);
    let product = call.ops.matmul(a, b)?;
    call.narrowed(product, to)
}

fn gemm<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let (a, b) = (call.x(0)?, call.x(1)?);
    let (alpha, beta) = (case.float("alpha", 1.0), case.float("beta", 1.0));
    let mut value: TensorValue = match (case.flag("transA", false), case.flag("transB", false)) {
        (false, false) => call.ops.matmul(a, b),
        (false, true) => call.ops.matmul_nt(a, b),
        (true, false) => call.ops.matmul_tn(a, b),
        (true, true) => call.ops.matmul_tt(a, b),
    }?;
    let scale = |call: &Call<'a>, x: TensorValue<'a>, by: f32| -> Result<TensorValue<'a>, Stop> {
        if by == 1.0 { Ok(x) } else { Ok(call.ops.mul(x, by)?) }
    };
    value = scale(call, value, alpha)?;
    if let Some(c) = call.maybe(2)? {
        let c = scale(call, call.ops.value(c)?, beta)?;
        value = call.ops.add(value, c)?;
    }
    one(Ok(value))
}
