//! Matrix products.

use super::super::call::{Call, Outputs, Stop, device_type, one};
use super::Operator;
use crate::formats::onnx::ElementType;
use crate::record::TensorValue;

pub(super) const OPERATORS: &[Operator] =
    &[Operator::new("MatMul").record(matmul), Operator::new("Gemm").record(gemm), Operator::new("Det").record(det)];

/// A product in the type of the operands. The device sums integers in 32 bits.
fn of_type<'a>(call: &Call<'a>, product: TensorValue<'a>, element: ElementType) -> Outputs<'a> {
    let product = call.ops.cast(product, device_type(element)?)?;
    one(call.narrowed(product, element)?, element)
}

fn matmul<'a>(call: &Call<'a>) -> Outputs<'a> {
    of_type(call, call.ops.matmul(call.x(0)?, call.x(1)?)?, call.type_of(0)?)
}

/// A value times a number, unless the number is 1. Integers are scaled in floats.
fn scaled<'a>(call: &Call<'a>, x: TensorValue<'a>, by: f32) -> Result<TensorValue<'a>, Stop> {
    if by == 1.0 {
        return Ok(x);
    }
    let dtype = call.ops.dtype(x)?;
    if dtype.is_float() {
        return Ok(call.ops.mul(x, by)?);
    }
    let wide = call.ops.cast(x, crate::ir::DType::F32)?;
    Ok(call.ops.cast(call.ops.mul(wide, by)?, dtype)?)
}

fn gemm<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (a, b) = (call.x(0)?, call.x(1)?);
    let (alpha, beta) = (call.float("alpha", 1.0), call.float("beta", 1.0));
    let transposed = (call.flag("transA", false), call.flag("transB", false));
    // The usual layer: one op, with the bias in its epilogue.
    if transposed == (false, true) && alpha == 1.0 && beta == 1.0 && call.dtype_of(0)?.is_float() {
        let rows = call.shape_of(1)?[0];
        let bias = call.shape_of(2)?;
        if !call.has(2) || bias[..] == [rows] || (rows == 1 && bias[..] == [1]) {
            return call.like(0, call.ops.linear(a, b, call.maybe(2)?.map(Into::into))?);
        }
    }
    let product = match transposed {
        (false, false) => call.ops.matmul(a, b),
        (false, true) => call.ops.matmul_nt(a, b),
        (true, false) => call.ops.matmul_tn(a, b),
        (true, true) => call.ops.matmul_tt(a, b),
    }?;
    let mut value = scaled(call, product, alpha)?;
    if let Some(c) = call.maybe(2)?
        && beta != 0.0
    {
        let c = call.ops.cast(scaled(call, c, beta)?, call.ops.dtype(value)?)?;
        value = call.ops.add(value, c)?;
    }
    of_type(call, value, call.type_of(0)?)
}

/// The determinant by elimination with the largest pivot, all matrices at once. The loop is over rows, which the shape
/// bounds.
fn det<'a>(call: &Call<'a>) -> Outputs<'a> {
    const MOST: usize = 64;
    let shape = call.shape_of(0)?;
    let [.., rows, columns] = shape[..] else { return super::refuse("the determinant of a vector") };
    if rows != columns || rows > MOST {
        return super::refuse(format!("the determinant of a matrix of {rows} × {columns}"));
    }
    let ops = call.ops;
    let (n, element) = (rows as isize, call.type_of(0)?);
    let mut m = ops.reshape(ops.cast(call.x(0)?, crate::ir::DType::F32)?, &[-1, n, n])?;
    let batch = ops.shape(m)?[0];
    let mut product = call.full([batch], 1.0, crate::ir::DType::F32)?;
    for k in 0..n {
        // `m` is what is left: rows and columns from `k` on.
        let size = n - k;
        let column = ops.reshape(ops.slice(m, 2, 0, 1)?, &[-1, size])?;
        let best = ops.argmax(ops.abs(column)?, crate::record::TensorAxis(1).keep())?;
        let first = ops.reshape(call.steps(size as usize)?, &[1, size])?;
        let is_best = ops.reshape(ops.equal(first, best)?, &[-1, size, 1])?;
        let is_best = ops.cast(is_best, crate::ir::DType::F32)?;
        let pivot_row = ops.sum(ops.mul(m, is_best)?, crate::record::Axes::of([1isize]).keep())?;
        let pivot = ops.slice(pivot_row, 2, 0, 1)?;
        product = ops.mul(product, ops.reshape(pivot, &[-1])?)?;
        if k + 1 == n {
            break;
        }
        // Swapping two rows changes the sign, unless the first is the best already.
        let swapped = ops.not_equal(ops.reshape(best, &[-1])?, 0)?;
        product = ops.select(swapped, ops.neg(product)?, product)?;
        // The first row takes the place of the pivot row.
        let top = ops.slice(m, 1, 0, 1)?;
        let placed = ops.add(ops.mul(m, ops.value(is_best * -1.0 + 1.0)?)?, ops.mul(is_best, top)?)?;
        let rest = ops.slice(placed, 1, 1, size)?;
        let factor = ops.div(ops.slice(rest, 2, 0, 1)?, pivot)?;
        // A pivot of 0 means a determinant of 0, whatever the rest is.
        let factor = ops.select(ops.equal(pivot, 0.0)?, 0.0, factor)?;
        let reduced = ops.sub(rest, ops.mul(factor, pivot_row)?)?;
        m = ops.slice(reduced, 2, 1, size)?;
    }
    let to: Vec<isize> = shape[..shape.rank() - 2].iter().map(|&n| n as isize).collect();
    one(ops.cast(ops.reshape(product, &to)?, device_type(element)?)?, element)
}
