//! Every op with operands that fit it and arguments from bytes.

use bevy_tensor_compute::ops::{ResizeCoordinates, ResizeRounding};
use bevy_tensor_compute::prelude::*;

use super::source::Source;

/// Whether both backends must give the same bits for the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exact {
    /// It copies.
    Moves,
    /// It adds: exact for quarters.
    Sum,
    /// It multiplies: exact for quarters, a few times.
    Product,
    /// It jumps: exact, but a rounding error of an operand may change it entirely.
    Steps,
    /// It rounds.
    No,
}

type Run = for<'a> fn(&'a TensorCommands, &[TensorValue<'a>], &mut Source) -> OpResult<Vec<TensorValue<'a>>>;

/// An op.
pub struct Row {
    pub name: &'static str,
    pub exact: Exact,
    /// A letter for the type (see `graph::dtype_of`) and the sizes; letters are sizes that operands share.
    pub operands: &'static [&'static str],
    pub run: Run,
}

/// What an op returns, as a list.
trait Values<'a> {
    fn list(self) -> Vec<TensorValue<'a>>;
}

impl<'a> Values<'a> for TensorValue<'a> {
    fn list(self) -> Vec<TensorValue<'a>> {
        vec![self]
    }
}

impl<'a> Values<'a> for (TensorValue<'a>, TensorValue<'a>) {
    fn list(self) -> Vec<TensorValue<'a>> {
        vec![self.0, self.1]
    }
}

impl<'a> Values<'a> for (TensorValue<'a>, TensorValue<'a>, TensorValue<'a>) {
    fn list(self) -> Vec<TensorValue<'a>> {
        vec![self.0, self.1, self.2]
    }
}

impl<'a> Values<'a> for Vec<TensorValue<'a>> {
    fn list(self) -> Vec<TensorValue<'a>> {
        self
    }
}

macro_rules! rows {
    ($($name:ident $exact:ident ( $($operand:literal)* ) |$o:ident, $x:ident, $s:ident| $call:expr;)*) => {
        &[$(Row {
            name: stringify!($name),
            exact: Exact::$exact,
            operands: &[$($operand),*],
            run: |$o, $x, $s| { let _ = (&$x, &$s); $call.map(Values::list) },
        }),*]
    };
}

fn axis(s: &mut Source) -> isize {
    if s.rare(64) { s.one_of(&[isize::MAX, isize::MIN, 8, -8]) } else { s.one_of(&[-1, 0, 1, -2, 2, 3, -3, -1, 0, 1]) }
}

fn axes(s: &mut Source) -> Axes {
    let axes = match s.below(4) {
        0 => Axes::ALL,
        1 => Axes::of([axis(s), axis(s)]),
        _ => Axes::of([axis(s)]),
    };
    if s.flag() { axes.keep() } else { axes }
}

fn one_axis(s: &mut Source) -> Axes {
    let axes = if s.rare(5) { Axes::ALL } else { Axes::of([axis(s)]) };
    if s.flag() { axes.keep() } else { axes }
}

/// A size, a count or a distance; rarely one at which arithmetic breaks.
fn size(s: &mut Source) -> usize {
    if s.rare(48) {
        s.one_of(&[
            usize::MAX,
            isize::MAX as usize,
            1 << 31,
            (1 << 31) - 1,
            1 << 32,
            1 << 40,
            65_536,
            usize::MAX / 4 + 1,
        ])
    } else {
        s.one_of(&[1, 2, 3, 0, 1, 4, 5, 2])
    }
}

fn place(s: &mut Source) -> isize {
    if s.rare(40) {
        s.one_of(&[isize::MAX, isize::MIN, i32::MAX as isize, i32::MIN as isize, 1 << 40])
    } else {
        s.below(12) as isize - 5
    }
}

fn diagonal(s: &mut Source) -> i32 {
    if s.rare(10) { s.one_of(&[i32::MAX, i32::MIN, 1 << 20]) } else { s.below(9) as i32 - 4 }
}

fn number(s: &mut Source) -> f32 {
    if s.rare(32) {
        s.one_of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 0.0, -0.0])
    } else {
        s.one_of(&[0.5, 1.0, -1.0, 0.25, 2.0, 3.0, -0.5, 0.0])
    }
}

fn some<'a>(x: &[TensorValue<'a>], i: usize, s: &mut Source) -> Option<TensorOperand<'a>> {
    if s.rare(4) { None } else { x.get(i).map(|value| TensorOperand::from(*value)) }
}

fn dtype(s: &mut Source) -> DType {
    if s.rare(12) { s.one_of(&DType::QUANTIZED) } else { s.one_of(&DType::ALL) }
}

fn spatial<const N: usize>(s: &mut Source) -> [usize; N] {
    std::array::from_fn(|_| if s.flag() { 1 } else { size(s) })
}

fn padding<const N: usize>(s: &mut Source) -> Padding<N> {
    match s.below(5) {
        0 => Padding::Same,
        1 => Padding::SameLower,
        2 => Padding::Explicit(std::array::from_fn(|_| [size(s), size(s)])),
        _ => Padding::Valid,
    }
}

fn conv<const N: usize>(s: &mut Source) -> ConvSettings<N> {
    if s.flag() {
        return ConvSettings::default();
    }
    let groups = if s.rare(3) { size(s) } else { 1 };
    ConvSettings { stride: spatial(s), padding: padding(s), dilation: spatial(s), groups }
}

fn conv_transpose<const N: usize>(s: &mut Source) -> ConvTransposeSettings<N> {
    if s.flag() {
        return ConvTransposeSettings::default();
    }
    let groups = if s.rare(3) { size(s) } else { 1 };
    let output_padding = if s.rare(3) { spatial(s) } else { [0; N] };
    let output_shape = if s.rare(6) { Some(spatial(s)) } else { None };
    ConvTransposeSettings {
        stride: spatial(s),
        padding: padding(s),
        dilation: spatial(s),
        groups,
        output_padding,
        output_shape,
    }
}

fn pool<const N: usize>(s: &mut Source) -> PoolSettings<N> {
    if s.flag() {
        return PoolSettings::default();
    }
    let stride = if s.flag() { Some(spatial(s)) } else { None };
    let (size, padding, dilation) = (spatial(s), padding(s), spatial(s));
    PoolSettings { size, stride, padding, dilation, ceil_mode: s.flag(), include_pad: s.flag() }
}

fn resize<'a>(o: &'a TensorCommands, x: TensorValue<'a>, s: &mut Source) -> OpResult<TensorValue<'a>> {
    let mode = match s.below(6) {
        0 => ResizeMode::Cubic { a: number(s) },
        1 => ResizeMode::Nearest(s.one_of(&[
            ResizeRounding::HalfDown,
            ResizeRounding::HalfUp,
            ResizeRounding::Floor,
            ResizeRounding::Ceil,
        ])),
        _ => ResizeMode::Linear,
    };
    let coordinates = s.one_of(&[
        ResizeCoordinates::HalfPixel,
        ResizeCoordinates::HalfPixelSymmetric,
        ResizeCoordinates::PytorchHalfPixel,
        ResizeCoordinates::AlignCorners,
        ResizeCoordinates::Asymmetric,
    ]);
    // Nearest positions may round differently on ties; those are judged by vectors.
    let nearest = matches!(mode, ResizeMode::Nearest(_));
    let settings = ResizeSettings { mode, coordinates, antialias: s.rare(4) && !nearest, exclude_outside: s.rare(4) };
    let axes: Vec<isize> = (0..1 + s.below(2)).map(|_| axis(s)).collect();
    let sizes: Vec<usize> = axes.iter().map(|_| size(s)).collect();
    let factors: Vec<f32> =
        axes.iter().map(|_| s.one_of(&[0.5, 1.0, 2.0, 1.5, 3.0, 0.1, 0.0, -1.0, f32::NAN, 1e30])).collect();
    let to = if s.rare(3) { ResizeTo::Scales(&factors) } else { ResizeTo::Sizes(&sizes) };
    o.resize(x, &axes, to, settings)
}

fn mode(s: &mut Source) -> ScatterMode {
    s.one_of(&[ScatterMode::Replace, ScatterMode::Add, ScatterMode::Mul, ScatterMode::Min, ScatterMode::Max])
}

fn pads(s: &mut Source, x: TensorValue, o: &TensorCommands) -> Vec<(isize, isize)> {
    let rank = o.shape(x).map_or(1, |shape| shape.rank()) + usize::from(s.rare(40));
    (0..rank).map(|_| if s.flag() { (0, 0) } else { (place(s), place(s)) }).collect()
}

fn pad_mode(s: &mut Source) -> PadMode {
    match s.below(5) {
        0 => PadMode::Edge,
        1 => PadMode::Reflect,
        2 => PadMode::Wrap,
        _ => PadMode::Constant(f64::from(number(s))),
    }
}

fn sizes(s: &mut Source, n: usize) -> Vec<isize> {
    (0..n).map(|_| if s.rare(5) { -1 } else { size(s) as isize }).collect()
}

/// All ops.
pub const ROWS: &[Row] = rows! {
    neg Moves("n[a,b]") |o, x, s| o.neg(x[0]);
    abs Moves("n[a,b,c]") |o, x, s| o.abs(x[0]);
    exp No("f[a,b]") |o, x, s| o.exp(x[0]);
    log No("f[a,b]") |o, x, s| { let positive = o.abs(x[0])?; o.log(o.add(positive, 0.5)?) };
    sqrt No("f[a]") |o, x, s| { let positive = o.abs(x[0])?; o.sqrt(positive) };
    rsqrt No("f[a,b]") |o, x, s| { let positive = o.abs(x[0])?; o.rsqrt(o.add(positive, 0.5)?) };
    recip No("f[a,b]") |o, x, s| { let positive = o.abs(x[0])?; o.recip(o.add(positive, 0.5)?) };
    sin No("f[a,b]") |o, x, s| o.sin(x[0]);
    cos No("f[a,b]") |o, x, s| o.cos(x[0]);
    floor Steps("f[a,b]") |o, x, s| o.floor(x[0]);
    ceil Steps("f[a,b]") |o, x, s| o.ceil(x[0]);
    round Steps("f[a,b]") |o, x, s| o.round(x[0]);
    trunc Steps("f[a,b]") |o, x, s| o.trunc(x[0]);
    sign Steps("n[a,b]") |o, x, s| o.sign(x[0]);
    erf No("f[a,b]") |o, x, s| o.erf(x[0]);
    not Moves("t[a,b]") |o, x, s| o.not(x[0]);
    is_nan Steps("f[a,b]") |o, x, s| o.is_nan(x[0]);
    is_inf Steps("f[a,b]") |o, x, s| o.is_inf(x[0]);
    tan No("f[a,b]") |o, x, s| o.tan(o.clamp(x[0], -1.0, 1.0)?);
    asin No("f[a,b]") |o, x, s| o.asin(o.mul(x[0], 0.125)?);
    acos No("f[a,b]") |o, x, s| o.acos(o.mul(x[0], 0.125)?);
    atan No("f[a,b]") |o, x, s| o.atan(x[0]);
    sinh No("f[a,b]") |o, x, s| o.sinh(x[0]);
    cosh No("f[a,b]") |o, x, s| o.cosh(x[0]);
    asinh No("f[a,b]") |o, x, s| o.asinh(x[0]);
    acosh No("f[a,b]") |o, x, s| o.acosh(o.add(o.abs(x[0])?, 1.0)?);
    atanh No("f[a,b]") |o, x, s| o.atanh(o.mul(x[0], 0.0625)?);
    is_pos_inf Steps("f[a,b]") |o, x, s| o.is_pos_inf(x[0]);
    is_neg_inf Steps("f[a,b]") |o, x, s| o.is_neg_inf(x[0]);
    swish No("f[a,b]") |o, x, s| o.swish(x[0], number(s));
    shrink Steps("f[a,b]") |o, x, s| o.shrink(x[0], number(s), number(s));
    prelu Product("n[a,b]" "n[b]") |o, x, s| o.prelu(x[0], x[1]);
    bit_not Moves("i[a,b]") |o, x, s| o.bit_not(x[0]);
    bit_and Moves("i[a,b]" "i[b]") |o, x, s| o.bit_and(x[0], x[1]);
    bit_or Moves("i[a,b]" "i[b]") |o, x, s| o.bit_or(x[0], x[1]);
    bit_xor Moves("i[a,b]" "i[b]") |o, x, s| o.bit_xor(x[0], x[1]);
    shift_left Moves("i[a,b]" "i[b]") |o, x, s| o.shift_left(x[0], x[1]);
    shift_right Moves("i[a,b]" "i[b]") |o, x, s| o.shift_right(x[0], x[1]);
    relu Moves("n[a,b]") |o, x, s| o.relu(x[0]);
    leaky_relu No("f[a,b]") |o, x, s| o.leaky_relu(x[0], number(s));
    elu No("f[a,b]") |o, x, s| o.elu(x[0], number(s));
    selu No("f[a,b]") |o, x, s| o.selu(x[0]);
    celu No("f[a,b]") |o, x, s| o.celu(x[0], number(s));
    thresholded_relu Steps("f[a,b]") |o, x, s| o.thresholded_relu(x[0], number(s));
    sigmoid No("f[a,b]") |o, x, s| o.sigmoid(x[0]);
    hard_sigmoid No("f[a,b]") |o, x, s| o.hard_sigmoid(x[0], number(s), number(s));
    tanh No("f[a,b]") |o, x, s| o.tanh(x[0]);
    gelu No("f[a,b]") |o, x, s| o.gelu(x[0]);
    gelu_tanh No("f[a,b]") |o, x, s| o.gelu_tanh(x[0]);
    silu No("f[a,b]") |o, x, s| o.silu(x[0]);
    softplus No("f[a,b]") |o, x, s| o.softplus(x[0]);
    softsign No("f[a,b]") |o, x, s| o.softsign(x[0]);
    mish No("f[a,b]") |o, x, s| o.mish(x[0]);
    hard_swish No("f[a,b]") |o, x, s| o.hard_swish(x[0]);
    clamp Moves("n[a,b]") |o, x, s| o.clamp(x[0], f64::from(number(s)), f64::from(number(s)));
    cast Steps("a[a,b]") |o, x, s| o.cast(x[0], dtype(s));
    add Sum("n[a,b]" "n[b]") |o, x, s| o.add(x[0], x[1]);
    sub Sum("n[a,1,c]" "n[b,c]") |o, x, s| o.sub(x[0], x[1]);
    mul Product("n[a,b]" "n[a,1]") |o, x, s| o.mul(x[0], x[1]);
    div No("n[a,b]" "n[b]") |o, x, s| { let below = o.add(o.abs(x[1])?, 1)?; o.div(x[0], below) };
    add_number Sum("n[a,b,c]") |o, x, s| o.add(x[0], number(s));
    mul_number Product("n[a,b,c]") |o, x, s| o.mul(x[0], number(s));
    pow No("f[a,b]" "f[b]") |o, x, s| { let base = o.add(o.abs(x[0])?, 0.5)?; o.pow(base, o.clamp(x[1], -2.0, 2.0)?) };
    min Moves("n[a,b]" "n[b]") |o, x, s| o.min(x[0], x[1]);
    max Moves("n[a,b]" "n[a,1]") |o, x, s| o.max(x[0], x[1]);
    modulo Steps("n[a,b]" "n[b]") |o, x, s| o.modulo(x[0], o.add(o.abs(x[1])?, 1)?);
    rem Steps("n[a,b]" "n[b]") |o, x, s| o.rem(x[0], o.add(o.abs(x[1])?, 1)?);
    equal Steps("a[a,b]" "a[b]") |o, x, s| o.equal(x[0], x[1]);
    not_equal Steps("a[a,b]" "a[b]") |o, x, s| o.not_equal(x[0], x[1]);
    less Steps("n[a,b]" "n[b]") |o, x, s| o.less(x[0], x[1]);
    less_equal Steps("n[a,b]" "n[b]") |o, x, s| o.less_equal(x[0], x[1]);
    greater Steps("n[a,b]" "n[b]") |o, x, s| o.greater(x[0], x[1]);
    greater_equal Steps("n[a,b]" "n[b]") |o, x, s| o.greater_equal(x[0], x[1]);
    and Moves("t[a,b]" "t[b]") |o, x, s| o.and(x[0], x[1]);
    or Moves("t[a,b]" "t[b]") |o, x, s| o.or(x[0], x[1]);
    xor Moves("t[a,b]" "t[b]") |o, x, s| o.xor(x[0], x[1]);
    select Moves("t[b]" "a[a,b]" "a[a,1]") |o, x, s| o.select(x[0], x[1], x[2]);
    matmul Product("n[a,b]" "n[b,c]") |o, x, s| o.matmul(x[0], x[1]);
    matmul_batch Product("n[d,a,b]" "n[1,b,c]") |o, x, s| o.matmul(x[0], x[1]);
    matmul_vector Product("n[b]" "n[a,b,c]") |o, x, s| o.matmul(x[0], x[1]);
    matmul_nt Product("n[a,b]" "n[c,b]") |o, x, s| o.matmul_nt(x[0], x[1]);
    matmul_tn Product("n[b,a]" "n[b,c]") |o, x, s| o.matmul_tn(x[0], x[1]);
    matmul_tt Product("n[d,b,a]" "n[d,c,b]") |o, x, s| o.matmul_tt(x[0], x[1]);
    linear Product("f[a,b]" "f[c,b]" "f[c]") |o, x, s| { let bias = some(x, 2, s); o.linear(x[0], x[1], bias) };
    linear_quantised No("f[a,32]" "f[c,32]" "f[c]") |o, x, s| {
        let weight = o.quantize(x[1], s.one_of(&[DType::Q8_0, DType::Q4_0]))?;
        let bias = some(x, 2, s);
        o.linear(x[0], weight, bias)
    };
    dot Product("n[a,b]" "n[b]") |o, x, s| o.dot(x[0], x[1]);
    cosine_similarity No("f[a,b]" "f[b]") |o, x, s| o.cosine_similarity(x[0], x[1], axis(s), 0.5);
    l2_distance No("f[a,b]" "f[b]") |o, x, s| o.l2_distance(x[0], x[1], axis(s));
    pairwise_cosine No("f[a,b]" "f[c,b]") |o, x, s| o.pairwise_cosine(x[0], x[1]);
    pairwise_l2 No("f[d,a,b]" "f[d,c,b]") |o, x, s| o.pairwise_l2(x[0], x[1]);
    sum Sum("n[a,b,c]") |o, x, s| o.sum(x[0], axes(s));
    mean No("f[a,b,c]") |o, x, s| o.mean(x[0], axes(s));
    max_of Moves("a[a,b,c]") |o, x, s| o.max_of(x[0], axes(s));
    min_of Moves("a[a,b,c]") |o, x, s| o.min_of(x[0], axes(s));
    prod No("f[a,b]") |o, x, s| o.prod(x[0], axes(s));
    prod_integers Product("i[a,b]") |o, x, s| o.prod(x[0], axes(s));
    sum_squares Product("n[a,b,c]") |o, x, s| o.sum_squares(x[0], axes(s));
    l1_norm Sum("n[a,b]") |o, x, s| o.l1_norm(x[0], axes(s));
    l2_norm No("f[a,b]") |o, x, s| o.l2_norm(x[0], axes(s));
    log_sum_exp No("f[a,b]") |o, x, s| o.log_sum_exp(x[0], axes(s));
    var No("f[a,b]") |o, x, s| o.var(x[0], axes(s), s.below(3));
    std No("f[a,b]") |o, x, s| o.std(x[0], axes(s), s.below(3));
    any Moves("t[a,b]") |o, x, s| o.any(x[0], axes(s));
    all Moves("t[a,b]") |o, x, s| o.all(x[0], axes(s));
    argmax Steps("a[a,b,c]") |o, x, s| o.argmax(x[0], one_axis(s));
    argmin Steps("a[a,b]") |o, x, s| o.argmin(x[0], one_axis(s));
    argmax_last Steps("a[a,b]") |o, x, s| o.argmax_last(x[0], one_axis(s));
    argmin_last Steps("a[a,b]") |o, x, s| o.argmin_last(x[0], one_axis(s));
    cumsum Sum("n[a,b,c]") |o, x, s| o.cumsum_with(x[0], axis(s), CumsumSettings { exclusive: s.flag(), reverse: s.flag() });
    top_k Steps("a[a,b]") |o, x, s| o.top_k(x[0], size(s), axis(s));
    bottom_k Steps("a[a,b]") |o, x, s| o.bottom_k(x[0], size(s), axis(s));
    softmax No("f[a,b,c]") |o, x, s| o.softmax(x[0], axis(s));
    log_softmax No("f[a,b]") |o, x, s| o.log_softmax(x[0], axis(s));
    layer_norm No("f[a,b]" "f[b]" "f[b]") |o, x, s| { let (w, b) = (some(x, 1, s), some(x, 2, s)); o.layer_norm(x[0], w, b, -1, 0.1) };
    rms_norm No("f[a,b,c]" "f[c]") |o, x, s| { let w = some(x, 1, s); o.rms_norm(x[0], w, axis(s), 0.1) };
    l2_normalize No("f[a,b,c]") |o, x, s| o.l2_normalize(x[0], axis(s));
    lp_normalize No("f[a,b]") |o, x, s| o.lp_normalize(x[0], axis(s), s.below(4) as u32);
    batch_norm No("f[a,c,b]" "f[c]" "f[c]" "f[c]" "f[c]") |o, x, s| {
        let (w, b, variance) = (some(x, 3, s), some(x, 4, s), o.abs(x[2])?);
        o.batch_norm(x[0], x[1], variance, w, b, 0.1)
    };
    group_norm No("f[a,4c,b]" "f[4c]" "f[4c]") |o, x, s| {
        let (groups, w, b) = (s.one_of(&[1, 2, 4, 3, 0]), some(x, 1, s), some(x, 2, s));
        o.group_norm(x[0], groups, w, b, 0.1)
    };
    instance_norm No("f[a,c,b]" "f[c]" "f[c]") |o, x, s| { let (w, b) = (some(x, 1, s), some(x, 2, s)); o.instance_norm(x[0], w, b, 0.1) };
    conv1d Product("f[a,c,h]" "f[o,c,k]" "f[o]") |o, x, s| { let b = some(x, 2, s); o.conv1d(x[0], x[1], b, conv(s)) };
    conv2d Product("f[1,c,h,w]" "f[o,c,k,l]" "f[o]") |o, x, s| { let b = some(x, 2, s); o.conv2d(x[0], x[1], b, conv(s)) };
    conv2d_depthwise Product("f[a,c,h,7]" "f[c,1,k,l]" "f[c]") |o, x, s| {
        let groups = o.shape(x[0])?.get(1).copied().unwrap_or(1);
        let b = some(x, 2, s);
        o.conv2d(x[0], x[1], b, ConvSettings { groups, ..conv(s) })
    };
    conv3d Product("f[1,c,4,h,5]" "f[o,c,k,l,m]" "f[o]") |o, x, s| { let b = some(x, 2, s); o.conv3d(x[0], x[1], b, conv(s)) };
    conv_transpose1d Product("f[a,c,h]" "f[c,o,k]" "f[o]") |o, x, s| { let b = some(x, 2, s); o.conv_transpose1d(x[0], x[1], b, conv_transpose(s)) };
    conv_transpose2d Product("f[1,c,h,6]" "f[c,o,k,l]" "f[o]") |o, x, s| { let b = some(x, 2, s); o.conv_transpose2d(x[0], x[1], b, conv_transpose(s)) };
    conv_transpose3d Product("f[1,c,3,h,4]" "f[c,o,k,l,m]" "f[o]") |o, x, s| { let b = some(x, 2, s); o.conv_transpose3d(x[0], x[1], b, conv_transpose(s)) };
    max_pool1d Moves("n[a,c,h]") |o, x, s| o.max_pool1d(x[0], pool(s));
    max_pool2d Moves("n[1,c,h,w]") |o, x, s| o.max_pool2d(x[0], pool(s));
    max_pool3d Moves("n[1,c,4,h,5]") |o, x, s| o.max_pool3d(x[0], pool(s));
    max_pool1d_indices Steps("n[a,c,h]") |o, x, s| o.max_pool1d_indices(x[0], pool(s));
    max_pool2d_indices Steps("n[1,c,h,w]") |o, x, s| o.max_pool2d_indices(x[0], pool(s));
    max_pool3d_indices Steps("n[1,c,4,h,5]") |o, x, s| o.max_pool3d_indices(x[0], pool(s));
    avg_pool1d No("f[a,c,h]") |o, x, s| o.avg_pool1d(x[0], pool(s));
    avg_pool2d No("f[1,c,h,w]") |o, x, s| o.avg_pool2d(x[0], pool(s));
    avg_pool3d No("f[1,c,4,h,5]") |o, x, s| o.avg_pool3d(x[0], pool(s));
    global_avg_pool No("f[a,c,h,3]") |o, x, s| o.global_avg_pool(x[0]);
    global_max_pool Moves("a[a,c,h]") |o, x, s| o.global_max_pool(x[0]);
    adaptive_avg_pool2d No("f[1,c,h,w]") |o, x, s| o.adaptive_avg_pool2d(x[0], [size(s), size(s)]);
    resize No("f[1,c,h,w]") |o, x, s| resize(o, x[0], s);
    resize2d_bilinear No("f[1,c,h,w]") |o, x, s| o.resize2d_bilinear(x[0], [size(s), size(s)]);
    resize2d_nearest Moves("a[1,c,h,w]") |o, x, s| o.resize2d_nearest(x[0], [size(s), size(s)]);
    pad Moves("a[a,b]") |o, x, s| { let pads = pads(s, x[0], o); o.pad(x[0], &pads, pad_mode(s)) };
    reshape Moves("a[a,b,c]") |o, x, s| { let n = s.below(4); let sizes = sizes(s, n); o.reshape(x[0], &sizes) };
    flat Moves("a[a,b,c]") |o, x, s| o.reshape(x[0], &[-1]);
    flatten Moves("a[a,b,c]") |o, x, s| o.flatten(x[0], axis(s), axis(s));
    transpose Moves("a[a,b]") |o, x, s| o.transpose(x[0]);
    permute Moves("a[a,b,c]") |o, x, s| o.permute(x[0], &s.one_of(&[[0, 1, 2], [2, 0, 1], [1, 0, 2], [-1, 0, 1], [0, 0, 1], [2, 1, 0]]));
    squeeze Moves("a[a,1,b]") |o, x, s| { let at = if s.flag() { Axes::of([1]) } else { axes(s) }; o.squeeze(x[0], at) };
    unsqueeze Moves("a[a,b]") |o, x, s| { let at = [axis(s), axis(s)]; let n = 1 + s.below(2); o.unsqueeze(x[0], &at[..n]) };
    broadcast_to Moves("a[a,1]") |o, x, s| { let rows = o.shape(x[0])?[0]; o.broadcast_to(x[0], vec![size(s), rows, size(s)]) };
    slice Moves("a[a,b]") |o, x, s| o.slice(x[0], axis(s), place(s), place(s));
    slice_step Moves("a[a,b]") |o, x, s| o.slice_step(x[0], axis(s), place(s), place(s), place(s));
    split Moves("a[a,6]") |o, x, s| { let parts: &[usize] = s.one_of(&[&[2, 4][..], &[1, 2, 3], &[6], &[0, 6], &[usize::MAX, 7], &[5]]); o.split(x[0], axis(s), parts) };
    concat Moves("a[a,b]" "a[c,b]" "a[1,b]") |o, x, s| o.concat(x.iter().copied(), axis(s));
    stack Moves("a[a,b]" "a[a,b]") |o, x, s| o.stack(x.iter().copied(), axis(s));
    tile Moves("a[a,b]") |o, x, s| o.tile(x[0], &[size(s), size(s)]);
    repeat Moves("a[a,b]") |o, x, s| o.repeat(x[0], axis(s), size(s));
    flip Moves("a[a,b,c]") |o, x, s| o.flip(x[0], axes(s));
    copy Moves("a[a,b,c]") |o, x, s| o.copy(x[0]);
    depth_to_space Moves("a[a,4c,h,w]") |o, x, s| o.depth_to_space(x[0], if s.rare(4) { size(s) } else { 2 }, s.one_of(&[DepthOrder::DepthColumnRow, DepthOrder::ColumnRowDepth]));
    space_to_depth Moves("a[a,c,2h,2w]") |o, x, s| o.space_to_depth(x[0], if s.rare(4) { size(s) } else { 2 });
    gather Moves("a[a,b,c]" "i[d,e]") |o, x, s| o.gather(x[0], x[1], axis(s));
    embedding Moves("a[a,b]" "i[c]") |o, x, s| o.embedding(x[0], x[1]);
    embedding_quantised No("f[a,32]" "i[c]") |o, x, s| o.embedding(o.quantize(x[0], s.one_of(&[DType::Q8_0, DType::Q4_0]))?, x[1]);
    gather_elements Moves("a[a,b]" "i[a,c]") |o, x, s| o.gather_elements(x[0], x[1], axis(s));
    gather_nd Moves("a[a,b,c]" "i[d,2]") |o, x, s| o.gather_nd(x[0], x[1], s.one_of(&[0, 0, 0, 1, 2, usize::MAX]));
    scatter_elements Steps("a[a,b]" "i[a,c]" "a[a,c]") |o, x, s| o.scatter_elements(x[0], x[1], x[2], axis(s), s.one_of(&[ScatterMode::Replace, ScatterMode::Min, ScatterMode::Max]));
    scatter_add Sum("n[a,b]" "i[a,c]" "n[a,c]") |o, x, s| o.scatter_elements(x[0], x[1], x[2], axis(s), ScatterMode::Add);
    scatter_nd No("n[a,b]" "i[c,1]" "n[c,b]") |o, x, s| o.scatter_nd(x[0], x[1], x[2], mode(s));
    full Moves() |o, x, s| o.full([size(s), size(s)], f64::from(number(s)), s.one_of(&DType::ALL));
    arange No() |o, x, s| o.arange(f64::from(number(s)), f64::from(number(s)), size(s), s.one_of(&DType::ALL));
    eye Moves() |o, x, s| o.eye(size(s), size(s), diagonal(s), s.one_of(&DType::ALL));
    tril Moves("a[a,b,c]") |o, x, s| o.tril(x[0], diagonal(s));
    triu Moves("a[a,b]") |o, x, s| o.triu(x[0], diagonal(s));
    one_hot Moves("i[a,b]") |o, x, s| o.one_hot(x[0], size(s), s.one_of(&DType::ALL));
    attention No("f[1,2,a,b]" "f[1,2,c,b]" "f[1,2,c,d]") |o, x, s| {
        let valid_keys = if s.rare(4) { Some(size(s)) } else { None };
        let position = if s.rare(3) { Some(size(s)) } else { None };
        let softcap = if s.rare(4) { 2.0 } else { 0.0 };
        o.attention(x[0], x[1], x[2], AttentionSettings { causal: s.flag(), softcap, valid_keys, position, ..Default::default() })
    };
    attention_masked No("f[a,4,b,8]" "f[a,2,c,8]" "f[a,2,c,8]" "t[b,c]") |o, x, s| {
        o.attention(x[0], x[1], x[2], AttentionSettings { mask: Some(x[3].into()), causal: s.flag(), ..Default::default() })
    };
    rope No("f[a,b,4c]") |o, x, s| {
        let layout = s.one_of(&[RopeLayout::Half, RopeLayout::Interleaved]);
        let rotary = if s.rare(3) { Some(size(s)) } else { None };
        let position = if s.rare(30) { usize::MAX } else { s.below(9) };
        o.rope(x[0], RopeSettings { position, layout, rotary, ..Default::default() })
    };
    rope_with No("f[a,b,4c]" "f[b,2c]" "f[b,2c]") |o, x, s| o.rope_with(x[0], x[1], x[2], s.one_of(&[RopeLayout::Half, RopeLayout::Interleaved]));
    lstm No("f[a,b,c]" "f[4d,c]" "f[4d,d]" "f[4d]" "f[b,d]" "f[b,d]") |o, x, s| {
        let (bias, h, c) = (some(x, 3, s), some(x, 4, s), some(x, 5, s));
        if s.flag() { o.lstm(x[0], x[1], x[2], bias, h, c) } else { o.lstm_reverse(x[0], x[1], x[2], bias, h, c) }
    };
    quantize No("f[a,32]") |o, x, s| o.dequantize(o.quantize(x[0], s.one_of(&[DType::Q8_0, DType::Q4_0, DType::Q4_128]))?);
    quantize_i8 No("f[a,b]") |o, x, s| { let (values, scale) = o.quantize_i8(x[0])?; o.dequantize_i8(values, scale) };
    quantize_i8_channels No("f[a,b]") |o, x, s| { let (values, scale) = o.quantize_i8_channels(x[0], axis(s))?; o.dequantize_i8(values, scale) };
    dequantize_i8 No("b[a,b]" "f[a,1]") |o, x, s| o.dequantize_i8(x[0], x[1]);
    linear_i8 Product("f[a,b]" "b[c,b]" "f[c,1]" "f[c]") |o, x, s| { let bias = some(x, 3, s); o.linear_i8(x[0], x[1], x[2], bias) };
};
