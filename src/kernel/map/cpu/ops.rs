//! One loop per primitive operation, over tiles.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};
use smallvec::SmallVec;

use super::hash;
use crate::ir::{BinaryOp, Class, DType, Expr, Primitive, Program, Reg};
use crate::kernel::host::math;
use crate::kernel::host::simd::{Contraction, contracted, vectorised};

/// `out[i] = f(a[i])`.
#[inline(always)]
fn each<A: Pod, R: Pod>(a: &[u32], out: &mut [u32], f: impl Fn(A) -> R) {
    for (o, &a) in cast_slice_mut::<_, R>(out).iter_mut().zip(cast_slice::<_, A>(a)) {
        *o = f(a);
    }
}

/// `out[i] = f(a[i], b[i])`.
#[inline(always)]
fn pairs<A: Pod, R: Pod>(a: &[u32], b: &[u32], out: &mut [u32], f: impl Fn(A, A) -> R) {
    let values = cast_slice::<_, A>(a).iter().zip(cast_slice::<_, A>(b));
    for (o, (&a, &b)) in cast_slice_mut::<_, R>(out).iter_mut().zip(values) {
        *o = f(a, b);
    }
}

/// Computes one expression. `tile` returns the operand in a register.
pub(crate) fn step<'t>(program: &Program, expr: &Expr, tile: impl Fn(Reg) -> &'t [u32], out: &mut [u32]) {
    match *expr {
        Expr::Unary(op, x) => {
            let (class, x) = (program.class(x), tile(x));
            contracted(
                #[inline(always)]
                |c| unary(c, op, class, x, out),
            );
        }
        Expr::Binary(op, a, b) => {
            let (class, a, b) = (program.class(a), tile(a), tile(b));
            match class {
                Class::Float => vectorised(
                    #[inline(always)]
                    || binary(op, Class::Float, a, b, out),
                ),
                Class::Int => vectorised(
                    #[inline(always)]
                    || binary(op, Class::Int, a, b, out),
                ),
                Class::Uint => vectorised(
                    #[inline(always)]
                    || binary(op, Class::Uint, a, b, out),
                ),
            }
        }
        Expr::Select(c, a, b) => {
            let (c, a, b) = (tile(c), tile(a), tile(b));
            vectorised(
                #[inline(always)]
                || {
                    for ((o, &c), (&a, &b)) in out.iter_mut().zip(c).zip(a.iter().zip(b)) {
                        *o = if c != 0 { a } else { b };
                    }
                },
            );
        }
        Expr::Cast(x, dtype) => {
            let (class, x) = (program.class(x), tile(x));
            vectorised(
                #[inline(always)]
                || cast(class, dtype, x, out),
            );
        }
        Expr::Hash(position, seed) => {
            let (position, seed) = (tile(position), tile(seed));
            vectorised(
                #[inline(always)]
                || pairs::<u32, u32>(position, seed, out, hash),
            );
        }
        Expr::Call(function, arguments) => {
            let tiles: SmallVec<[&[u32]; 4]> = arguments.regs().iter().map(|&reg| tile(reg)).collect();
            // Plans with missing functions are rejected before they run.
            if let Some(cpu) = &program.functions[function as usize].cpu {
                cpu.apply(&tiles, out);
            }
        }
        // Filled by the caller.
        Expr::Input(..) | Expr::Scalar(..) | Expr::Const(..) => {}
    }
}

#[inline(always)]
fn unary(c: Contraction, op: Primitive, class: Class, x: &[u32], out: &mut [u32]) {
    match (op, class) {
        (Primitive::Neg, Class::Float) => each(x, out, |v: f32| -v),
        (Primitive::Neg, _) => each(x, out, u32::wrapping_neg),
        (Primitive::Abs, Class::Float) => each(x, out, f32::abs),
        (Primitive::Abs, Class::Int) => each(x, out, i32::wrapping_abs),
        (Primitive::Abs, Class::Uint) => out.copy_from_slice(x),
        (Primitive::Sign, Class::Float) => each(x, out, |v: f32| {
            // Zeros and NaN are unchanged.
            if v > 0.0 {
                1.0
            } else if v < 0.0 {
                -1.0
            } else {
                v
            }
        }),
        (Primitive::Sign, Class::Int) => each(x, out, i32::signum),
        (Primitive::Sign, Class::Uint) => each(x, out, |v: u32| v.min(1)),
        (Primitive::Exp, _) => each(x, out, |v| math::exp(c, v)),
        (Primitive::Log, _) => each(x, out, |v| math::log(c, v)),
        (Primitive::Sqrt, _) => each(x, out, f32::sqrt),
        (Primitive::Sin, _) => each(x, out, f32::sin),
        (Primitive::Cos, _) => each(x, out, f32::cos),
        (Primitive::Floor, _) => each(x, out, f32::floor),
        (Primitive::Ceil, _) => each(x, out, f32::ceil),
        (Primitive::Round, _) => each(x, out, f32::round_ties_even),
        (Primitive::Trunc, _) => each(x, out, f32::trunc),
        (Primitive::Erf, _) => each(x, out, |v| math::erf(c, v)),
        (Primitive::Tanh, _) => each(x, out, |v| math::tanh(c, v)),
        (Primitive::BitNot, _) => each(x, out, |v: u32| !v),
        (Primitive::Not, _) => each(x, out, |v: u32| u32::from(v == 0)),
        (Primitive::IsNan, _) => each(x, out, |v: f32| u32::from(v.is_nan())),
        (Primitive::IsInf, _) => each(x, out, |v: f32| u32::from(v.is_infinite())),
    }
}

#[inline(always)]
fn binary(op: BinaryOp, class: Class, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        BinaryOp::And => pairs(a, b, out, |a: u32, b: u32| u32::from(a != 0) & u32::from(b != 0)),
        BinaryOp::Or => pairs(a, b, out, |a: u32, b: u32| u32::from((a | b) != 0)),
        BinaryOp::Xor => pairs(a, b, out, |a: u32, b: u32| u32::from(a != 0) ^ u32::from(b != 0)),
        BinaryOp::BitAnd => pairs(a, b, out, |a: u32, b: u32| a & b),
        BinaryOp::BitOr => pairs(a, b, out, |a: u32, b: u32| a | b),
        BinaryOp::BitXor => pairs(a, b, out, |a: u32, b: u32| a ^ b),
        BinaryOp::ShiftLeft => pairs(a, b, out, |a: u32, b: u32| a.checked_shl(b).unwrap_or(0)),
        BinaryOp::ShiftRight if class == Class::Int => pairs(a, b, out, |a: i32, b: i32| a >> (b as u32).min(31)),
        BinaryOp::ShiftRight => pairs(a, b, out, |a: u32, b: u32| a.checked_shr(b).unwrap_or(0)),
        _ if op.is_comparison() => match class {
            Class::Float => compare::<f32>(op, a, b, out),
            Class::Int => compare::<i32>(op, a, b, out),
            Class::Uint => compare::<u32>(op, a, b, out),
        },
        _ => match class {
            Class::Float => float(op, a, b, out),
            Class::Int => int(op, a, b, out),
            Class::Uint => uint(op, a, b, out),
        },
    }
}

#[inline(always)]
fn compare<T: Pod + PartialOrd>(op: BinaryOp, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        BinaryOp::Eq => pairs(a, b, out, |a: T, b: T| u32::from(a == b)),
        BinaryOp::Ne => pairs(a, b, out, |a: T, b: T| u32::from(a != b)),
        BinaryOp::Lt => pairs(a, b, out, |a: T, b: T| u32::from(a < b)),
        BinaryOp::Le => pairs(a, b, out, |a: T, b: T| u32::from(a <= b)),
        BinaryOp::Gt => pairs(a, b, out, |a: T, b: T| u32::from(a > b)),
        _ => pairs(a, b, out, |a: T, b: T| u32::from(a >= b)),
    }
}

#[inline(always)]
fn float(op: BinaryOp, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        BinaryOp::Add => pairs(a, b, out, |a: f32, b: f32| a + b),
        BinaryOp::Sub => pairs(a, b, out, |a: f32, b: f32| a - b),
        BinaryOp::Mul => pairs(a, b, out, |a: f32, b: f32| a * b),
        BinaryOp::Div => pairs(a, b, out, |a: f32, b: f32| a / b),
        BinaryOp::Pow => pairs(a, b, out, f32::powf),
        BinaryOp::Min => pairs(a, b, out, |a: f32, b: f32| if a < b || a.is_nan() { a } else { b }),
        BinaryOp::Max => pairs(a, b, out, |a: f32, b: f32| if a > b || a.is_nan() { a } else { b }),
        BinaryOp::Mod => pairs(a, b, out, |a: f32, b: f32| {
            let r = a % b;
            if r == 0.0 {
                r.copysign(b)
            } else if (r < 0.0) != (b < 0.0) {
                r + b
            } else {
                r
            }
        }),
        _ => pairs(a, b, out, |a: f32, b: f32| a % b),
    }
}

/// With a negative exponent, only the powers of 1 and -1 are nonzero.
fn int_pow(a: i32, b: i32) -> i32 {
    match (a, b) {
        (_, 0..) => a.wrapping_pow(b as u32),
        (1, _) => 1,
        (-1, _) => 1 - 2 * (b & 1),
        _ => 0,
    }
}

#[inline(always)]
fn int(op: BinaryOp, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        BinaryOp::Add => pairs(a, b, out, i32::wrapping_add),
        BinaryOp::Sub => pairs(a, b, out, i32::wrapping_sub),
        BinaryOp::Mul => pairs(a, b, out, i32::wrapping_mul),
        BinaryOp::Div => pairs(a, b, out, |a: i32, b: i32| if b == 0 { a } else { a.wrapping_div(b) }),
        BinaryOp::Pow => pairs(a, b, out, int_pow),
        BinaryOp::Min => pairs(a, b, out, |a: i32, b: i32| a.min(b)),
        BinaryOp::Max => pairs(a, b, out, |a: i32, b: i32| a.max(b)),
        BinaryOp::Mod => pairs(a, b, out, |a: i32, b: i32| {
            let r = if b == 0 { 0 } else { a.wrapping_rem(b) };
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        }),
        _ => pairs(a, b, out, |a: i32, b: i32| if b == 0 { 0 } else { a.wrapping_rem(b) }),
    }
}

#[inline(always)]
fn uint(op: BinaryOp, a: &[u32], b: &[u32], out: &mut [u32]) {
    match op {
        BinaryOp::Add => pairs(a, b, out, u32::wrapping_add),
        BinaryOp::Sub => pairs(a, b, out, u32::wrapping_sub),
        BinaryOp::Mul => pairs(a, b, out, u32::wrapping_mul),
        BinaryOp::Div => pairs(a, b, out, |a: u32, b: u32| a.checked_div(b).unwrap_or(a)),
        BinaryOp::Pow => pairs(a, b, out, u32::wrapping_pow),
        BinaryOp::Min => pairs(a, b, out, |a: u32, b: u32| a.min(b)),
        BinaryOp::Max => pairs(a, b, out, |a: u32, b: u32| a.max(b)),
        _ => pairs(a, b, out, |a: u32, b: u32| a.checked_rem(b).unwrap_or(0)),
    }
}

/// Rust's `as` follows the documented rules: floats saturate, NaN gives 0 and integers wrap.
#[inline(always)]
fn cast(from: Class, to: DType, x: &[u32], out: &mut [u32]) {
    match (to, from) {
        (DType::F32, Class::Float) => out.copy_from_slice(x),
        (DType::F32, Class::Int) => each(x, out, |v: i32| v as f32),
        (DType::F32, Class::Uint) => each(x, out, |v: u32| v as f32),
        (DType::F16, Class::Float) => each(x, out, |v: f32| f16::from_f32(v).to_f32()),
        (DType::F16, Class::Int) => each(x, out, |v: i32| f16::from_f32(v as f32).to_f32()),
        (DType::F16, Class::Uint) => each(x, out, |v: u32| f16::from_f32(v as f32).to_f32()),
        (DType::BF16, Class::Float) => each(x, out, |v: f32| bf16::from_f32(v).to_f32()),
        (DType::BF16, Class::Int) => each(x, out, |v: i32| bf16::from_f32(v as f32).to_f32()),
        (DType::BF16, Class::Uint) => each(x, out, |v: u32| bf16::from_f32(v as f32).to_f32()),
        (DType::I32, Class::Float) => each(x, out, |v: f32| v as i32),
        (DType::U32, Class::Float) => each(x, out, |v: f32| v as u32),
        (DType::I32 | DType::U32, _) => out.copy_from_slice(x),
        (DType::I8, Class::Float) => each(x, out, |v: f32| i32::from(v as i8)),
        (DType::I8, _) => each(x, out, |v: u32| i32::from(v as i8)),
        (DType::U8, Class::Float) => each(x, out, |v: f32| u32::from(v as u8)),
        (DType::U8, _) => each(x, out, |v: u32| u32::from(v as u8)),
        (DType::Bool, Class::Float) => each(x, out, |v: f32| u32::from(v != 0.0)),
        (DType::Bool, _) => each(x, out, |v: u32| u32::from(v != 0)),
        // Expressions never produce blocks.
        (DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_), _) => out.copy_from_slice(x),
    }
}
