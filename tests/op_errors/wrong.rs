//! Invalid shapes, axes and settings.

use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy_tensor_compute::error::TensorError;
use bevy_tensor_compute::prelude::*;

use super::{goes_on, named};
use crate::common::{BACKENDS, Rig};

type Run = for<'a> fn(&'a TensorCommands, &[TensorOperand<'a>]) -> OpResult<()>;

/// The op, the error variant, the operands (`true` for indices), and the call.
struct Wrong {
    op: &'static str,
    variant: &'static str,
    operands: &'static [(&'static [usize], bool)],
    run: Run,
}

macro_rules! wrong {
    ($($op:ident $variant:ident ( $($shape:expr),* ) $([ $($index:expr),* ])? |$o:ident, $x:ident| $call:expr;)*) => {
        &[$(Wrong {
            op: stringify!($op),
            variant: stringify!($variant),
            operands: &[$((&$shape, false),)* $($((&$index, true),)*)?],
            run: |$o, $x| { let _ = $x; $call.map(drop) },
        }),*]
    };
}

fn some<'a>(x: &TensorOperand<'a>) -> Option<TensorOperand<'a>> {
    Some(x.clone())
}

const WRONG: &[Wrong] = wrong! {
    add Shape([3, 4], [2, 4]) |o, x| o.add(&x[0], &x[1]);
    sub Shape([3], [2]) |o, x| o.sub(&x[0], &x[1]);
    mul Shape([3, 4], [3]) |o, x| o.mul(&x[0], &x[1]);
    div Shape([0], [2]) |o, x| o.div(&x[0], &x[1]);
    pow Shape([3, 2, 4], [3, 4]) |o, x| o.pow(&x[0], &x[1]);
    min Shape([3], [2]) |o, x| o.min(&x[0], &x[1]);
    max Shape([3], [2]) |o, x| o.max(&x[0], &x[1]);
    modulo Shape([3], [2]) |o, x| o.modulo(&x[0], &x[1]);
    rem Shape([3], [2]) |o, x| o.rem(&x[0], &x[1]);
    equal Shape([3], [2]) |o, x| o.equal(&x[0], &x[1]);
    not_equal Shape([3], [2]) |o, x| o.not_equal(&x[0], &x[1]);
    less Shape([3], [2]) |o, x| o.less(&x[0], &x[1]);
    less_equal Shape([3], [2]) |o, x| o.less_equal(&x[0], &x[1]);
    greater Shape([3], [2]) |o, x| o.greater(&x[0], &x[1]);
    greater_equal Shape([3], [2]) |o, x| o.greater_equal(&x[0], &x[1]);
    matmul Shape([2, 3], [2, 3]) |o, x| o.matmul(&x[0], &x[1]);
    matmul Shape([2, 2, 3], [3, 3, 4]) |o, x| o.matmul(&x[0], &x[1]);
    matmul Shape([], [3, 4]) |o, x| o.matmul(&x[0], &x[1]);
    matmul_nt Shape([2, 3], [3, 4]) |o, x| o.matmul_nt(&x[0], &x[1]);
    matmul_tn Shape([2, 3], [3, 4]) |o, x| o.matmul_tn(&x[0], &x[1]);
    matmul_tt Shape([2, 3], [3, 4]) |o, x| o.matmul_tt(&x[0], &x[1]);
    linear Shape([2, 3], [4, 5]) |o, x| o.linear(&x[0], &x[1], None);
    linear Shape([2, 3], [4, 3], [3]) |o, x| o.linear(&x[0], &x[1], some(&x[2]));
    dot Shape([2, 3], [4]) |o, x| o.dot(&x[0], &x[1]);
    dot Axis([], []) |o, x| o.dot(&x[0], &x[1]);
    cosine_similarity Shape([2, 3], [4]) |o, x| o.cosine_similarity(&x[0], &x[1], -1, 1e-8);
    cosine_similarity Axis([2, 3], [3]) |o, x| o.cosine_similarity(&x[0], &x[1], 2, 1e-8);
    l2_distance Shape([2, 3], [4]) |o, x| o.l2_distance(&x[0], &x[1], -1);
    l2_distance Axis([2, 3], [3]) |o, x| o.l2_distance(&x[0], &x[1], -3);
    pairwise_cosine Shape([2, 3], [2, 4]) |o, x| o.pairwise_cosine(&x[0], &x[1]);
    pairwise_l2 Shape([2, 3], [2, 4]) |o, x| o.pairwise_l2(&x[0], &x[1]);
    pairwise_l2 Shape([3], [2, 3]) |o, x| o.pairwise_l2(&x[0], &x[1]);
    sum Axis([2, 3]) |o, x| o.sum(&x[0], 2);
    sum Axis([2, 3]) |o, x| o.sum(&x[0], [0, -2]);
    mean Axis([2, 3]) |o, x| o.mean(&x[0], -3);
    max_of Axis([2, 3]) |o, x| o.max_of(&x[0], 2);
    min_of Axis([2, 3]) |o, x| o.min_of(&x[0], 2);
    prod Axis([2, 3]) |o, x| o.prod(&x[0], 2);
    sum_squares Axis([2, 3]) |o, x| o.sum_squares(&x[0], 2);
    l1_norm Axis([2, 3]) |o, x| o.l1_norm(&x[0], 2);
    l2_norm Axis([2, 3]) |o, x| o.l2_norm(&x[0], 2);
    log_sum_exp Axis([2, 3]) |o, x| o.log_sum_exp(&x[0], 2);
    var Axis([2, 3]) |o, x| o.var(&x[0], 2, 0);
    std Axis([2, 3]) |o, x| o.std(&x[0], 2, 0);
    argmax Axis([2, 3]) |o, x| o.argmax(&x[0], 2);
    argmax Shape([2, 0]) |o, x| o.argmax(&x[0], 1);
    argmax Shape([2, 3, 4]) |o, x| o.argmax(&x[0], [0, 1]);
    argmax Shape([2, 0]) |o, x| o.argmax(&x[0], Axes::ALL);
    argmin Axis([]) |o, x| o.argmin(&x[0], 0);
    argmax_last Axis([2, 3]) |o, x| o.argmax_last(&x[0], 2);
    argmin_last Axis([2, 3]) |o, x| o.argmin_last(&x[0], 2);
    cumsum Axis([2, 3]) |o, x| o.cumsum(&x[0], 2);
    cumsum_with Axis([2, 3]) |o, x| o.cumsum_with(&x[0], 2, CumsumSettings::default());
    bottom_k Axis([2, 3]) |o, x| o.bottom_k(&x[0], 1, 2);
    bottom_k Shape([2, 3]) |o, x| o.bottom_k(&x[0], 4, 1);
    top_k Axis([2, 3]) |o, x| o.top_k(&x[0], 1, 2);
    top_k Shape([2, 3]) |o, x| o.top_k(&x[0], 4, 1);
    softmax Axis([2, 3]) |o, x| o.softmax(&x[0], 2);
    log_softmax Axis([2, 3]) |o, x| o.log_softmax(&x[0], -3);
    layer_norm Axis([2, 3]) |o, x| o.layer_norm(&x[0], None, None, 2, 1e-5);
    layer_norm Shape([2, 3], [2]) |o, x| o.layer_norm(&x[0], some(&x[1]), None, -1, 1e-5);
    rms_norm Shape([2, 3], [4]) |o, x| o.rms_norm(&x[0], some(&x[1]), -1, 1e-5);
    l2_normalize Axis([2, 3]) |o, x| o.l2_normalize(&x[0], 2);
    lp_normalize Axis([2, 3]) |o, x| o.lp_normalize(&x[0], 2, 2);
    lp_normalize Argument([2, 3]) |o, x| o.lp_normalize(&x[0], 1, 3);
    batch_norm Shape([2, 3], [2], [2]) |o, x| o.batch_norm(&x[0], &x[1], &x[2], None, None, 1e-5);
    batch_norm Shape([3], [3], [3]) |o, x| o.batch_norm(&x[0], &x[1], &x[2], None, None, 1e-5);
    group_norm Shape([2, 3, 4]) |o, x| o.group_norm(&x[0], 2, None, None, 1e-5);
    group_norm Shape([2, 3, 4]) |o, x| o.group_norm(&x[0], 0, None, None, 1e-5);
    instance_norm Shape([2, 3, 4], [4]) |o, x| o.instance_norm(&x[0], some(&x[1]), None, 1e-5);
    conv1d Shape([1, 2, 5], [3, 1, 2]) |o, x| o.conv1d(&x[0], &x[1], None, ConvSettings::default());
    conv2d Shape([1, 2, 5], [3, 2, 2, 2]) |o, x| o.conv2d(&x[0], &x[1], None, ConvSettings::default());
    conv2d Shape([1, 2, 2, 2], [3, 2, 3, 3]) |o, x| o.conv2d(&x[0], &x[1], None, ConvSettings::default());
    conv2d Shape([1, 2, 5, 5], [3, 2, 2, 2], [2]) |o, x| o.conv2d(&x[0], &x[1], some(&x[2]), ConvSettings::default());
    conv2d Argument([1, 2, 5, 5], [3, 2, 2, 2])
        |o, x| o.conv2d(&x[0], &x[1], None, ConvSettings { stride: [0, 1], ..Default::default() });
    conv2d Argument([1, 2, 5, 5], [3, 2, 2, 2])
        |o, x| o.conv2d(&x[0], &x[1], None, ConvSettings { groups: 0, ..Default::default() });
    conv3d Shape([1, 2, 5, 5, 5], [3, 2, 2, 2]) |o, x| o.conv3d(&x[0], &x[1], None, ConvSettings::default());
    conv_transpose1d Shape([1, 2, 5], [3, 2, 2]) |o, x| o.conv_transpose1d(&x[0], &x[1], None, ConvTransposeSettings::default());
    conv_transpose2d Shape([1, 2, 5, 5], [3, 2, 2, 2])
        |o, x| o.conv_transpose2d(&x[0], &x[1], None, ConvTransposeSettings::default());
    conv_transpose3d Shape([1, 2, 5, 5], [2, 2, 2, 2, 2])
        |o, x| o.conv_transpose3d(&x[0], &x[1], None, ConvTransposeSettings::default());
    max_pool1d Shape([2, 6]) |o, x| o.max_pool1d(&x[0], PoolSettings::default());
    max_pool2d Shape([1, 2, 1, 6]) |o, x| o.max_pool2d(&x[0], PoolSettings::default());
    max_pool2d Argument([1, 2, 6, 6]) |o, x| o.max_pool2d(&x[0], PoolSettings { size: [0, 2], ..Default::default() });
    max_pool3d Shape([1, 2, 6, 6]) |o, x| o.max_pool3d(&x[0], PoolSettings::default());
    max_pool1d_indices Shape([2, 6]) |o, x| o.max_pool1d_indices(&x[0], PoolSettings::default());
    max_pool2d_indices Shape([2, 6]) |o, x| o.max_pool2d_indices(&x[0], PoolSettings::default());
    max_pool3d_indices Shape([2, 6]) |o, x| o.max_pool3d_indices(&x[0], PoolSettings::default());
    avg_pool1d Shape([2, 6]) |o, x| o.avg_pool1d(&x[0], PoolSettings::default());
    avg_pool2d Shape([1, 2, 6]) |o, x| o.avg_pool2d(&x[0], PoolSettings::default());
    avg_pool3d Shape([1, 2, 6, 6]) |o, x| o.avg_pool3d(&x[0], PoolSettings::default());
    global_avg_pool Shape([2]) |o, x| o.global_avg_pool(&x[0]);
    global_max_pool Shape([2]) |o, x| o.global_max_pool(&x[0]);
    adaptive_avg_pool2d Shape([2, 6, 6]) |o, x| o.adaptive_avg_pool2d(&x[0], [2, 2]);
    resize Axis([2, 6]) |o, x| o.resize(&x[0], &[2], ResizeTo::Sizes(&[9]), ResizeSettings::default());
    resize Argument([2, 6]) |o, x| o.resize(&x[0], &[1], ResizeTo::Sizes(&[9, 9]), ResizeSettings::default());
    resize2d_bilinear Shape([6, 6]) |o, x| o.resize2d_bilinear(&x[0], [3, 9]);
    resize2d_bilinear Shape([1, 2, 3, 6, 6]) |o, x| o.resize2d_bilinear(&x[0], [3, 9]);
    resize2d_nearest Shape([6, 6]) |o, x| o.resize2d_nearest(&x[0], [3, 9]);
    pad Shape([2, 3]) |o, x| o.pad(&x[0], &[(1, 1)], PadMode::Edge);
    pad Shape([2, 3]) |o, x| o.pad(&x[0], &[(-2, -1), (0, 0)], PadMode::Edge);
    reshape Shape([2, 3]) |o, x| o.reshape(&x[0], &[4, -1]);
    reshape Shape([2, 3]) |o, x| o.reshape(&x[0], &[7]);
    reshape Shape([2, 3]) |o, x| o.reshape(&x[0], &[-1, -1]);
    flatten Axis([2, 3]) |o, x| o.flatten(&x[0], 0, 2);
    transpose Axis([3]) |o, x| o.transpose(&x[0]);
    permute Shape([2, 3]) |o, x| o.permute(&x[0], &[0, 2]);
    squeeze Shape([2, 3]) |o, x| o.squeeze(&x[0], 1);
    squeeze Axis([2, 3]) |o, x| o.squeeze(&x[0], 2);
    unsqueeze Axis([2, 3]) |o, x| o.unsqueeze(&x[0], &[4]);
    broadcast_to Shape([2, 3]) |o, x| o.broadcast_to(&x[0], [2, 4]);
    slice Axis([2, 3]) |o, x| o.slice(&x[0], 2, 0, 1);
    slice_step Axis([2, 3]) |o, x| o.slice_step(&x[0], -3, 0, 1, 1);
    slice_step Argument([2, 3]) |o, x| o.slice_step(&x[0], 0, 0, 1, 0);
    split Axis([2, 3]) |o, x| o.split(&x[0], 2, &[3]);
    split Shape([2, 3]) |o, x| o.split(&x[0], 1, &[1, 1]);
    concat Shape([2, 3], [2, 4]) |o, x| o.concat(x, 0);
    concat Axis([2, 3], [2, 3]) |o, x| o.concat(x, 2);
    concat Argument() |o, x| o.concat(x, 0);
    stack Shape([2, 3], [2, 4]) |o, x| o.stack(x, 0);
    stack Axis([2, 3], [2, 3]) |o, x| o.stack(x, 3);
    stack Argument() |o, x| o.stack(x, 0);
    repeat Axis([2, 3]) |o, x| o.repeat(&x[0], 2, 2);
    flip Axis([2, 3]) |o, x| o.flip(&x[0], [0, 0]);
    depth_to_space Shape([1, 3, 2, 2]) |o, x| o.depth_to_space(&x[0], 2, DepthOrder::default());
    space_to_depth Shape([1, 1, 3, 4]) |o, x| o.space_to_depth(&x[0], 2);
    space_to_depth Shape([1, 4]) |o, x| o.space_to_depth(&x[0], 2);
    gather Axis([2, 3])[[5]] |o, x| o.gather(&x[0], &x[1], 2);
    gather Shape([2, 0])[[5]] |o, x| o.gather(&x[0], &x[1], 1);
    embedding Shape([2, 3, 4])[[5]] |o, x| o.embedding(&x[0], &x[1]);
    gather_elements Shape([2, 3])[[5]] |o, x| o.gather_elements(&x[0], &x[1], 1);
    gather_elements Shape([2, 3])[[3, 3]] |o, x| o.gather_elements(&x[0], &x[1], 1);
    gather_elements Axis([2, 3])[[2, 3]] |o, x| o.gather_elements(&x[0], &x[1], 2);
    gather_nd Shape([2, 3])[[4, 3]] |o, x| o.gather_nd(&x[0], &x[1], 0);
    gather_nd Shape([2, 3])[[3, 1]] |o, x| o.gather_nd(&x[0], &x[1], 1);
    scatter_elements Shape([2, 3], [2, 3])[[2, 2]]
        |o, x| o.scatter_elements(&x[0], &x[2], &x[1], 1, ScatterMode::Add);
    scatter_nd Shape([2, 3], [4, 2])[[4, 1]] |o, x| o.scatter_nd(&x[0], &x[2], &x[1], ScatterMode::Add);
    arange Argument() |o, x| o.arange(0.0, 1.0, 3, DType::Bool);
    tril Shape([3]) |o, x| o.tril(&x[0], 0);
    triu Shape([3]) |o, x| o.triu(&x[0], 0);
    attention Shape([1, 2, 3], [1, 2, 3], [1, 2, 3]) |o, x| o.attention(&x[0], &x[1], &x[2], AttentionSettings::default());
    attention Shape([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4])
        |o, x| o.attention(&x[0], &x[1], &x[2], AttentionSettings::default());
    attention Shape([1, 3, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4])
        |o, x| o.attention(&x[0], &x[1], &x[2], AttentionSettings::default());
    attention Argument([1, 1, 1, 300], [1, 1, 1, 300], [1, 1, 1, 4])
        |o, x| o.attention(&x[0], &x[1], &x[2], AttentionSettings::default());
    attention Argument([1, 1, 3, 4], [1, 1, 3, 4], [1, 1, 3, 4])
        |o, x| o.attention(&x[0], &x[1], &x[2], AttentionSettings { valid_keys: Some(4), ..Default::default() });
    attention Shape([1, 1, 3, 4], [1, 1, 3, 4], [1, 1, 3, 4], [2, 3])
        |o, x| o.attention(&x[0], &x[1], &x[2], AttentionSettings { mask: some(&x[3]), ..Default::default() });
    attention Type([1, 1, 3, 4], [1, 1, 3, 4], [1, 1, 3, 4])[[3, 3]]
        |o, x| o.attention(&x[0], &x[1], &x[2], AttentionSettings { mask: some(&x[3]), ..Default::default() });
    lstm Shape([3, 5], [8, 5], [8, 2]) |o, x| o.lstm(&x[0], &x[1], &x[2], None, None, None);
    lstm Shape([3, 2, 5], [8, 4], [8, 2]) |o, x| o.lstm(&x[0], &x[1], &x[2], None, None, None);
    lstm Shape([3, 2, 5], [6, 5], [6, 2]) |o, x| o.lstm(&x[0], &x[1], &x[2], None, None, None);
    lstm Shape([3, 2, 5], [8, 5], [8, 2], [4]) |o, x| o.lstm(&x[0], &x[1], &x[2], some(&x[3]), None, None);
    lstm Shape([3, 2, 5], [8, 5], [8, 2], [3, 2]) |o, x| o.lstm(&x[0], &x[1], &x[2], None, some(&x[3]), None);
    lstm_reverse Shape([3, 2, 5], [8, 5], [8, 2], [2, 3]) |o, x| o.lstm_reverse(&x[0], &x[1], &x[2], None, None, some(&x[3]));
    lstm_with Shape([3, 2, 5], [8, 5], [8, 2], [4])
        |o, x| o.lstm_with(&x[0], &x[1], &x[2], LstmSettings { peepholes: some(&x[3]), ..default() });
    lstm_with Type([3, 2, 5], [8, 5], [8, 2], [2])
        |o, x| o.lstm_with(&x[0], &x[1], &x[2], LstmSettings { lengths: some(&x[3]), ..default() });
    gru Shape([3, 2, 5], [8, 5], [8, 2]) |o, x| o.gru(&x[0], &x[1], &x[2], GruSettings::default());
    gru Shape([3, 2, 5], [6, 5], [6, 2], [5])
        |o, x| o.gru(&x[0], &x[1], &x[2], GruSettings { bias: some(&x[3]), ..default() });
    gru Argument([3, 2, 5], [6, 5], [6, 2])
        |o, x| o.gru(&x[0], &x[1], &x[2], GruSettings { clip: Some(f32::NAN), ..default() });
    rnn Shape([3, 2, 5], [2, 4], [2, 2]) |o, x| o.rnn(&x[0], &x[1], &x[2], RnnSettings::default());
    grid_sample Shape([1, 2, 4, 4], [1, 3, 3]) |o, x| o.grid_sample(&x[0], &x[1], SampleSettings::default());
    grid_sample Shape([1, 2, 4, 4], [2, 3, 2]) |o, x| o.grid_sample(&x[0], &x[1], SampleSettings::default());
    grid_sample Shape([1, 2, 0, 4], [1, 3, 2]) |o, x| o.grid_sample(&x[0], &x[1], SampleSettings::default());
    affine_grid Shape([1, 2, 3]) |o, x| o.affine_grid(&x[0], &[3, 4, 5], false);
    max_roi_pool Shape([1, 2, 4, 4], [3, 4]) |o, x| o.max_roi_pool(&x[0], &x[1], [2, 2], 1.0);
    max_roi_pool Argument([1, 2, 4, 4], [3, 5]) |o, x| o.max_roi_pool(&x[0], &x[1], [0, 2], 1.0);
    deform_conv2d Shape([1, 2, 4, 4], [3, 2, 2, 2], [1, 8, 4, 4])
        |o, x| o.deform_conv2d(&x[0], &x[1], &x[2], None, None, ConvSettings::default());
    deform_conv2d Shape([1, 2, 4, 4], [3, 2, 2, 2], [1, 7, 3, 3])
        |o, x| o.deform_conv2d(&x[0], &x[1], &x[2], None, None, ConvSettings::default());
    deform_conv2d Argument([1, 2, 4, 4], [3, 2, 2, 2], [1, 8, 3, 3])
        |o, x| o.deform_conv2d(&x[0], &x[1], &x[2], None, None, ConvSettings { stride: [0, 1], ..default() });
    rope Shape([4]) |o, x| o.rope(&x[0], RopeSettings::default());
    rope Shape([3, 4]) |o, x| o.rope(&x[0], RopeSettings { rotary: Some(3), ..default() });
    rope_with Shape([3, 4], [3, 3], [3, 3]) |o, x| o.rope_with(&x[0], &x[1], &x[2], RopeLayout::Half);
    full Argument() |o, x| o.full([1 << 20, 1 << 20], 0.0, DType::F32);
    eye Argument() |o, x| o.eye(1 << 20, 1 << 20, 0, DType::F32);
    tile Argument([2, 3]) |o, x| o.tile(&x[0], &[1 << 20, 1 << 20]);
    broadcast_to Argument([1, 1]) |o, x| o.broadcast_to(&x[0], [usize::MAX, usize::MAX]);
};

fn variant(error: &OpError) -> &'static str {
    match error {
        OpError::Shape { .. } => "Shape",
        OpError::Type { .. } => "Type",
        OpError::Axis { .. } => "Axis",
        OpError::Argument { .. } => "Argument",
        OpError::Data { .. } => "Data",
        OpError::ReadOnlyView { .. } => "ReadOnlyView",
        _ => "another",
    }
}

#[test]
fn shape_and_argument_errors_name_the_operands() {
    let mut failures = Vec::new();
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for row in WRONG {
            let operands: Vec<TensorOperand> = row
                .operands
                .iter()
                .enumerate()
                .map(|(i, &(shape, index))| {
                    let dtype = if index { DType::I32 } else { DType::F32 };
                    named(&mut rig, format!("operand {i}"), shape, dtype).into()
                })
                .collect();
            rig.with_ops(|ops| {
                let error = match (row.run)(ops, &operands) {
                    Err(error) => error,
                    Ok(()) => return failures.push(format!("{} {:?}: no error", row.op, row.operands)),
                };
                let text = error.to_string();
                // An invalid argument does not depend on the operands, so the message need not name one.
                let named = matches!(row.variant, "Argument" | "Type")
                    || row
                        .operands
                        .iter()
                        .enumerate()
                        .any(|(i, (shape, _))| text.contains(&format!("\"operand {i}\" is {:?}", shape)))
                    || text.contains("the value of");
                if variant(&error) != row.variant || !text.starts_with(&format!("{}: ", row.op)) || !named {
                    failures.push(format!("{} {:?} should be {}: {text}", row.op, row.operands, row.variant));
                }
            });
        }
        goes_on(&mut rig);
        assert_eq!(rig.faults(), []);
    }
    assert!(failures.is_empty(), "{} wrong:\n  {}", failures.len(), failures.join("\n  "));
}

#[test]
fn an_operand_of_two_names_both() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (a, b) = (named(&mut rig, "images", &[3, 4], DType::F32), named(&mut rig, "captions", &[2, 4], DType::F32));
        let error = rig.compute(move |ops| ops.add(a, b)).expect_err("they do not broadcast");
        assert_eq!(
            error.to_string(),
            "add: \"images\" is [3, 4] but \"captions\" is [2, 4]; the shapes do not broadcast"
        );
        goes_on(&mut rig);
    }
}

#[test]
fn effects_name_the_tensor_they_cannot_write() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let value = named(&mut rig, "value", &[2, 3], DType::F32);
        let whole = named(&mut rig, "whole", &[2, 3], DType::I32);
        let small = named(&mut rig, "small", &[2, 2], DType::F32);
        let cache = named(&mut rig, "cache", &[4, 3], DType::F32);
        let gone = named(&mut rig, "gone", &[1], DType::F32);
        rig.app.world_mut().despawn(gone);
        let narrow = Tensor::zeros([1, 3], DType::F32).expect("small").broadcast_to([2, 3]).expect("a view");
        let stretched = rig.app.world_mut().spawn((Name::new("stretched"), narrow)).id();
        let data = TensorData::new(&[0.0f32; 6], [3, 2]).expect("six");
        rig.with_ops(|ops| {
            let fails = |result: OpResult<()>, kind: &str, text: &str| {
                let error = result.expect_err(text);
                assert_eq!(variant(&error), kind, "{error}");
                assert!(error.to_string().contains(text), "{error}");
            };
            fails(ops.store(value, small), "Shape", "store: \"value\" is [2, 3] but \"small\" is [2, 2]");
            fails(ops.store(value, whole), "Type", "store: \"value\" is f32 but \"whole\" is i32");
            fails(ops.store(value, stretched), "ReadOnlyView", "store: \"stretched\" is [2, 3]");
            fails(ops.append(cache, value, 2, 0), "Axis", "append: \"cache\" is [4, 3]; axis 2");
            fails(ops.append(cache, value, 0, 3), "Shape", "append: \"value\" is [2, 3] but \"cache\" is [4, 3]");
            fails(ops.append(cache, value, 0, usize::MAX), "Shape", "append");
            fails(ops.append(cache, small, 0, 0), "Shape", "append: \"small\" is [2, 2]");
            fails(ops.append(cache, whole, 0, 0), "Type", "append: \"whole\" is i32 but \"cache\" is f32");
            fails(ops.append(stretched, value, 0, 0), "ReadOnlyView", "append: \"stretched\"");
            fails(ops.write(value, &[1.0f32; 5]), "Data", "write: \"value\" is [2, 3] of type f32; 5 values");
            fails(ops.write(value, &[1i32; 6]), "Data", "write: \"value\" is [2, 3] of type f32; the values are i32");
            fails(ops.write(stretched, &[1.0f32; 6]), "ReadOnlyView", "write: \"stretched\"");
            fails(
                ops.write_data(value, &data),
                "Data",
                "write_data: \"value\" is [2, 3] of type f32; the values are [3, 2]",
            );
            fails(ops.write_data(whole, &data), "Data", "write_data: \"whole\"");
            let missing = |op| OpError::MissingTensor { op, entity: gone };
            assert_eq!(ops.store(1.0, gone), Err(missing("store")));
            assert_eq!(ops.store(gone, value), Err(missing("store")));
            assert_eq!(ops.append(gone, value, 0, 0), Err(missing("append")));
            assert_eq!(ops.write(gone, &[1.0f32]), Err(missing("write")));
            assert_eq!(ops.write_data(gone, &data), Err(missing("write_data")));
            assert_eq!(ops.notify(gone), Err(missing("notify")));
        });
        let world = rig.app.world_mut();
        let mut state = SystemState::<(TensorCommands, TensorCommands)>::new(world);
        let (ops, other) = state.get_mut(world).expect("the plugin is there");
        let foreign = other.add(value, 1.0).expect("a value");
        assert_eq!(ops.store(foreign, value), Err(OpError::ForeignValue { op: "store" }));
        assert_eq!(ops.append(cache, foreign, 0, 0), Err(OpError::ForeignValue { op: "append" }));
        goes_on(&mut rig);
    }
}

#[test]
fn tensors_that_cannot_be_made_say_why() {
    let shape = |sizes: &[usize]| Shape::from(sizes);
    let two_by_three = Tensor::zeros([2, 3], DType::F32).expect("small");
    let turned = two_by_three.transpose().expect("two axes");
    let huge = usize::MAX / 2;
    let cases: Vec<(Result<Tensor, TensorError>, TensorError)> = vec![
        (Tensor::from_slice(&[1.0f32; 5], [2, 3]), TensorError::Length { shape: shape(&[2, 3]), values: 5 }),
        (Tensor::from_slice(&[1.0f32; 4], [huge, 4]), TensorError::Length { shape: shape(&[huge, 4]), values: 4 }),
        (Tensor::from_rows(&[vec![1.0f32, 2.0], vec![3.0]]), TensorError::Ragged { row: 1, length: 1, expected: 2 }),
        (Tensor::zeros([huge, 4], DType::F32), TensorError::TooLarge { shape: shape(&[huge, 4]), dtype: DType::F32 }),
        (
            Tensor::ones([1 << 16, 1 << 16], DType::U8),
            TensorError::TooLarge { shape: shape(&[1 << 16, 1 << 16]), dtype: DType::U8 },
        ),
        (
            Tensor::arange(0.0, 1.0, 3, DType::Bool),
            TensorError::UnsupportedType { constructor: "arange", dtype: DType::Bool },
        ),
        (
            Tensor::random_uniform([3], 0.0, 1.0, 1, DType::I32),
            TensorError::UnsupportedType { constructor: "random_uniform", dtype: DType::I32 },
        ),
        (
            Tensor::random_normal([3], 0.0, 1.0, 1, DType::U8),
            TensorError::UnsupportedType { constructor: "random_normal", dtype: DType::U8 },
        ),
        (two_by_three.slice(2, 0, 1), TensorError::Axis { axis: 2, shape: shape(&[2, 3]) }),
        (
            two_by_three.slice_step(1, 0, 2, 0),
            TensorError::Range { start: 0, end: 2, step: 0, axis: 1, shape: shape(&[2, 3]) },
        ),
        (two_by_three.reshape([4]), TensorError::Reshape { from: shape(&[2, 3]), to: shape(&[4]) }),
        (turned.reshape([6]), TensorError::NeedsCopy { from: shape(&[3, 2]), to: shape(&[6]) }),
        (two_by_three.permute(&[0, 0]), TensorError::Permutation { order: vec![0, 0], shape: shape(&[2, 3]) }),
        (
            Tensor::zeros([3], DType::F32).and_then(|x| x.transpose()),
            TensorError::Axis { axis: -2, shape: shape(&[3]) },
        ),
        (two_by_three.broadcast_to([2, 4]), TensorError::Broadcast { from: shape(&[2, 3]), to: shape(&[2, 4]) }),
        (two_by_three.window(4, 3), TensorError::Window { offset: 4, size: 3, elements: 6 }),
        (two_by_three.window(usize::MAX, 3), TensorError::Window { offset: usize::MAX, size: 3, elements: 6 }),
    ];
    for (result, expected) in cases {
        let error = result.map(|tensor| tensor.shape().clone()).expect_err(&expected.to_string());
        assert_eq!(error, expected);
    }
    let data = TensorData::new(&[1i32, 2], [2]).expect("two");
    let held = TensorError::ElementType { held: DType::I32, asked: DType::F32 };
    assert_eq!(data.as_slice::<f32>(), Err(held));
    assert!(matches!(data.item::<i32>(), Err(TensorError::Length { values: 2, .. })));
}
