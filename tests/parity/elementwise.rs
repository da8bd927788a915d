//! Elementwise ops.

use bevy_tensor_compute::prelude::*;

use super::SIZES;
use super::host::{Array, View, erf};
use super::table::{Case, Input, agree, layouts};

type Unary = for<'a> fn(&'a TensorCommands, &TensorOperand<'a>) -> OpResult<TensorValue<'a>>;
type Binary = for<'a> fn(&'a TensorCommands, &TensorOperand<'a>, &TensorOperand<'a>) -> OpResult<TensorValue<'a>>;
type Row1 = (&'static str, Unary, fn(f64) -> f64, (f64, f64));
type Row2 = (&'static str, Binary, fn(f64, f64) -> f64);

const WIDE: (f64, f64) = (-5.0, 5.0);
const POSITIVE: (f64, f64) = (0.1, 20.0);

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn sign(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}

/// Float functions, their definitions, and the range to test.
const FLOAT: [Row1; 49] = [
    ("neg", |o, x| o.neg(x), |x| -x, WIDE),
    ("abs", |o, x| o.abs(x), f64::abs, WIDE),
    ("exp", |o, x| o.exp(x), f64::exp, WIDE),
    ("log", |o, x| o.log(x), f64::ln, POSITIVE),
    ("sqrt", |o, x| o.sqrt(x), f64::sqrt, POSITIVE),
    ("rsqrt", |o, x| o.rsqrt(x), |x| 1.0 / x.sqrt(), POSITIVE),
    ("recip", |o, x| o.recip(x), f64::recip, POSITIVE),
    ("sin", |o, x| o.sin(x), f64::sin, (-50.0, 50.0)),
    ("cos", |o, x| o.cos(x), f64::cos, (-50.0, 50.0)),
    ("tan", |o, x| o.tan(x), f64::tan, (-1.5, 1.5)),
    ("asin", |o, x| o.asin(x), f64::asin, (-1.0, 1.0)),
    ("acos", |o, x| o.acos(x), f64::acos, (-1.0, 1.0)),
    ("atan", |o, x| o.atan(x), f64::atan, (-20.0, 20.0)),
    ("sinh", |o, x| o.sinh(x), f64::sinh, WIDE),
    ("cosh", |o, x| o.cosh(x), f64::cosh, WIDE),
    ("asinh", |o, x| o.asinh(x), f64::asinh, (-50.0, 50.0)),
    ("acosh", |o, x| o.acosh(x), f64::acosh, (1.0, 20.0)),
    ("atanh", |o, x| o.atanh(x), f64::atanh, (-0.99, 0.99)),
    ("floor", |o, x| o.floor(x), f64::floor, WIDE),
    ("ceil", |o, x| o.ceil(x), f64::ceil, WIDE),
    ("round", |o, x| o.round(x), f64::round_ties_even, WIDE),
    ("trunc", |o, x| o.trunc(x), f64::trunc, WIDE),
    ("sign", |o, x| o.sign(x), sign, WIDE),
    ("erf", |o, x| o.erf(x), erf, WIDE),
    ("relu", |o, x| o.relu(x), |x| x.max(0.0), WIDE),
    ("leaky_relu", |o, x| o.leaky_relu(x, 0.1), |x| if x > 0.0 { x } else { 0.1 * x }, WIDE),
    ("elu", |o, x| o.elu(x, 1.5), |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() }, WIDE),
    (
        "selu",
        |o, x| o.selu(x),
        |x| 1.050_700_987_355_480_5 * if x > 0.0 { x } else { 1.673_263_242_354_377_2 * x.exp_m1() },
        WIDE,
    ),
    ("celu", |o, x| o.celu(x, 2.0), |x| x.max(0.0) + (2.0 * (x / 2.0).exp_m1()).min(0.0), WIDE),
    ("thresholded_relu", |o, x| o.thresholded_relu(x, 0.7), |x| if x > f64::from(0.7f32) { x } else { 0.0 }, WIDE),
    ("sigmoid", |o, x| o.sigmoid(x), sigmoid, (-30.0, 30.0)),
    ("hard_sigmoid", |o, x| o.hard_sigmoid(x, 0.2, 0.5), |x| (0.2 * x + 0.5).clamp(0.0, 1.0), WIDE),
    ("tanh", |o, x| o.tanh(x), f64::tanh, (-12.0, 12.0)),
    ("gelu", |o, x| o.gelu(x), |x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)), WIDE),
    (
        "gelu_tanh",
        |o, x| o.gelu_tanh(x),
        |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        WIDE,
    ),
    ("silu", |o, x| o.silu(x), |x| x * sigmoid(x), WIDE),
    ("swish", |o, x| o.swish(x, 1.5), |x| x * sigmoid(1.5 * x), WIDE),
    ("softplus", |o, x| o.softplus(x), |x| x.exp().ln_1p(), WIDE),
    ("softsign", |o, x| o.softsign(x), |x| x / (1.0 + x.abs()), WIDE),
    ("mish", |o, x| o.mish(x), |x| x * x.exp().ln_1p().tanh(), WIDE),
    ("hard_swish", |o, x| o.hard_swish(x), |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0), WIDE),
    (
        "shrink",
        |o, x| o.shrink(x, 1.5, 0.25),
        |x| {
            if x < -1.5 {
                x + 0.25
            } else if x > 1.5 {
                x - 0.25
            } else {
                0.0
            }
        },
        WIDE,
    ),
    ("clamp", |o, x| o.clamp(x, -0.5, 1.25), |x| x.clamp(-0.5, 1.25), WIDE),
    ("is_nan", |o, x| o.is_nan(x), |x| f64::from(x.is_nan()), WIDE),
    ("is_inf", |o, x| o.is_inf(x), |x| f64::from(x.is_infinite()), WIDE),
    ("is_pos_inf", |o, x| o.is_pos_inf(x), |x| f64::from(x == f64::INFINITY), WIDE),
    ("is_neg_inf", |o, x| o.is_neg_inf(x), |x| f64::from(x == f64::NEG_INFINITY), WIDE),
    ("to i32", |o, x| o.cast(x, DType::I32), f64::trunc, (-300.0, 300.0)),
    ("to u8", |o, x| o.cast(x, DType::U8), |x| x.trunc().clamp(0.0, 255.0), (-300.0, 300.0)),
];

/// Functions of two numbers.
const NUMBERS: [Row2; 15] = [
    ("add", |o, a, b| o.add(a, b), |a, b| a + b),
    ("sub", |o, a, b| o.sub(a, b), |a, b| a - b),
    ("mul", |o, a, b| o.mul(a, b), |a, b| a * b),
    ("div", |o, a, b| o.div(a, b), |a, b| a / b),
    ("pow", |o, a, b| o.pow(a, b), f64::powf),
    ("min", |o, a, b| o.min(a, b), f64::min),
    ("max", |o, a, b| o.max(a, b), f64::max),
    ("modulo", |o, a, b| o.modulo(a, b), |a, b| a - b * (a / b).floor()),
    ("rem", |o, a, b| o.rem(a, b), |a, b| a % b),
    ("equal", |o, a, b| o.equal(a, b), |a, b| f64::from(a == b)),
    ("not_equal", |o, a, b| o.not_equal(a, b), |a, b| f64::from(a != b)),
    ("less", |o, a, b| o.less(a, b), |a, b| f64::from(a < b)),
    ("less_equal", |o, a, b| o.less_equal(a, b), |a, b| f64::from(a <= b)),
    ("greater", |o, a, b| o.greater(a, b), |a, b| f64::from(a > b)),
    ("greater_equal", |o, a, b| o.greater_equal(a, b), |a, b| f64::from(a >= b)),
];

#[test]
fn functions_of_one_float_agree() {
    let mut cases = Vec::new();
    for (name, op, host, range) in FLOAT {
        for n in SIZES {
            let x = Input::noise(DType::F32, &[n], range, n as u32);
            cases.push(Case::new(format!("{name} f32 [{n}]"), [x], move |o, x| op(o, &x[0])).host(|x| x[0].map(host)));
        }
        for (layout, x) in layouts(DType::F32, &[3, 4, 5], range, 3) {
            cases.push(
                Case::new(format!("{name} f32 {layout}"), [x], move |o, x| op(o, &x[0])).host(|x| x[0].map(host)),
            );
        }
        for n in [1, 7, 257] {
            for dtype in [DType::F16, DType::BF16] {
                let x = Input::noise(dtype, &[n], range, n as u32);
                let case = Case::new(format!("{name} {dtype} [{n}]"), [x], move |o, x| op(o, &x[0]));
                cases.push(case.host(|x| x[0].map(host)));
            }
        }
    }
    agree(cases);
}

#[test]
fn functions_of_one_integer_or_truth_value_agree() {
    const NUMBER: [Row1; 5] = [
        ("neg", |o, x| o.neg(x), |x| -x, WIDE),
        ("abs", |o, x| o.abs(x), f64::abs, WIDE),
        ("sign", |o, x| o.sign(x), sign, WIDE),
        ("relu", |o, x| o.relu(x), |x| x.max(0.0), WIDE),
        ("clamp", |o, x| o.clamp(x, 2.0, 7.0), |x| x.clamp(2.0, 7.0), WIDE),
    ];
    let mut cases = Vec::new();
    for dtype in [DType::I32, DType::U32, DType::I8, DType::U8] {
        let signed = matches!(dtype, DType::I32 | DType::I8);
        let range = if signed { (-100.0, 100.0) } else { (0.0, 200.0) };
        for (name, op, host, _) in NUMBER {
            for (layout, x) in layouts(dtype, &[3, 13], range, 5) {
                let case = Case::new(format!("{name} {dtype} {layout}"), [x], move |o, x| op(o, &x[0]));
                // Negating an unsigned number wraps, which the host reference does not.
                let plain = signed || name != "neg";
                cases.push(if plain { case.host(|x| x[0].map(host)) } else { case });
            }
        }
    }
    for n in SIZES {
        let x = Input::noise(DType::Bool, &[n], (0.0, 2.0), n as u32);
        cases.push(Case::new(format!("not [{n}]"), [x], |o, x| o.not(&x[0])).host(|x| x[0].map(|x| 1.0 - x)));
    }
    agree(cases);
}

#[test]
fn casts_between_all_types_agree() {
    let mut cases = Vec::new();
    for from in DType::ALL {
        for to in DType::ALL {
            for n in [1, 7, 65] {
                let range = if matches!(from, DType::U32 | DType::U8 | DType::Bool) { (0.0, 2.0) } else { (-2.0, 2.0) };
                let scale = if from == DType::Bool { 1.0 } else { 60.0 };
                let x = Input::noise(from, &[n], (range.0 * scale, range.1 * scale), 11 + n as u32);
                cases.push(Case::new(format!("{from} to {to} [{n}]"), [x], move |o, x| o.cast(&x[0], to)));
            }
        }
    }
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e9, -3e9, 5e9, 1e-8, -0.0, 65504.0, 65520.0, 70000.0, 6e-8];
    for to in DType::ALL {
        let x = Input::new(TensorData::new(&odd, [odd.len()]).expect("as many"));
        cases.push(Case::new(format!("odd floats to {to}"), [x], move |o, x| o.cast(&x[0], to)));
    }
    agree(cases);
}

/// Pairs of shapes that broadcast at different positions and ranks.
const BROADCASTS: [(&[usize], &[usize]); 12] = [
    (&[], &[]),
    (&[5], &[]),
    (&[], &[2, 3]),
    (&[3, 1, 4], &[2, 4]),
    (&[1, 7], &[7, 1]),
    (&[65], &[3, 65]),
    (&[3, 1], &[3, 65]),
    (&[2, 1, 3, 1], &[1, 4, 1, 5]),
    (&[2, 3, 4, 5], &[4, 1]),
    (&[1, 3, 1, 2, 1], &[2, 1, 4, 1, 3]),
    (&[2, 1, 2, 1, 2, 1], &[1, 2, 1, 2, 1, 2]),
    (&[1757], &[1]),
];

#[test]
fn functions_of_two_numbers_broadcast_alike() {
    let mut cases = Vec::new();
    for (name, op, host) in NUMBERS {
        let low = if name == "pow" { 0.2 } else { -4.0 };
        // Remainders jump where rounding differs, so they are tested with numbers that floats represent exactly.
        let whole = matches!(name, "modulo" | "rem");
        let make = |dtype, shape: &[usize], seed| {
            let range = if whole { (1.0, 40.0) } else { (low, 4.0) };
            let mut input = Input::noise(dtype, shape, range, seed);
            if whole {
                input.base = Array::from_data(&input.base).map(|v| v.floor() / 4.0).to_data(dtype);
            }
            input
        };
        for (a, b) in BROADCASTS {
            let inputs = [make(DType::F32, a, 1), make(DType::F32, b, 2)];
            cases.push(
                Case::new(format!("{name} {a:?} {b:?}"), inputs, move |o, x| op(o, &x[0], &x[1]))
                    .host(|x| x[0].zip(&x[1], host)),
            );
        }
        for n in SIZES {
            let inputs = [make(DType::F16, &[n], 1), make(DType::F16, &[n], 2)];
            cases.push(
                Case::new(format!("{name} f16 [{n}]"), inputs, move |o, x| op(o, &x[0], &x[1]))
                    .host(|x| x[0].zip(&x[1], host)),
            );
        }
        for ((layout, a), (_, b)) in layouts(DType::F32, &[2, 3, 5], (0.5, 4.0), 7)
            .into_iter()
            .zip(layouts(DType::F32, &[2, 3, 5], (0.5, 4.0), 8).into_iter().rev())
        {
            let case = Case::new(format!("{name} {layout}"), [a, b], move |o, x| op(o, &x[0], &x[1]));
            cases.push(if whole { case } else { case.host(|x| x[0].zip(&x[1], host)) });
        }
    }
    agree(cases);
}

#[test]
fn functions_of_two_integers_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::I32, DType::U32, DType::I8, DType::U8] {
        let signed = matches!(dtype, DType::I32 | DType::I8);
        for (name, op, host) in NUMBERS {
            let (range_a, range_b) = match (name, signed) {
                ("pow", _) => ((0.0, 3.0), (0.0, 4.0)),
                (_, true) => ((-9.0, 9.0), (-4.0, 4.0)),
                (_, false) => ((5.0, 15.0), (1.0, 5.0)),
            };
            let inputs = [Input::noise(dtype, &[3, 1, 43], range_a, 1), Input::noise(dtype, &[5, 1], range_b, 2)];
            let case = Case::new(format!("{name} {dtype}"), inputs, move |o, x| op(o, &x[0], &x[1]));
            // Division by 0 is tested separately below.
            let same = !(signed && matches!(name, "div" | "modulo" | "rem"));
            cases.push(if same { case.host(|x| x[0].zip(&x[1], |a, b| host(a, b).trunc())) } else { case });
            let big = [Input::noise(dtype, &[65], (-2e9, 4e9), 3), Input::noise(dtype, &[65], (-2e9, 4e9), 4)];
            cases.push(Case::new(format!("{name} {dtype} wraps"), big, move |o, x| op(o, &x[0], &x[1])));
        }
    }
    let by_zero = |dtype| {
        [Array::new(&[4], vec![7.0, 0.0, 5.0, 9.0]), Array::new(&[4], vec![0.0, 0.0, 2.0, 4.0])]
            .map(|array| Input::new(array.to_data(dtype)))
    };
    let fixed = |values: [f64; 4]| move |_: &[Array]| Array::new(&[4], values.to_vec());
    for dtype in [DType::I32, DType::U32, DType::I8, DType::U8] {
        cases.push(
            Case::new(format!("x / 0 {dtype}"), by_zero(dtype), |o, x| o.div(&x[0], &x[1]))
                .host(fixed([7.0, 0.0, 2.0, 2.0])),
        );
        cases.push(
            Case::new(format!("x % 0 {dtype}"), by_zero(dtype), |o, x| o.modulo(&x[0], &x[1]))
                .host(fixed([0.0, 0.0, 1.0, 1.0])),
        );
        cases.push(
            Case::new(format!("rem 0 {dtype}"), by_zero(dtype), |o, x| o.rem(&x[0], &x[1]))
                .host(fixed([0.0, 0.0, 1.0, 1.0])),
        );
    }
    agree(cases);
}

#[test]
fn bits_of_integers_agree() {
    type Bits = (&'static str, Binary, fn(i64, i64) -> i64);
    const BITS: [Bits; 5] = [
        ("bit_and", |o, a, b| o.bit_and(a, b), |a, b| a & b),
        ("bit_or", |o, a, b| o.bit_or(a, b), |a, b| a | b),
        ("bit_xor", |o, a, b| o.bit_xor(a, b), |a, b| a ^ b),
        ("shift_left", |o, a, b| o.shift_left(a, b), |a, b| if (0..32).contains(&b) { a << b } else { 0 }),
        ("shift_right", |o, a, b| o.shift_right(a, b), |a, b| if b >= 0 { a >> b.min(62) } else { a >> 62 }),
    ];
    // An integer of 64 bits as the host holds one of this type.
    fn wrapped(dtype: DType, value: i64) -> f64 {
        match dtype {
            DType::I32 => f64::from(value as i32),
            DType::U32 => f64::from(value as u32),
            DType::I8 => f64::from(value as i8),
            _ => f64::from(value as u8),
        }
    }
    let mut cases = Vec::new();
    for dtype in [DType::I32, DType::U32, DType::I8, DType::U8] {
        let low = if matches!(dtype, DType::I32 | DType::I8) { -100.0 } else { 0.0 };
        for (name, op, host) in BITS {
            let of_b = if name.starts_with("shift") { (low / 10.0, 40.0) } else { (low, 120.0) };
            let inputs = [Input::noise(dtype, &[3, 1, 43], (low, 120.0), 1), Input::noise(dtype, &[5, 1], of_b, 2)];
            cases.push(
                Case::new(format!("{name} {dtype}"), inputs, move |o, x| op(o, &x[0], &x[1]))
                    .host(move |x| x[0].zip(&x[1], |a, b| wrapped(dtype, host(a as i64, b as i64)))),
            );
        }
        let x = Input::noise(dtype, &[65], (low, 120.0), 3);
        cases.push(
            Case::new(format!("bit_not {dtype}"), [x], |o, x| o.bit_not(&x[0]))
                .host(move |x| x[0].map(|v| wrapped(dtype, !(v as i64)))),
        );
    }
    agree(cases);
}

#[test]
fn a_parametric_relu_broadcasts_its_slope() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I32] {
        for (x, slope) in [(&[2, 3, 5][..], &[3, 1][..]), (&[65], &[]), (&[4, 7], &[4, 7])] {
            let inputs = [Input::noise(dtype, x, (-5.0, 5.0), 1), Input::noise(dtype, slope, (0.0, 3.0), 2)];
            cases.push(
                Case::new(format!("prelu {dtype} {x:?} {slope:?}"), inputs, |o, x| o.prelu(&x[0], &x[1]))
                    .host(|x| x[0].zip(&x[1], |x, slope| if x > 0.0 { x } else { slope * x })),
            );
        }
    }
    let x = Input::noise(DType::F32, &[9], WIDE, 4);
    cases.push(
        Case::new("prelu with a number", [x], |o, x| o.prelu(&x[0], 0.5f32))
            .host(|x| x[0].map(|x| if x > 0.0 { x } else { 0.5 * x })),
    );
    agree(cases);
}

#[test]
fn truth_tables_and_selections_agree() {
    const LOGIC: [Row2; 5] = [
        ("and", |o, a, b| o.and(a, b), |a, b| a * b),
        ("or", |o, a, b| o.or(a, b), f64::max),
        ("xor", |o, a, b| o.xor(a, b), |a, b| (a - b).abs()),
        ("equal", |o, a, b| o.equal(a, b), |a, b| f64::from(a == b)),
        ("not_equal", |o, a, b| o.not_equal(a, b), |a, b| f64::from(a != b)),
    ];
    let mut cases = Vec::new();
    for (name, op, host) in LOGIC {
        for (a, b) in BROADCASTS {
            let inputs = [a, b].map(|shape| Input::noise(DType::Bool, shape, (0.0, 2.0), shape.len() as u32 + 1));
            cases.push(
                Case::new(format!("{name} {a:?} {b:?}"), inputs, move |o, x| op(o, &x[0], &x[1]))
                    .host(|x| x[0].zip(&x[1], host)),
            );
        }
    }
    for dtype in DType::ALL {
        for (a, b) in BROADCASTS {
            let range = if dtype == DType::Bool { (0.0, 2.0) } else { (0.0, 90.0) };
            let condition = Input::noise(DType::Bool, b, (0.0, 2.0), 3);
            let inputs = [condition, Input::noise(dtype, a, range, 4), Input::noise(dtype, b, range, 5)];
            cases.push(
                Case::new(format!("select {dtype} {a:?} {b:?}"), inputs, |o, x| o.select(&x[0], &x[1], &x[2])).host(
                    |x| {
                        let signed = x[0].zip(&x[1].map(|v| v + 1.0), |c, v| if c != 0.0 { v } else { 0.0 });
                        signed.zip(&x[2], |yes, no| if yes > 0.0 { yes - 1.0 } else { no })
                    },
                ),
            );
        }
    }
    let inputs = [Input::noise(DType::Bool, &[9], (0.0, 2.0), 3), Input::noise(DType::F32, &[9], WIDE, 4)];
    cases.push(Case::new("select with a number", inputs, |o, x| o.select(&x[0], &x[1], 0.5f32)));
    agree(cases);
}

#[test]
fn odd_floats_agree() {
    let odd = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        1e-30,
        88.0,
        -104.0,
        3e38,
    ];
    let mut cases = Vec::new();
    let row = Input::new(TensorData::new(&odd, [odd.len()]).expect("as many"));
    for (name, op, _, _) in FLOAT {
        // Products of tiny numbers may be flushed to zero.
        cases.push(Case::new(name, [row.clone()], move |o, x| op(o, &x[0])));
    }
    for (name, op, _) in NUMBERS {
        let column = row.clone().early(View::Reshape(vec![odd.len(), 1]));
        cases.push(Case::new(name, [row.clone(), column], move |o, x| op(o, &x[0], &x[1])));
    }
    agree(cases);
}
