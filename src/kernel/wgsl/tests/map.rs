//! Maps on the device against plain host loops.

use half::{bf16, f16};

use super::device::{floats, operand, run_step, step, words};
use crate::ir::{BinaryOp, Class, DType, Expr, Layout, Operand, Program, Reg, Shape, Source, UnaryOp};
use crate::kernel::{Kernel, MapKernel, Step};

/// Element `i` of packed words, as bits of its class.
fn get(words: &[u32], dtype: DType, i: usize) -> u32 {
    let word = words[i / dtype.per_word()] >> (i % dtype.per_word() * dtype.size() * 8);
    match dtype {
        DType::F16 => f16::from_bits(word as u16).to_f32().to_bits(),
        DType::BF16 => word << 16,
        DType::I8 => word as u8 as i8 as i32 as u32,
        DType::U8 => word & 255,
        DType::Bool => u32::from(word & 255 != 0),
        _ => word,
    }
}

fn set(words: &mut [u32], dtype: DType, i: usize, bits: u32) {
    let (size, bits) = match dtype {
        DType::F16 => (16, u32::from(f16::from_f32(f32::from_bits(bits)).to_bits())),
        DType::BF16 => (16, u32::from(bf16::from_f32(f32::from_bits(bits)).to_bits())),
        DType::F32 | DType::I32 | DType::U32 => (32, bits),
        _ => (8, bits & 255),
    };
    let shift = i % dtype.per_word() * dtype.size() * 8;
    let mask = (u32::MAX >> (32 - size)) << shift;
    let word = &mut words[i / dtype.per_word()];
    *word = *word & !mask | bits << shift;
}

/// Elements that every type can hold.
fn filled(dtype: DType, count: usize, seed: usize) -> Vec<u32> {
    let mut words = vec![0x5a5a_5a5a & if dtype == DType::Bool { 0 } else { !0 }; dtype.words(count)];
    for i in 0..count {
        let n = (i * 7 + seed) % 101;
        let bits = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => (n as f32 - 50.5).to_bits(),
            DType::Bool => (n % 2) as u32,
            DType::I32 | DType::I8 => (n as u32).wrapping_sub(50),
            _ => n as u32,
        };
        set(&mut words, dtype, i, bits);
    }
    words
}

fn map(shape: &[usize], program: Program, inputs: Vec<Operand>, outputs: Vec<Operand>, scalars: &[u32]) -> Step {
    step(Kernel::Map(MapKernel { shape: Shape::from(shape), program, dynamic_out: None }), inputs, outputs, scalars)
}

/// A program with one input.
fn of_input(class: Class, build: impl Fn(&mut Program, Reg) -> Reg) -> Program {
    let mut program = Program::default();
    let x = program.push(Expr::Input(0, class));
    let y = build(&mut program, x);
    program.outputs.push(y);
    program
}

#[test]
fn copies_between_layouts_touch_only_their_elements() {
    let base = |shape: &[usize]| Layout::contiguous(shape);
    let offset = |layout: Layout, offset| Layout { offset, ..layout };
    let pairs = [
        (base(&[1]), offset(base(&[1]), 3)),
        (base(&[64]), base(&[64])),
        (offset(base(&[65]), 3), base(&[65])),
        (base(&[63]), offset(base(&[63]), 4)),
        (base(&[1757]), offset(base(&[1757]), 2)),
        (base(&[5, 7]).permute(&[1, 0]), base(&[7, 5])),
        (base(&[8, 12]).permute(&[1, 0]), base(&[12, 8])),
        (base(&[12, 8]), base(&[8, 12]).permute(&[1, 0])),
        (base(&[7, 5]), offset(base(&[7, 9]).slice(1, 2, 5, 1), 65)),
        (base(&[4, 8]), offset(base(&[4, 16]).slice(1, 0, 8, 1), 4)),
        (base(&[4, 8]), offset(base(&[4, 10]).slice(1, 0, 8, 1), 4)),
        (base(&[4, 8]).slice(1, 7, 8, -1), base(&[4, 8])),
        (base(&[6, 5]).slice(0, 5, 6, -1), base(&[6, 5])),
        (base(&[5]).broadcast_to(&[3, 5].into()).expect("fits"), base(&[3, 5])),
        (base(&[1, 1]).broadcast_to(&[6, 6].into()).expect("fits"), base(&[6, 6])),
        (base(&[3, 4, 5, 2]).permute(&[2, 0, 3, 1]), base(&[5, 3, 2, 4])),
    ];
    for dtype in DType::ALL {
        for (from, to) in &pairs {
            let (size_from, size_to) = (from.span().end, to.span().end + 5);
            let program = of_input(dtype.class(), |_, x| x);
            let at = |slot, layout: &Layout| Operand { source: Source::Slot(slot), dtype, layout: layout.clone() };
            let step = map(&from.shape, program, vec![at(0, from)], vec![at(1, to)], &[]);
            let (source, mut want) = (filled(dtype, size_from, 3), filled(dtype, size_to, 40));
            let buffers = [(Source::Slot(0), source.clone()), (Source::Slot(1), want.clone())];
            for i in 0..from.elements() {
                set(&mut want, dtype, to.position(i), get(&source, dtype, from.position(i)));
            }
            assert_eq!(run_step(&step, &buffers, &[])[1].1, want, "{dtype} {from:?} to {to:?}");
        }
    }
}

#[test]
fn a_map_may_work_in_place_and_share_a_storage_between_outputs() {
    for (dtype, n) in [(DType::F32, 64), (DType::U8, 7), (DType::F16, 9), (DType::I8, 64)] {
        let mut program = Program::default();
        let x = program.push(Expr::Input(0, dtype.class()));
        let y = program.binary(BinaryOp::Add, x, x);
        program.outputs = vec![y, x];
        let places = vec![operand(0, dtype, &[n], 0), operand(0, dtype, &[n], n)];
        let step = map(&[n], program, vec![operand(0, dtype, &[n], 0)], places, &[]);
        let before = filled(dtype, 2 * n + 3, 50);
        let mut want = before.clone();
        for i in 0..n {
            let bits = get(&before, dtype, i);
            let double = match dtype.class() {
                Class::Float => (2.0 * f32::from_bits(bits)).to_bits(),
                _ => bits.wrapping_mul(2),
            };
            set(&mut want, dtype, i, double);
            set(&mut want, dtype, n + i, bits);
        }
        assert_eq!(run_step(&step, &[(Source::Slot(0), before)], &[])[0].1, want, "{dtype}");
    }
}

#[test]
fn a_scalar_moves_the_output_but_never_out_of_its_buffer() {
    for (dtype, row) in [(DType::F32, 4), (DType::F16, 3), (DType::U8, 4)] {
        let program = of_input(dtype.class(), |_, x| x);
        let kernel = MapKernel { shape: [row].into(), program, dynamic_out: Some(row as isize) };
        let (input, output) = (operand(0, dtype, &[row], 0), operand(1, dtype, &[row], 0));
        let step = step(Kernel::Map(kernel), vec![input], vec![output], &[1]);
        let (source, before) = (filled(dtype, row, 3), filled(dtype, 4 * row, 9));
        for place in [0, 3, 5, 1 << 28] {
            let mut want = before.clone();
            for i in (0..row).filter(|_| place < 4) {
                set(&mut want, dtype, place * row + i, get(&source, dtype, i));
            }
            let buffers = [(Source::Slot(0), source.clone()), (Source::Slot(1), before.clone())];
            assert_eq!(run_step(&step, &buffers, &[77, place as u32])[1].1, want, "{dtype} at {place}");
        }
    }
}

/// Runs a one-input program on numbers.
fn unary(values: &[f32], scalars: &[f32], build: impl Fn(&mut Program, Reg) -> Reg) -> Vec<f32> {
    let n = values.len();
    let program = of_input(Class::Float, build);
    let positions: Vec<u32> = (0..scalars.len() as u32).collect();
    let step =
        map(&[n], program, vec![operand(0, DType::F32, &[n], 0)], vec![operand(1, DType::F32, &[n], 0)], &positions);
    let buffers = [(Source::Slot(0), words(values)), (Source::Slot(1), vec![0; n])];
    floats(&run_step(&step, &buffers, &words(scalars))[1].1)
}

/// Fails unless `got` is within `tolerance`, absolute or relative, of `want`.
fn near(got: &[f32], want: impl Fn(f64) -> f64, values: &[f32], tolerance: f64, what: &str) {
    for (&g, &x) in got.iter().zip(values) {
        let (g, w) = (f64::from(g), want(f64::from(x)));
        let same = g == w || g.is_nan() && w.is_nan() || g == f64::from(w as f32);
        assert!(same || (g - w).abs() <= tolerance * w.abs().max(1.0), "{what}({x}) is {g}, not {w}");
    }
}

/// Awkward arguments.
fn arguments() -> Vec<f32> {
    let mut values = vec![0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-6, -1e-6, 88.0, -87.0, 200.0, -200.0];
    values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3.0e9, -3.0e9]);
    values.extend((0..200).map(|i| (i as f32 - 100.0) * 0.0731));
    values
}

#[test]
fn functions_match_the_host() {
    use UnaryOp::*;
    let values = arguments();
    let run = |op: UnaryOp, scalars: &[f32]| {
        unary(&values, scalars, |p, x| {
            let regs: Vec<_> = (0..op.scalars()).map(|i| p.push(Expr::Scalar(i as u16, Class::Float))).collect();
            p.unary(op, x, &regs)
        })
    };
    type Case = (UnaryOp, fn(f64) -> f64, f64);
    let cases: [Case; 17] = [
        (Neg, |x| -x, 0.0),
        (Abs, f64::abs, 0.0),
        (Exp, f64::exp, 2e-6),
        (Log, f64::ln, 1e-6),
        (Sqrt, f64::sqrt, 1e-6),
        (Sin, f64::sin, 3e-7),
        (Cos, f64::cos, 3e-7),
        (Floor, f64::floor, 0.0),
        (Ceil, f64::ceil, 0.0),
        (Round, f64::round_ties_even, 0.0),
        (Trunc, f64::trunc, 0.0),
        (Sign, |x| if x == 0.0 || x.is_nan() { x } else { x.signum() }, 0.0),
        (Tanh, f64::tanh, 5e-7),
        (Relu, |x| if x.is_nan() { x } else { x.max(0.0) }, 0.0),
        (Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 1e-6),
        (Silu, |x| if x == f64::NEG_INFINITY { f64::NAN } else { x / (1.0 + (-x).exp()) }, 1e-6),
        (Softplus, |x| if x > 50.0 { x } else { x.exp().ln_1p() }, 1e-6),
    ];
    for (op, want, tolerance) in cases {
        near(&run(op, &[]), want, &values, tolerance, &format!("{op:?}"));
    }
    // A few exact values of the error function.
    let at = [0.0, 0.1, 0.5, 0.999, 1.0, 1.5, 2.0, 3.5, -0.7, -9.0, 1e-10];
    let want = [
        0.0,
        0.112_462_916,
        0.520_499_9,
        0.842_285_3,
        0.842_700_8,
        0.966_105_2,
        0.995_322_3,
        0.999_999_3,
        -0.677_801_2,
        -1.0,
        1.128_379_2e-10,
    ];
    for (g, (x, w)) in unary(&at, &[], |p, x| p.unary(Erf, x, &[])).iter().zip(at.iter().zip(want)) {
        assert!((g - w).abs() < 5e-7_f32.min(w.abs() * 1e-5 + 1e-20).max(4e-7 * w.abs()), "erf({x}) is {g}, not {w}");
    }
}

#[test]
fn large_angles_are_right() {
    let values: Vec<f32> = (0..400).map(|i| 1.37f32.powi(i % 270) * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    near(&unary(&values, &[], |p, x| p.unary(UnaryOp::Sin, x, &[])), f64::sin, &values, 3e-7, "sin");
    near(&unary(&values, &[], |p, x| p.unary(UnaryOp::Cos, x, &[])), f64::cos, &values, 3e-7, "cos");
}

/// Applies a binary op of a class to pairs. Returns words.
fn binary(op: BinaryOp, class: Class, pairs: &[(u32, u32)]) -> Vec<u32> {
    let n = pairs.len();
    let mut program = Program::default();
    let a = program.push(Expr::Input(0, class));
    let b = program.push(Expr::Input(1, class));
    let y = program.binary(op, a, b);
    program.outputs.push(y);
    let result = program.class(y).dtype();
    let (a, b) = (operand(0, class.dtype(), &[n], 0), operand(1, class.dtype(), &[n], 0));
    let step = map(&[n], program, vec![a, b], vec![operand(2, result, &[n], 0)], &[]);
    let (a, b) = (pairs.iter().map(|p| p.0).collect(), pairs.iter().map(|p| p.1).collect());
    let buffers = [(Source::Slot(0), a), (Source::Slot(1), b), (Source::Slot(2), vec![0; n])];
    run_step(&step, &buffers, &[]).swap_remove(2).1
}

#[test]
fn binary_floats_match_the_host() {
    use BinaryOp::*;
    let values = [0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, 7.25, -1e10, 3e-5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let pairs: Vec<(f32, f32)> = values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))).collect();
    let bits: Vec<_> = pairs.iter().map(|p| (p.0.to_bits(), p.1.to_bits())).collect();
    let nan_wins = |a: f32, b: f32, other: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { other };
    type FloatCase<'a> = (BinaryOp, &'a dyn Fn(f32, f32) -> f32);
    let cases: [FloatCase; 8] = [
        (Add, &|a, b| a + b),
        (Sub, &|a, b| a - b),
        (Mul, &|a, b| a * b),
        (Div, &|a, b| a / b),
        (Pow, &|a, b| a.powf(b)),
        (Min, &|a, b| nan_wins(a, b, a.min(b))),
        (Max, &|a, b| nan_wins(a, b, a.max(b))),
        (Rem, &|a, b| a % b),
    ];
    for (op, want) in cases {
        for (g, &(a, b)) in floats(&binary(op, Class::Float, &bits)).into_iter().zip(&pairs) {
            let w = want(a, b);
            let same = g == w || g.is_nan() && w.is_nan();
            assert!(same || (g - w).abs() <= 1e-5 * w.abs(), "{a} {op:?} {b} is {g}, not {w}");
        }
    }
    for (g, &(a, b)) in floats(&binary(Mod, Class::Float, &bits)).into_iter().zip(&pairs) {
        let r = a % b;
        let w = if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r };
        assert!(g == w || g.is_nan() && w.is_nan(), "{a} mod {b} is {g}, not {w}");
    }
    for (op, want) in [(Eq, f32::eq as fn(&f32, &f32) -> bool), (Ne, f32::ne), (Lt, f32::lt), (Ge, f32::ge)] {
        for (g, (a, b)) in binary(op, Class::Float, &bits).into_iter().zip(&pairs) {
            assert_eq!(g, u32::from(want(a, b)), "{a} {op:?} {b}");
        }
    }
}

#[test]
fn binary_integers_match_the_host() {
    use BinaryOp::*;
    let values = [0, 1, -1, 2, -3, 7, 46341, i32::MAX, i32::MIN];
    let pairs: Vec<(i32, i32)> = values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))).collect();
    let bits: Vec<_> = pairs.iter().map(|p| (p.0 as u32, p.1 as u32)).collect();
    fn power(a: i32, b: i32) -> i32 {
        match (a, b) {
            (_, 0..) => a.wrapping_pow(b as u32),
            (1, _) => 1,
            (-1, _) => {
                if b % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        }
    }
    type SignedCase = (BinaryOp, fn(i32, i32) -> i32);
    let cases: [SignedCase; 6] = [
        (Mul, i32::wrapping_mul),
        (Div, |a, b| if b == 0 { a } else { a.wrapping_div(b) }),
        (Rem, |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }),
        (Mod, |a, b| {
            let r = if b == 0 { 0 } else { a.wrapping_rem(b) };
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        }),
        (Pow, power),
        (Max, i32::max),
    ];
    for (op, want) in cases {
        for (g, &(a, b)) in binary(op, Class::Int, &bits).into_iter().zip(&pairs) {
            assert_eq!(g as i32, want(a, b), "{a} {op:?} {b}");
        }
    }
    type UnsignedCase = (BinaryOp, fn(u32, u32) -> u32);
    let cases: [UnsignedCase; 3] = [
        (Div, |a, b| a.checked_div(b).unwrap_or(a)),
        (Mod, |a, b| if b == 0 { 0 } else { a % b }),
        (Pow, u32::wrapping_pow),
    ];
    for (op, want) in cases {
        for (g, &(a, b)) in binary(op, Class::Uint, &bits).into_iter().zip(&bits) {
            assert_eq!(g, want(a, b), "{a} {op:?} {b}");
        }
    }
}

#[test]
fn casts_saturate_floats_and_wrap_integers() {
    let mut values = arguments();
    values.extend([
        65504.0,
        65519.9,
        65520.0,
        -70000.0,
        5.96e-8,
        2.9e-8,
        1.0e-5,
        1.000_488_3,
        1.001_464_8,
        300.7,
        -300.7,
        255.5,
    ]);
    let n = values.len();
    let expected = |bits: u32, from: DType, to: DType| -> u32 {
        let (f, i) = (f32::from_bits(bits), bits as i32);
        match (from.class(), to) {
            (Class::Float, DType::F32) => bits,
            (Class::Float, DType::F16) => f16::from_f32(f).to_f32().to_bits(),
            (Class::Float, DType::BF16) => bf16::from_f32(f).to_f32().to_bits(),
            (Class::Float, DType::I32) => f as i32 as u32,
            (Class::Float, DType::U32) => f as u32,
            (Class::Float, DType::I8) => f as i8 as i32 as u32,
            (Class::Float, DType::U8) => u32::from(f as u8),
            (Class::Float, DType::Bool) => u32::from(f != 0.0),
            (Class::Int, DType::F32) => (i as f32).to_bits(),
            (Class::Int, DType::F16) => f16::from_f32(i as f32).to_f32().to_bits(),
            (Class::Int, DType::BF16) => bf16::from_f32(i as f32).to_f32().to_bits(),
            (Class::Uint, DType::F32) => (bits as f32).to_bits(),
            (Class::Uint, DType::F16) => f16::from_f32(bits as f32).to_f32().to_bits(),
            (Class::Uint, DType::BF16) => bf16::from_f32(bits as f32).to_f32().to_bits(),
            (_, DType::I32 | DType::U32) => bits,
            (_, DType::I8) => bits as i8 as i32 as u32,
            (_, DType::U8) => bits & 255,
            _ => u32::from(bits != 0),
        }
    };
    for from in [DType::F32, DType::I32, DType::U32] {
        for to in DType::ALL {
            let program = of_input(from.class(), |p, x| p.push(Expr::Cast(x, to)));
            let step = map(&[n], program, vec![operand(0, from, &[n], 0)], vec![operand(1, to.wide(), &[n], 0)], &[]);
            let buffers = [(Source::Slot(0), words(&values)), (Source::Slot(1), vec![0; n])];
            for (&g, v) in run_step(&step, &buffers, &[])[1].1.iter().zip(&values) {
                let w = expected(v.to_bits(), from, to);
                let nan = to.is_float() && f32::from_bits(g).is_nan() && f32::from_bits(w).is_nan();
                // A device may round an integer that no float can represent to either neighbour.
                let neighbour = to == DType::F32 && from != DType::F32 && g.abs_diff(w) <= 1;
                assert!(g == w || nan || neighbour, "{from} {v} ({:#x}) to {to}: {g:#x}, not {w:#x}", v.to_bits());
            }
        }
    }
}

#[test]
fn random_numbers_positions_and_odd_constants_are_as_documented() {
    let n = 67;
    let mut program = Program::default();
    let i = program.push(Expr::Input(0, Class::Int));
    let seed = program.push(Expr::Scalar(0, Class::Uint));
    let position = program.push(Expr::Cast(i, DType::U32));
    let bits = program.push(Expr::Hash(position, seed));
    let infinity = program.push(Expr::Const(f32::NEG_INFINITY.to_bits(), Class::Float));
    let lowest = program.push(Expr::Const(i32::MIN as u32, Class::Int));
    let tiny = program.push(Expr::Const(0.1f32.to_bits(), Class::Float));
    program.outputs = vec![bits, infinity, lowest, tiny];
    let iota = Operand {
        source: Source::Iota,
        dtype: DType::I32,
        layout: Layout { offset: 5, strides: smallvec::smallvec![3], ..Layout::contiguous([n]) },
    };
    let dtypes = [DType::U32, DType::F32, DType::I32, DType::F32];
    let outputs = dtypes.iter().enumerate().map(|(i, &d)| operand(i as u32, d, &[n], 0)).collect();
    let step = map(&[n], program, vec![iota], outputs, &[0]);
    let buffers: Vec<_> = (0..4).map(|i| (Source::Slot(i), vec![0; n])).collect();
    let got = run_step(&step, &buffers, &[1234]);
    for k in 0..n {
        let mut h =
            (5 + 3 * k as u32).wrapping_mul(0x9E37_79B1) ^ 1234u32.wrapping_mul(0x85EB_CA77).wrapping_add(0xC2B2_AE3D);
        h ^= h >> 16;
        h = h.wrapping_mul(0x7FEB_352D);
        h ^= h >> 15;
        h = h.wrapping_mul(0x846C_A68B);
        h ^= h >> 16;
        let constants = [h, f32::NEG_INFINITY.to_bits(), i32::MIN as u32, 0.1f32.to_bits()];
        assert_eq!([got[0].1[k], got[1].1[k], got[2].1[k], got[3].1[k]], constants);
    }
}
