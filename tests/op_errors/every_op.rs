//! Every public op with valid operands. The tests derive the errors that all ops share from these rows.

use bevy_tensor_compute::prelude::*;

/// Which element types an operand may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Takes {
    Float,
    Number,
    Truth,
    Index,
    Byte,
    Quantized,
    Any,
}

impl Takes {
    /// A valid type.
    pub fn good(self) -> DType {
        match self {
            Takes::Truth => DType::Bool,
            Takes::Index => DType::I32,
            Takes::Byte => DType::I8,
            Takes::Quantized => DType::Q8_0,
            _ => DType::F32,
        }
    }

    /// An invalid type, if there is one.
    pub fn bad(self) -> Option<DType> {
        match self {
            Takes::Float => Some(DType::I32),
            Takes::Number => Some(DType::Bool),
            Takes::Truth | Takes::Index | Takes::Byte | Takes::Quantized => Some(DType::F32),
            Takes::Any => None,
        }
    }
}

type Run = for<'a> fn(&'a TensorCommands, &[TensorOperand<'a>]) -> OpResult<()>;

/// An op, the types and shapes of its operands, and a call of it.
pub struct Row {
    pub name: &'static str,
    pub operands: &'static [(Takes, &'static [usize])],
    pub run: Run,
}

macro_rules! rows {
    ($($name:ident ( $($takes:ident $shape:expr),* ) |$o:ident, $x:ident| $call:expr;)*) => {
        &[$(Row {
            name: stringify!($name),
            operands: &[$((Takes::$takes, &$shape)),*],
            run: |$o, $x| { let _ = $x; $call.map(drop) },
        }),*]
    };
}

fn some<'a>(x: &TensorOperand<'a>) -> Option<TensorOperand<'a>> {
    Some(x.clone())
}

/// All ops except effects, whose operands are named tensors.
pub const OPS: &[Row] = rows! {
    value(Any [2, 3]) |o, x| o.value(&x[0]);
    shape(Any [2, 3]) |o, x| o.shape(&x[0]);
    dtype(Any [2, 3]) |o, x| o.dtype(&x[0]);
    to_backend(Any [2, 3]) |o, x| o.to_backend(&x[0], Backend::Cpu);
    neg(Number [2, 3]) |o, x| o.neg(&x[0]);
    abs(Number [2, 3]) |o, x| o.abs(&x[0]);
    exp(Float [2, 3]) |o, x| o.exp(&x[0]);
    log(Float [2, 3]) |o, x| o.log(&x[0]);
    sqrt(Float [2, 3]) |o, x| o.sqrt(&x[0]);
    rsqrt(Float [2, 3]) |o, x| o.rsqrt(&x[0]);
    recip(Float [2, 3]) |o, x| o.recip(&x[0]);
    sin(Float [2, 3]) |o, x| o.sin(&x[0]);
    cos(Float [2, 3]) |o, x| o.cos(&x[0]);
    tan(Float [2, 3]) |o, x| o.tan(&x[0]);
    asin(Float [2, 3]) |o, x| o.asin(&x[0]);
    acos(Float [2, 3]) |o, x| o.acos(&x[0]);
    atan(Float [2, 3]) |o, x| o.atan(&x[0]);
    sinh(Float [2, 3]) |o, x| o.sinh(&x[0]);
    cosh(Float [2, 3]) |o, x| o.cosh(&x[0]);
    asinh(Float [2, 3]) |o, x| o.asinh(&x[0]);
    acosh(Float [2, 3]) |o, x| o.acosh(&x[0]);
    atanh(Float [2, 3]) |o, x| o.atanh(&x[0]);
    floor(Float [2, 3]) |o, x| o.floor(&x[0]);
    ceil(Float [2, 3]) |o, x| o.ceil(&x[0]);
    round(Float [2, 3]) |o, x| o.round(&x[0]);
    trunc(Float [2, 3]) |o, x| o.trunc(&x[0]);
    sign(Number [2, 3]) |o, x| o.sign(&x[0]);
    erf(Float [2, 3]) |o, x| o.erf(&x[0]);
    not(Truth [2, 3]) |o, x| o.not(&x[0]);
    bit_not(Index [2, 3]) |o, x| o.bit_not(&x[0]);
    is_nan(Float [2, 3]) |o, x| o.is_nan(&x[0]);
    is_inf(Float [2, 3]) |o, x| o.is_inf(&x[0]);
    is_pos_inf(Float [2, 3]) |o, x| o.is_pos_inf(&x[0]);
    is_neg_inf(Float [2, 3]) |o, x| o.is_neg_inf(&x[0]);
    relu(Number [2, 3]) |o, x| o.relu(&x[0]);
    leaky_relu(Float [2, 3]) |o, x| o.leaky_relu(&x[0], 0.1);
    elu(Float [2, 3]) |o, x| o.elu(&x[0], 1.0);
    selu(Float [2, 3]) |o, x| o.selu(&x[0]);
    celu(Float [2, 3]) |o, x| o.celu(&x[0], 1.0);
    thresholded_relu(Float [2, 3]) |o, x| o.thresholded_relu(&x[0], 1.0);
    sigmoid(Float [2, 3]) |o, x| o.sigmoid(&x[0]);
    hard_sigmoid(Float [2, 3]) |o, x| o.hard_sigmoid(&x[0], 0.2, 0.5);
    tanh(Float [2, 3]) |o, x| o.tanh(&x[0]);
    gelu(Float [2, 3]) |o, x| o.gelu(&x[0]);
    gelu_tanh(Float [2, 3]) |o, x| o.gelu_tanh(&x[0]);
    silu(Float [2, 3]) |o, x| o.silu(&x[0]);
    swish(Float [2, 3]) |o, x| o.swish(&x[0], 1.0);
    softplus(Float [2, 3]) |o, x| o.softplus(&x[0]);
    softsign(Float [2, 3]) |o, x| o.softsign(&x[0]);
    mish(Float [2, 3]) |o, x| o.mish(&x[0]);
    hard_swish(Float [2, 3]) |o, x| o.hard_swish(&x[0]);
    shrink(Float [2, 3]) |o, x| o.shrink(&x[0], 0.5, 0.0);
    prelu(Number [2, 3], Number [3]) |o, x| o.prelu(&x[0], &x[1]);
    clamp(Number [2, 3]) |o, x| o.clamp(&x[0], 0.0, 1.0);
    cast(Any [2, 3]) |o, x| o.cast(&x[0], DType::U8);
    add(Number [2, 3], Number [3]) |o, x| o.add(&x[0], &x[1]);
    sub(Number [2, 3], Number [3]) |o, x| o.sub(&x[0], &x[1]);
    mul(Number [2, 3], Number [3]) |o, x| o.mul(&x[0], &x[1]);
    div(Number [2, 3], Number [3]) |o, x| o.div(&x[0], &x[1]);
    pow(Number [2, 3], Number [3]) |o, x| o.pow(&x[0], &x[1]);
    min(Number [2, 3], Number [3]) |o, x| o.min(&x[0], &x[1]);
    max(Number [2, 3], Number [3]) |o, x| o.max(&x[0], &x[1]);
    modulo(Number [2, 3], Number [3]) |o, x| o.modulo(&x[0], &x[1]);
    rem(Number [2, 3], Number [3]) |o, x| o.rem(&x[0], &x[1]);
    equal(Any [2, 3], Any [3]) |o, x| o.equal(&x[0], &x[1]);
    not_equal(Any [2, 3], Any [3]) |o, x| o.not_equal(&x[0], &x[1]);
    less(Number [2, 3], Number [3]) |o, x| o.less(&x[0], &x[1]);
    less_equal(Number [2, 3], Number [3]) |o, x| o.less_equal(&x[0], &x[1]);
    greater(Number [2, 3], Number [3]) |o, x| o.greater(&x[0], &x[1]);
    greater_equal(Number [2, 3], Number [3]) |o, x| o.greater_equal(&x[0], &x[1]);
    and(Truth [2, 3], Truth [3]) |o, x| o.and(&x[0], &x[1]);
    or(Truth [2, 3], Truth [3]) |o, x| o.or(&x[0], &x[1]);
    xor(Truth [2, 3], Truth [3]) |o, x| o.xor(&x[0], &x[1]);
    bit_and(Index [2, 3], Index [3]) |o, x| o.bit_and(&x[0], &x[1]);
    bit_or(Index [2, 3], Index [3]) |o, x| o.bit_or(&x[0], &x[1]);
    bit_xor(Index [2, 3], Index [3]) |o, x| o.bit_xor(&x[0], &x[1]);
    shift_left(Index [2, 3], Index [3]) |o, x| o.shift_left(&x[0], &x[1]);
    shift_right(Index [2, 3], Index [3]) |o, x| o.shift_right(&x[0], &x[1]);
    select(Truth [3], Any [2, 3], Any [2, 1]) |o, x| o.select(&x[0], &x[1], &x[2]);
    matmul(Number [2, 3], Number [3, 4]) |o, x| o.matmul(&x[0], &x[1]);
    matmul_nt(Number [2, 3], Number [4, 3]) |o, x| o.matmul_nt(&x[0], &x[1]);
    matmul_tn(Number [3, 2], Number [3, 4]) |o, x| o.matmul_tn(&x[0], &x[1]);
    matmul_tt(Number [3, 2], Number [4, 3]) |o, x| o.matmul_tt(&x[0], &x[1]);
    linear(Float [2, 3], Float [4, 3], Float [4]) |o, x| o.linear(&x[0], &x[1], some(&x[2]));
    dot(Number [2, 3], Number [3]) |o, x| o.dot(&x[0], &x[1]);
    cosine_similarity(Float [2, 3], Float [3]) |o, x| o.cosine_similarity(&x[0], &x[1], -1, 1e-8);
    l2_distance(Float [2, 3], Float [3]) |o, x| o.l2_distance(&x[0], &x[1], -1);
    pairwise_cosine(Float [2, 3], Float [4, 3]) |o, x| o.pairwise_cosine(&x[0], &x[1]);
    pairwise_l2(Float [2, 3], Float [4, 3]) |o, x| o.pairwise_l2(&x[0], &x[1]);
    sum(Number [2, 3]) |o, x| o.sum(&x[0], 1);
    mean(Float [2, 3]) |o, x| o.mean(&x[0], 1);
    max_of(Any [2, 3]) |o, x| o.max_of(&x[0], 1);
    min_of(Any [2, 3]) |o, x| o.min_of(&x[0], 1);
    prod(Number [2, 3]) |o, x| o.prod(&x[0], 1);
    sum_squares(Number [2, 3]) |o, x| o.sum_squares(&x[0], 1);
    l1_norm(Number [2, 3]) |o, x| o.l1_norm(&x[0], 1);
    l2_norm(Float [2, 3]) |o, x| o.l2_norm(&x[0], 1);
    log_sum_exp(Float [2, 3]) |o, x| o.log_sum_exp(&x[0], 1);
    var(Float [2, 3]) |o, x| o.var(&x[0], 1, 0);
    std(Float [2, 3]) |o, x| o.std(&x[0], 1, 0);
    any(Truth [2, 3]) |o, x| o.any(&x[0], 1);
    all(Truth [2, 3]) |o, x| o.all(&x[0], 1);
    argmax(Any [2, 3]) |o, x| o.argmax(&x[0], 1);
    argmin(Any [2, 3]) |o, x| o.argmin(&x[0], 1);
    argmax_last(Any [2, 3]) |o, x| o.argmax_last(&x[0], 1);
    argmin_last(Any [2, 3]) |o, x| o.argmin_last(&x[0], 1);
    cumsum(Number [2, 3]) |o, x| o.cumsum(&x[0], 1);
    cumsum_with(Number [2, 3]) |o, x| o.cumsum_with(&x[0], 1, CumsumSettings { reverse: true, ..Default::default() });
    top_k(Any [2, 3]) |o, x| o.top_k(&x[0], 2, 1);
    bottom_k(Any [2, 3]) |o, x| o.bottom_k(&x[0], 2, 1);
    softmax(Float [2, 3]) |o, x| o.softmax(&x[0], 1);
    log_softmax(Float [2, 3]) |o, x| o.log_softmax(&x[0], 1);
    layer_norm(Float [2, 3], Float [3], Float [3]) |o, x| o.layer_norm(&x[0], some(&x[1]), some(&x[2]), -1, 1e-5);
    rms_norm(Float [2, 3], Float [3]) |o, x| o.rms_norm(&x[0], some(&x[1]), -1, 1e-5);
    l2_normalize(Float [2, 3]) |o, x| o.l2_normalize(&x[0], 1);
    lp_normalize(Float [2, 3]) |o, x| o.lp_normalize(&x[0], 1, 1);
    batch_norm(Float [2, 3, 4], Float [3], Float [3], Float [3], Float [3])
        |o, x| o.batch_norm(&x[0], &x[1], &x[2], some(&x[3]), some(&x[4]), 1e-5);
    group_norm(Float [2, 4, 3], Float [4], Float [4]) |o, x| o.group_norm(&x[0], 2, some(&x[1]), some(&x[2]), 1e-5);
    instance_norm(Float [2, 4, 3], Float [4], Float [4]) |o, x| o.instance_norm(&x[0], some(&x[1]), some(&x[2]), 1e-5);
    conv1d(Float [1, 2, 5], Float [3, 2, 2], Float [3])
        |o, x| o.conv1d(&x[0], &x[1], some(&x[2]), ConvSettings::default());
    conv2d(Float [1, 2, 5, 5], Float [3, 2, 2, 2], Float [3])
        |o, x| o.conv2d(&x[0], &x[1], some(&x[2]), ConvSettings::default());
    conv3d(Float [1, 2, 5, 5, 5], Float [3, 2, 2, 2, 2], Float [3])
        |o, x| o.conv3d(&x[0], &x[1], some(&x[2]), ConvSettings::default());
    conv_transpose1d(Float [1, 2, 5], Float [2, 3, 2], Float [3])
        |o, x| o.conv_transpose1d(&x[0], &x[1], some(&x[2]), ConvTransposeSettings::default());
    conv_transpose2d(Float [1, 2, 5, 5], Float [2, 3, 2, 2], Float [3])
        |o, x| o.conv_transpose2d(&x[0], &x[1], some(&x[2]), ConvTransposeSettings::default());
    conv_transpose3d(Float [1, 2, 5, 5, 5], Float [2, 3, 2, 2, 2], Float [3])
        |o, x| o.conv_transpose3d(&x[0], &x[1], some(&x[2]), ConvTransposeSettings::default());
    max_pool1d(Number [1, 2, 6]) |o, x| o.max_pool1d(&x[0], PoolSettings::default());
    max_pool2d(Number [1, 2, 6, 6]) |o, x| o.max_pool2d(&x[0], PoolSettings::default());
    max_pool3d(Number [1, 2, 6, 6, 6]) |o, x| o.max_pool3d(&x[0], PoolSettings::default());
    max_pool1d_indices(Number [1, 2, 6]) |o, x| o.max_pool1d_indices(&x[0], PoolSettings::default());
    max_pool2d_indices(Number [1, 2, 6, 6]) |o, x| o.max_pool2d_indices(&x[0], PoolSettings::default());
    max_pool3d_indices(Number [1, 2, 6, 6, 6]) |o, x| o.max_pool3d_indices(&x[0], PoolSettings::default());
    avg_pool1d(Float [1, 2, 6]) |o, x| o.avg_pool1d(&x[0], PoolSettings::default());
    avg_pool2d(Float [1, 2, 6, 6]) |o, x| o.avg_pool2d(&x[0], PoolSettings::default());
    avg_pool3d(Float [1, 2, 6, 6, 6]) |o, x| o.avg_pool3d(&x[0], PoolSettings::default());
    global_avg_pool(Float [1, 2, 6, 6]) |o, x| o.global_avg_pool(&x[0]);
    global_max_pool(Any [1, 2, 6, 6]) |o, x| o.global_max_pool(&x[0]);
    adaptive_avg_pool2d(Float [1, 2, 6, 6]) |o, x| o.adaptive_avg_pool2d(&x[0], [2, 3]);
    matmul_integer(Byte [2, 3], Byte [3, 4], Index [1], Index [4])
        |o, x| o.matmul_integer(&x[0], &x[1], some(&x[2]), some(&x[3]));
    conv_integer1d(Byte [1, 2, 5], Byte [3, 2, 2], Index [1], Index [3])
        |o, x| o.conv_integer1d(&x[0], &x[1], some(&x[2]), some(&x[3]), ConvSettings::default());
    conv_integer2d(Byte [1, 2, 5, 5], Byte [3, 2, 2, 2], Index [1], Index [3])
        |o, x| o.conv_integer2d(&x[0], &x[1], some(&x[2]), some(&x[3]), ConvSettings::default());
    conv_integer3d(Byte [1, 2, 5, 5, 5], Byte [3, 2, 2, 2, 2], Index [1], Index [3])
        |o, x| o.conv_integer3d(&x[0], &x[1], some(&x[2]), some(&x[3]), ConvSettings::default());
    resize(Float [2, 6]) |o, x| o.resize(&x[0], &[1], ResizeTo::Sizes(&[9]), ResizeSettings::default());
    resize2d_bilinear(Float [1, 2, 6, 6]) |o, x| o.resize2d_bilinear(&x[0], [3, 9]);
    resize2d_nearest(Any [1, 2, 6, 6]) |o, x| o.resize2d_nearest(&x[0], [3, 9]);
    grid_sample(Float [1, 2, 4, 4], Float [1, 3, 2]) |o, x| o.grid_sample(&x[0], &x[1], SampleSettings::default());
    affine_grid(Float [1, 2, 3]) |o, x| o.affine_grid(&x[0], &[3, 4], false);
    roi_align(Float [1, 2, 4, 4], Float [3, 4], Index [3])
        |o, x| o.roi_align(&x[0], &x[1], &x[2], RoiAlignSettings::default());
    max_roi_pool(Float [1, 2, 4, 4], Float [3, 5]) |o, x| o.max_roi_pool(&x[0], &x[1], [2, 2], 1.0);
    deform_conv2d(Float [1, 2, 4, 4], Float [3, 2, 2, 2], Float [1, 8, 3, 3], Float [3], Float [1, 4, 3, 3])
        |o, x| o.deform_conv2d(&x[0], &x[1], &x[2], some(&x[3]), some(&x[4]), ConvSettings::default());
    pad(Any [2, 3]) |o, x| o.pad(&x[0], &[(1, 1), (0, 2)], PadMode::Edge);
    reshape(Any [2, 3]) |o, x| o.reshape(&x[0], &[3, -1]);
    flatten(Any [2, 3]) |o, x| o.flatten(&x[0], 0, 1);
    transpose(Any [2, 3]) |o, x| o.transpose(&x[0]);
    permute(Any [2, 3]) |o, x| o.permute(&x[0], &[1, 0]);
    squeeze(Any [2, 1]) |o, x| o.squeeze(&x[0], 1);
    unsqueeze(Any [2, 3]) |o, x| o.unsqueeze(&x[0], &[1]);
    broadcast_to(Any [2, 1]) |o, x| o.broadcast_to(&x[0], [2, 3]);
    slice(Any [2, 3]) |o, x| o.slice(&x[0], 1, 0, 2);
    slice_step(Any [2, 3]) |o, x| o.slice_step(&x[0], 1, 0, 3, 2);
    split(Any [2, 3]) |o, x| o.split(&x[0], 1, &[1, 2]);
    concat(Any [2, 3], Any [1, 3]) |o, x| o.concat(x, 0);
    stack(Any [2, 3], Any [2, 3]) |o, x| o.stack(x, 0);
    tile(Any [2, 3]) |o, x| o.tile(&x[0], &[2, 2]);
    repeat(Any [2, 3]) |o, x| o.repeat(&x[0], 1, 2);
    flip(Any [2, 3]) |o, x| o.flip(&x[0], 1);
    copy(Any [2, 3]) |o, x| o.copy(&x[0]);
    depth_to_space(Any [1, 4, 2, 2]) |o, x| o.depth_to_space(&x[0], 2, DepthOrder::default());
    space_to_depth(Any [1, 1, 4, 4]) |o, x| o.space_to_depth(&x[0], 2);
    gather(Any [2, 3], Index [5]) |o, x| o.gather(&x[0], &x[1], 1);
    embedding(Any [5, 3], Index [2, 2]) |o, x| o.embedding(&x[0], &x[1]);
    gather_elements(Any [2, 3], Index [2, 5]) |o, x| o.gather_elements(&x[0], &x[1], 1);
    gather_nd(Any [2, 3], Index [4, 1]) |o, x| o.gather_nd(&x[0], &x[1], 0);
    scatter_elements(Any [2, 3], Index [2, 2], Any [2, 2])
        |o, x| o.scatter_elements(&x[0], &x[1], &x[2], 1, ScatterMode::Replace);
    scatter_nd(Any [2, 3], Index [4, 1], Any [4, 3]) |o, x| o.scatter_nd(&x[0], &x[1], &x[2], ScatterMode::Replace);
    full() |o, x| o.full([2], 1.0, DType::F32);
    arange() |o, x| o.arange(0.0, 1.0, 3, DType::F32);
    eye() |o, x| o.eye(2, 2, 0, DType::F32);
    tril(Any [2, 3]) |o, x| o.tril(&x[0], 0);
    triu(Any [2, 3]) |o, x| o.triu(&x[0], 0);
    one_hot(Index [4]) |o, x| o.one_hot(&x[0], 3, DType::F32);
    attention(Float [1, 2, 3, 4], Float [1, 2, 5, 4], Float [1, 2, 5, 4], Float [3, 5])
        |o, x| o.attention(&x[0], &x[1], &x[2], AttentionSettings { mask: some(&x[3]), ..Default::default() });
    rope(Float [3, 4]) |o, x| o.rope(&x[0], RopeSettings::default());
    rope_with(Float [3, 4], Float [3, 2], Float [3, 2]) |o, x| o.rope_with(&x[0], &x[1], &x[2], RopeLayout::Half);
    lstm(Float [3, 2, 5], Float [8, 5], Float [8, 2], Float [8], Float [2, 2], Float [2, 2])
        |o, x| o.lstm(&x[0], &x[1], &x[2], some(&x[3]), some(&x[4]), some(&x[5]));
    lstm_reverse(Float [3, 2, 5], Float [8, 5], Float [8, 2], Float [16], Float [2, 2], Float [2, 2])
        |o, x| o.lstm_reverse(&x[0], &x[1], &x[2], some(&x[3]), some(&x[4]), some(&x[5]));
    lstm_with(Float [3, 2, 5], Float [8, 5], Float [8, 2], Float [6], Index [2])
        |o, x| o.lstm_with(&x[0], &x[1], &x[2], LstmSettings { peepholes: some(&x[3]), lengths: some(&x[4]), ..Default::default() });
    gru(Float [3, 2, 5], Float [6, 5], Float [6, 2], Float [12], Float [2, 2])
        |o, x| o.gru(&x[0], &x[1], &x[2], GruSettings { bias: some(&x[3]), h: some(&x[4]), ..Default::default() });
    rnn(Float [3, 2, 5], Float [2, 5], Float [2, 2], Float [2], Float [2, 2])
        |o, x| o.rnn(&x[0], &x[1], &x[2], RnnSettings { bias: some(&x[3]), h: some(&x[4]), ..Default::default() });
    rfft(Float [2, 6]) |o, x| o.rfft(&x[0], None, LAST);
    irfft(Float [2, 4, 2]) |o, x| o.irfft(&x[0], None, LAST);
    fft(Float [2, 6, 2]) |o, x| o.fft(&x[0], None, LAST);
    ifft(Float [2, 6, 2]) |o, x| o.ifft(&x[0], None, LAST);
    window() |o, x| o.window(FrameWindow::Hann, 8, true);
    stft(Float [2, 100], Float [12])
        |o, x| o.stft(&x[0], StftSettings { frame: 16, hop: 4, custom_window: some(&x[1]), ..Default::default() });
    spectrogram(Float [2, 100], Float [16])
        |o, x| o.spectrogram(&x[0], StftSettings { frame: 16, hop: 4, custom_window: some(&x[1]), ..Default::default() });
    istft(Float [2, 5, 9, 2], Float [16])
        |o, x| o.istft(&x[0], StftSettings { frame: 16, hop: 4, custom_window: some(&x[1]), ..Default::default() }, None);
    mel_filterbank() |o, x| o.mel_filterbank(512, MelSettings::default());
    power_to_db(Float [2, 3]) |o, x| o.power_to_db(&x[0], DbSettings::default());
    log_mel(Float [2, 800]) |o, x| o.log_mel(&x[0], LogMelSettings::speech());
    mfcc(Float [2, 800]) |o, x| o.mfcc(&x[0], 13, LogMelSettings::speech());
    dct(Float [2, 6]) |o, x| o.dct(&x[0], DctKind::Two, true, LAST);
    resample(Float [2, 30]) |o, x| o.resample(&x[0], 3, 2, LAST);
    quantize(Float [2, 32]) |o, x| o.quantize(&x[0], DType::Q8_0);
    dequantize(Quantized [2, 32]) |o, x| o.dequantize(&x[0]);
    quantize_i8(Float [2, 3]) |o, x| o.quantize_i8(&x[0]);
    quantize_i8_channels(Float [2, 3]) |o, x| o.quantize_i8_channels(&x[0], 0);
    dequantize_i8(Byte [2, 3], Float [2, 1]) |o, x| o.dequantize_i8(&x[0], &x[1]);
    linear_i8(Float [2, 3], Byte [4, 3], Float [4, 1], Float [4])
        |o, x| o.linear_i8(&x[0], &x[1], &x[2], some(&x[3]));
    read(Any [2, 3]) |o, x| o.read(&x[0]);
};

/// Effects on tensors, each tested separately.
pub const EFFECTS: [&str; 5] = ["store", "append", "write", "write_data", "notify"];
