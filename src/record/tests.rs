//! The rules of the ops: shapes and types of results, texts of errors. No values: nothing runs here.

use bevy::ecs::system::SystemState;
use bevy::prelude::*;

use super::*;
use crate::error::OpResult;
use crate::ir::DType;
use crate::ir::Op;
use crate::pipelines::TensorPipelines;
use crate::readback::NotificationChannel;
use crate::support::{BackendChoice, TensorSupport};
use crate::tensor::{Tensor, TensorData, TensorNames};

/// A world with named tensors, and what an op needs.
struct Bench {
    world: World,
    state: SystemState<TensorCommands<'static, 'static>>,
}

impl Bench {
    fn new() -> Self {
        let mut world = World::new();
        world.init_resource::<TensorNames>();
        world.init_resource::<NotificationChannel>();
        world.init_resource::<TensorPipelines>();
        world.init_resource::<FrameRecordings>();
        world.init_resource::<crate::schedule::TensorBacklogs>();
        world.insert_resource(TensorSupport::decide(BackendChoice::Cpu, None));
        let state = SystemState::new(&mut world);
        Self { world, state }
    }

    fn tensor(&mut self, name: &'static str, shape: &[usize], dtype: DType) -> Entity {
        let tensor = Tensor::zeros(shape, dtype).expect("small");
        self.world.spawn((Name::new(name), tensor)).id()
    }

    fn f32(&mut self, name: &'static str, shape: &[usize]) -> Entity {
        self.tensor(name, shape, DType::F32)
    }

    fn ops(&mut self) -> TensorCommands<'_, '_> {
        self.state.get_mut(&mut self.world).expect("the resources are there")
    }
}

/// Shape and type of a result.
fn of(ops: &TensorCommands, value: OpResult<TensorValue<'_>>) -> (Vec<usize>, DType) {
    let value = value.expect("the op fits");
    (ops.shape(value).expect("recorded").to_vec(), ops.dtype(value).expect("recorded"))
}

/// Asserts the shape and, if given, the type of a result.
macro_rules! gives {
    ($ops:ident . $op:ident ( $($arg:expr),* $(,)? ) => $shape:expr) => {{
        let value = $ops.$op($($arg),*);
        let expected: Vec<usize> = Vec::from($shape);
        assert_eq!(of(&$ops, value).0, expected, stringify!($op));
    }};
    ($ops:ident . $op:ident ( $($arg:expr),* $(,)? ) => $shape:expr, $dtype:ident) => {{
        let value = $ops.$op($($arg),*);
        let expected: Vec<usize> = Vec::from($shape);
        assert_eq!(of(&$ops, value), (expected, DType::$dtype), stringify!($op));
    }};
}

/// The text of an error.
macro_rules! fails {
    ($ops:ident . $op:ident ( $($arg:expr),* $(,)? ), $text:expr) => {
        assert_eq!($ops.$op($($arg),*).expect_err("the op does not fit").to_string(), $text)
    };
}

#[test]
fn products_follow_numpy() {
    let mut bench = Bench::new();
    let images = bench.f32("images", &[8, 512]);
    let captions = bench.f32("captions", &[9, 384]);
    let vector = bench.f32("vector", &[512]);
    let a = bench.f32("a", &[2, 1, 3, 4]);
    let b = bench.f32("b", &[5, 4, 6]);
    let q = bench.tensor("q", &[3, 4], DType::I8);
    let half = bench.tensor("half", &[7, 512], DType::F16);
    let empty = bench.f32("empty", &[4, 0]);
    let ops = bench.ops();
    fails!(
        ops.matmul(images, captions),
        "matmul: \"images\" is [8, 512] but \"captions\" is [9, 384]; inner sizes 512 and 9 differ"
    );
    fails!(
        ops.matmul_nt(images, captions),
        "matmul_nt: \"images\" is [8, 512] but \"captions\" is [9, 384]; inner sizes 512 and 384 differ"
    );
    fails!(ops.matmul(images, q), "matmul: \"images\" is f32 but \"q\" is i8; these types have no product; cast one");
    gives!(ops.matmul(a, b) => [2, 5, 3, 6], F32);
    gives!(ops.matmul(images, vector) => [8]);
    gives!(ops.matmul(vector, vector) => []);
    gives!(ops.matmul_nt(vector, images) => [8]);
    gives!(ops.matmul_tn(images, images) => [512, 512]);
    gives!(ops.matmul_nt(q, q) => [3, 3], I32);
    gives!(ops.matmul_nt(half, half) => [7, 7], F16);
    gives!(ops.matmul_nt(images, half) => [8, 7], F32);
    gives!(ops.matmul_nt(empty, empty) => [4, 4]);
    let weight = bench.f32("weight", &[6, 4]);
    let bias = bench.f32("bias", &[6]);
    let ops = bench.ops();
    gives!(ops.linear(a, weight, bias) => [2, 1, 3, 6]);
    fails!(
        ops.linear(a, weight, images),
        "linear: \"weight\" is [6, 4] but \"images\" is [8, 512]; the bias must be [6]"
    );
}

#[test]
fn similarities_have_one_number_per_pair() {
    let mut bench = Bench::new();
    let a = bench.f32("a", &[8, 16]);
    let b = bench.f32("b", &[9, 16]);
    let c = bench.f32("c", &[9, 15]);
    let bytes = bench.tensor("bytes", &[8, 4], DType::I8);
    let ops = bench.ops();
    gives!(ops.pairwise_cosine(a, b) => [8, 9]);
    gives!(ops.pairwise_l2(a, b) => [8, 9]);
    fails!(ops.pairwise_l2(a, c), "pairwise_l2: \"a\" is [8, 16] but \"c\" is [9, 15]; row sizes 16 and 15 differ");
    gives!(ops.cosine_similarity(a, a, -1, 1e-8) => [8]);
    gives!(ops.l2_distance(a, a, 0) => [16]);
    gives!(ops.dot(a, a) => [8]);
    gives!(ops.dot(bytes, 2.0) => [8], I32);
}

#[test]
fn reductions_drop_or_keep_axes() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[2, 3, 4, 5]);
    let small = bench.tensor("small", &[2, 3], DType::I8);
    let truth = bench.tensor("truth", &[2, 3], DType::Bool);
    let empty = bench.f32("empty", &[2, 0]);
    let ops = bench.ops();
    gives!(ops.sum(x, [0, -1]) => [3, 4], F32);
    gives!(ops.sum(x, Axes::of([0, 2]).keep()) => [1, 3, 1, 5]);
    gives!(ops.mean(x, Axes::ALL) => []);
    gives!(ops.max_of(x, []) => [2, 3, 4, 5]);
    gives!(ops.sum(small, 1) => [2], I32);
    gives!(ops.max_of(small, 1) => [2], I8);
    gives!(ops.any(truth, LAST.keep()) => [2, 1], Bool);
    gives!(ops.prod(empty, 1) => [2]);
    gives!(ops.log_sum_exp(x, 1) => [2, 4, 5]);
    gives!(ops.std(x, Axes::of([1, 3]).keep(), 1) => [2, 1, 4, 1]);
    gives!(ops.argmax(x, 1) => [2, 4, 5], I32);
    gives!(ops.cumsum_with(small, 0, CumsumSettings { exclusive: true, reverse: true }) => [2, 3], I32);
    let (values, positions) = ops.top_k(x, 2, 1).expect("fits");
    assert_eq!(of(&ops, Ok(values)), (vec![2, 2, 4, 5], DType::F32));
    assert_eq!(of(&ops, Ok(positions)), (vec![2, 2, 4, 5], DType::I32));
    fails!(ops.top_k(x, 6, -1), "top_k: \"x\" is [2, 3, 4, 5]; axis 3 has 5 elements, not 6");
    fails!(ops.sum(x, 4), "sum: \"x\" is [2, 3, 4, 5]; axis 4 does not exist");
    fails!(ops.sum(x, [1, -3]), "sum: \"x\" is [2, 3, 4, 5]; axis -3 is named twice");
    fails!(ops.mean(small, 0), "mean: \"small\" is i8; this op is for floats; cast first");
    fails!(
        ops.argmin(empty, 1),
        "argmin: \"empty\" is [2, 0]; axis 1 is empty, so it has no largest or smallest element"
    );
}

#[test]
fn norms_keep_shapes_and_check_parameters() {
    let mut bench = Bench::new();
    let x = bench.tensor("x", &[2, 6, 4], DType::F16);
    let tail = bench.f32("tail", &[6, 4]);
    let channels = bench.f32("channels", &[6]);
    let ops = bench.ops();
    gives!(ops.softmax(x, 1) => [2, 6, 4], F16);
    gives!(ops.log_softmax(x, -1) => [2, 6, 4]);
    gives!(ops.layer_norm(x, tail, None, 1, 1e-5) => [2, 6, 4], F16);
    gives!(ops.rms_norm(x, None, LAST, 1e-5) => [2, 6, 4]);
    gives!(ops.l2_normalize(x, 1) => [2, 6, 4]);
    gives!(ops.lp_normalize(x, 0, 1) => [2, 6, 4], F16);
    gives!(ops.batch_norm(x, channels, channels, channels, None, 1e-5) => [2, 6, 4], F16);
    gives!(ops.group_norm(x, 3, None, channels, 1e-5) => [2, 6, 4], F16);
    gives!(ops.instance_norm(x, channels, None, 1e-5) => [2, 6, 4]);
    fails!(
        ops.group_norm(x, 4, None, None, 1e-5),
        "group_norm: \"x\" is [2, 6, 4]; 6 channels do not divide into 4 groups"
    );
    fails!(
        ops.layer_norm(x, channels, None, -1, 1e-5),
        "layer_norm: \"channels\" is [6]; it does not broadcast to [4]"
    );
}

#[test]
fn windows_follow_onnx() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[1, 4, 7, 5]);
    let weight = bench.f32("weight", &[6, 4, 3, 3]);
    let depthwise = bench.f32("depthwise", &[8, 1, 3, 3]);
    let line = bench.f32("line", &[2, 3, 10]);
    let line_weight = bench.f32("line_weight", &[3, 2, 4]);
    let square = bench.f32("square", &[1, 1, 4, 4]);
    let tiny = bench.f32("tiny", &[1, 1, 2, 2]);
    let ops = bench.ops();
    let explicit = Padding::Explicit([[1, 1], [1, 1]]);
    gives!(ops.conv2d(x, weight, None, ConvSettings::default()) => [1, 6, 5, 3]);
    gives!(ops.conv2d(x, weight, None, ConvSettings { padding: explicit, stride: [2, 2], ..default() }) => [1, 6, 4, 3]);
    gives!(ops.conv2d(x, weight, None, ConvSettings { padding: Padding::Same, stride: [2, 2], ..default() }) => [1, 6, 4, 3]);
    gives!(ops.conv2d(x, depthwise, None, ConvSettings { groups: 4, ..default() }) => [1, 8, 5, 3]);
    gives!(ops.conv_transpose1d(line, line_weight, None, ConvTransposeSettings { stride: [2], output_padding: [1], ..default() }) => [2, 2, 23]);
    gives!(ops.conv_transpose1d(line, line_weight, None, ConvTransposeSettings { output_shape: Some([11]), ..default() }) => [2, 2, 11]);
    gives!(ops.conv_transpose1d(line, line_weight, None, ConvTransposeSettings { stride: [3], padding: Padding::Same, ..default() }) => [2, 2, 30]);
    fails!(
        ops.conv2d(x, depthwise, None, ConvSettings::default()),
        "conv2d: \"x\" is [1, 4, 7, 5] but \"depthwise\" is [8, 1, 3, 3]; 4 channels in 1 groups do not fit the weight"
    );
    fails!(
        ops.conv2d(x, weight, None, ConvSettings { dilation: [3, 3], ..default() }),
        "conv2d: \"x\" is [1, 4, 7, 5] but \"weight\" is [6, 4, 3, 3]; the window is larger than the padded axis 3"
    );
    let three = PoolSettings { size: [3, 3], stride: Some([2, 2]), ..default() };
    gives!(ops.max_pool2d(square, three) => [1, 1, 1, 1]);
    gives!(ops.max_pool2d(square, PoolSettings { ceil_mode: true, ..three }) => [1, 1, 2, 2]);
    gives!(ops.max_pool2d(tiny, PoolSettings { size: [1, 1], stride: Some([2, 2]), ceil_mode: true, ..default() }) => [1, 1, 1, 1]);
    gives!(ops.max_pool2d_indices(square, PoolSettings::default()) => [1, 1, 2, 2], I32);
    gives!(ops.avg_pool1d(line, PoolSettings::default()) => [2, 3, 5]);
    gives!(ops.global_avg_pool(x) => [1, 4, 1, 1]);
    gives!(ops.adaptive_avg_pool2d(x, [3, 3]) => [1, 4, 3, 3]);
}

#[test]
fn resize_and_pad_give_the_sizes_asked_for() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[1, 2, 4, 5]);
    let bytes = bench.tensor("bytes", &[1, 2, 4, 5], DType::U8);
    let ops = bench.ops();
    gives!(ops.resize2d_bilinear(x, [8, 3]) => [1, 2, 8, 3]);
    gives!(ops.resize2d_nearest(bytes, [8, 3]) => [1, 2, 8, 3], U8);
    gives!(ops.resize(x, &[3, 2], ResizeTo::Scales(&[0.6, 2.0]), ResizeSettings::default()) => [1, 2, 8, 3]);
    gives!(ops.resize(x, &[-1], ResizeTo::Sizes(&[9]), ResizeSettings { mode: ResizeMode::Cubic { a: -0.75 }, ..default() }) => [1, 2, 4, 9]);
    fails!(
        ops.resize2d_bilinear(bytes, [8, 3]),
        "resize2d_bilinear: \"bytes\" is u8; only nearest takes other types than floats; cast first"
    );
    fails!(
        ops.resize(x, &[2], ResizeTo::Sizes(&[8, 3]), ResizeSettings::default()),
        "resize: 2 sizes were given for 1 axes"
    );
    gives!(ops.pad(x, &[(0, 0), (1, 0), (-1, 2), (0, -2)], PadMode::Constant(0.5)) => [1, 3, 5, 3]);
    gives!(ops.pad(bytes, &[(0, 0), (0, 0), (2, 2), (-1, -1)], PadMode::Reflect) => [1, 2, 8, 3], U8);
    fails!(
        ops.pad(x, &[(0, 0), (0, 0), (0, -5), (0, 0)], PadMode::Edge),
        "pad: \"x\" is [1, 2, 4, 5]; axis 2 cannot be cropped by more than its size"
    );
}

#[test]
fn shapes_are_views_and_joins_agree() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[2, 3, 4]);
    let y = bench.f32("y", &[2, 5, 4]);
    let ones = bench.f32("ones", &[1, 3, 1]);
    let image = bench.f32("image", &[1, 8, 2, 3]);
    let ops = bench.ops();
    gives!(ops.reshape(x, &[4, -1]) => [4, 6]);
    fails!(ops.reshape(x, &[5, -1]), "reshape: \"x\" is [2, 3, 4]; 24 elements do not divide into [5, -1]");
    fails!(ops.reshape(x, &[5, 5]), "reshape: \"x\" is [2, 3, 4]; 24 elements cannot become [5, 5] with 25");
    gives!(ops.flatten(x, 1, -1) => [2, 12]);
    gives!(ops.transpose(x) => [2, 4, 3]);
    gives!(ops.permute(x, &[-1, 0, 1]) => [4, 2, 3]);
    fails!(ops.permute(x, &[0, 1]), "permute: \"x\" is [2, 3, 4]; [0, 1] does not list every axis once");
    gives!(ops.squeeze(ones, Axes::ALL) => [3]);
    fails!(ops.squeeze(ones, 1), "squeeze: \"ones\" is [1, 3, 1]; axis 1 has size 3, not 1");
    gives!(ops.unsqueeze(x, &[-1, 0]) => [1, 2, 3, 4, 1]);
    gives!(ops.broadcast_to(ones, [5, 3, 7]) => [5, 3, 7]);
    fails!(ops.broadcast_to(x, [2, 3, 8]), "broadcast_to: \"x\" is [2, 3, 4]; it does not broadcast to [2, 3, 8]");
    gives!(ops.slice(x, -1, 1, -1) => [2, 3, 2]);
    gives!(ops.slice_step(x, 2, -1, isize::MIN, -2) => [2, 3, 2]);
    gives!(ops.concat([x, y], 1) => [2, 8, 4]);
    fails!(ops.concat([x, y], 0), "concat: \"x\" is [2, 3, 4] but \"y\" is [2, 5, 4]; only axis 0 may differ");
    gives!(ops.stack([x, x, x], -1) => [2, 3, 4, 3]);
    assert_eq!(ops.split(x, 2, &[1, 3]).expect("fits").len(), 2);
    fails!(ops.split(x, 2, &[1, 2]), "split: \"x\" is [2, 3, 4]; [1, 2] does not add up to 4, axis 2");
    gives!(ops.tile(x, &[2, 1, 1, 3]) => [2, 2, 3, 12]);
    gives!(ops.repeat(x, 1, 2) => [2, 6, 4]);
    gives!(ops.flip(x, [0, 2]) => [2, 3, 4]);
    gives!(ops.copy(x) => [2, 3, 4]);
    gives!(ops.depth_to_space(image, 2, DepthOrder::DepthColumnRow) => [1, 2, 4, 6]);
    gives!(ops.space_to_depth(image, 1) => [1, 8, 2, 3]);
    gives!(ops.tril(x, -1) => [2, 3, 4]);
    gives!(ops.eye(2, 3, 0, DType::Bool) => [2, 3], Bool);
    gives!(ops.arange(1.0, -0.5, 4, DType::F16) => [4], F16);
    gives!(ops.full([2, 2], 7.0, DType::U8) => [2, 2], U8);
    fails!(
        ops.broadcast_to(ones, [1 << 20, 3, 1 << 20]),
        "broadcast_to: a result of shape [1048576, 3, 1048576] is too large to address"
    );
}

#[test]
fn indices_are_integers_of_the_right_shape() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[5, 3, 4]);
    let ids = bench.tensor("ids", &[2, 6], DType::U8);
    let pairs = bench.tensor("pairs", &[7, 2], DType::I32);
    let table = bench.f32("table", &[10, 16]);
    let updates = bench.f32("updates", &[7, 4]);
    let ops = bench.ops();
    gives!(ops.gather(x, ids, 1) => [5, 2, 6, 4], F32);
    gives!(ops.gather(x, -1, 1) => [5, 4]);
    gives!(ops.embedding(table, ids) => [2, 6, 16]);
    fails!(ops.embedding(table, x), "embedding: \"x\" is f32; indices must be integers; cast first");
    gives!(ops.gather_nd(x, pairs, 0) => [7, 4]);
    gives!(ops.gather_elements(table, pairs, 0) => [7, 2]);
    gives!(ops.scatter_nd(x, pairs, updates, ScatterMode::Add) => [5, 3, 4]);
    fails!(
        ops.scatter_nd(x, pairs, table, ScatterMode::Add),
        "scatter_nd: \"pairs\" is [7, 2] but \"table\" is [10, 16]; the updates must be [7, 4]"
    );
    gives!(ops.scatter_elements(table, pairs, 1.0, 1, ScatterMode::Replace) => [10, 16]);
    gives!(ops.one_hot(ids, 9, DType::F32) => [2, 6, 9]);
}

#[test]
fn attention_checks_heads() {
    let mut bench = Bench::new();
    let q = bench.f32("q", &[2, 8, 5, 16]);
    let k = bench.f32("k", &[2, 2, 9, 16]);
    let v = bench.f32("v", &[2, 2, 9, 24]);
    let three = bench.f32("three", &[2, 3, 9, 16]);
    let mask = bench.tensor("mask", &[5, 9], DType::Bool);
    let angles = bench.f32("angles", &[5, 4]);
    let wide = bench.f32("wide", &[1, 1, 4, 300]);
    let ops = bench.ops();
    let settings = AttentionSettings { causal: true, mask: Some(mask.into()), ..default() };
    gives!(ops.attention(q, k, v, settings) => [2, 8, 5, 24]);
    fails!(
        ops.attention(q, three, three, AttentionSettings::default()),
        "attention: \"q\" is [2, 8, 5, 16], \"three\" is [2, 3, 9, 16] and \"three\" is [2, 3, 9, 16]; 8 query heads do not divide over 3 key heads"
    );
    fails!(
        ops.attention(wide, wide, wide, AttentionSettings::default()),
        "attention: head sizes 300 and 300 are not supported; they must be 1 to 256"
    );
    fails!(
        ops.attention(q, k, v, AttentionSettings { valid_keys: Some(10), ..default() }),
        "attention: there are 9 keys, but 10 are said to be valid"
    );
    for layout in [RopeLayout::Half, RopeLayout::Interleaved] {
        gives!(ops.rope(q, RopeSettings { position: 3, layout, ..default() }) => [2, 8, 5, 16]);
        gives!(ops.rope(q, RopeSettings { position: 3, layout, rotary: Some(4), ..default() }) => [2, 8, 5, 16]);
        gives!(ops.rope_with(q, angles, angles, layout) => [2, 8, 5, 16]);
    }
    fails!(
        ops.rope(q, RopeSettings { rotary: Some(3), ..default() }),
        "rope: \"q\" is [2, 8, 5, 16]; 3 of 16 elements cannot be rotated; the number must be even and at most 16"
    );
}

#[test]
fn effects_check_their_tensor() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[2, 3]);
    let row = bench.f32("row", &[3]);
    let cache = bench.f32("cache", &[2, 10]);
    let bytes = bench.tensor("bytes", &[2, 3], DType::U8);
    let view = Tensor::zeros([3], DType::F32).and_then(|t| t.broadcast_to([2, 3])).expect("fits");
    let view = bench.world.spawn((Name::new("view"), view)).id();
    let ops = bench.ops();
    ops.store(row, x).expect("broadcasts");
    ops.store(0.5, bytes).expect("a number takes the type");
    ops.append(cache, x, 1, 7).expect("fits");
    ops.write(x, &[1.0f32; 6]).expect("fits");
    ops.write_data(bytes, &TensorData::new(&[1u8; 6], [2, 3]).expect("fits")).expect("fits");
    ops.notify(x).expect("there");
    drop(ops.read(row).expect("there"));
    fails!(ops.store(x, row), "store: \"x\" is [2, 3] but \"row\" is [3]; the value does not broadcast to the tensor");
    fails!(
        ops.store(x, bytes),
        "store: \"x\" is f32 but \"bytes\" is u8; both must have one element type; cast the value"
    );
    fails!(ops.store(x, view), "store: \"view\" is [2, 3]; a broadcast view cannot be written");
    fails!(
        ops.append(cache, x, 1, 8),
        "append: \"x\" is [2, 3] but \"cache\" is [2, 10]; 3 from position 8 do not fit in 10, axis 1"
    );
    fails!(ops.write(x, &[1.0f32; 5]), "write: \"x\" is [2, 3] of type f32; 5 values were given for 6");
    fails!(ops.write(x, &[1u8; 6]), "write: \"x\" is [2, 3] of type f32; the values are u8");
    fails!(ops.store(x, Entity::PLACEHOLDER), format!("store: entity {} has no tensor", Entity::PLACEHOLDER));
}

/// Nodes recorded so far.
fn nodes(ops: &TensorCommands) -> Vec<Op> {
    ops.recording.0.borrow().cpu.graph.nodes.iter().map(|node| node.op.clone()).collect()
}

#[test]
fn questions_about_operands_record_nothing() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[2, 1]);
    let y = bench.f32("y", &[3]);
    let blocks = bench.tensor("blocks", &[2, 32], DType::Q8_0);
    let ops = bench.ops();
    assert_eq!(ops.shape(x).expect("a tensor"), Shape::from([2, 1]));
    assert_eq!(ops.dtype(blocks).expect("a tensor"), DType::Q8_0);
    assert_eq!(ops.shape(1.5).expect("a number"), Shape::default());
    assert!(nodes(&ops).is_empty());
    assert_eq!(ops.tensors.get(x).expect("a tensor").0.storage().decided_home(), None, "asking decides no backend");
    let value = ops.value(x).expect("a tensor");
    assert!(matches!(nodes(&ops)[..], [Op::Load { .. }]), "a value of an entity is a load");
    let expression = || (value * 2.0 + y) / (-value);
    assert_eq!(ops.shape(expression()).expect("broadcasts"), Shape::from([2, 3]));
    assert_eq!(ops.dtype(expression()).expect("one type"), DType::F32);
    fails!(ops.shape(value + blocks), "shape: \"blocks\" is q8_0; this op does not take q8_0; dequantize first");
    fails!(
        ops.shape((value * 2.0) + Entity::PLACEHOLDER),
        format!("shape: entity {} has no tensor", Entity::PLACEHOLDER)
    );
    assert_eq!(nodes(&ops).len(), 1);
    ops.value(expression()).expect("fits");
    assert!(nodes(&ops).len() > 1, "an expression is recorded when a value is asked for");
}

#[test]
fn work_aside_leaves_the_recording_as_it_was() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[2]);
    let ops = bench.ops();
    let value = ops.relu(x).expect("fits");
    let before = nodes(&ops);
    ops.aside(|aside| aside.store(aside.exp(x)?, x)).expect("fits");
    let failed = ops.aside(|aside| aside.store(aside.exp(value)?, x)).map(|_| ());
    assert_eq!(failed, Err(OpError::ForeignValue { op: "exp" }));
    assert_eq!(nodes(&ops), before);
    ops.exp(value).expect("still a value of this recording");
}

#[test]
fn two_recordings_of_a_system_do_not_mix() {
    let mut bench = Bench::new();
    let x = bench.f32("x", &[2]);
    let mut state = SystemState::<(TensorCommands, TensorCommands)>::new(&mut bench.world);
    let (ops, other) = state.get_mut(&mut bench.world).expect("the resources are there");
    let value = other.relu(x).expect("fits");
    assert_eq!(ops.exp(value).map(|_| ()), Err(OpError::ForeignValue { op: "exp" }));
    assert_eq!(ops.shape(value * 2.0), Err(OpError::ForeignValue { op: "shape" }));
}

#[test]
fn the_page_of_ops_lists_every_op() {
    let page = include_str!("../../docs/ops.md");
    let sources = [
        include_str!("sequence.rs"),
        include_str!("conv.rs"),
        include_str!("crossing.rs"),
        include_str!("dct.rs"),
        include_str!("effects.rs"),
        include_str!("elementwise.rs"),
        include_str!("fourier.rs"),
        include_str!("generate.rs"),
        include_str!("index.rs"),
        include_str!("infer.rs"),
        include_str!("integer.rs"),
        include_str!("matmul.rs"),
        include_str!("mel.rs"),
        include_str!("norm.rs"),
        include_str!("pad.rs"),
        include_str!("pool.rs"),
        include_str!("quantize.rs"),
        include_str!("recurrent.rs"),
        include_str!("reduce.rs"),
        include_str!("resample.rs"),
        include_str!("resize.rs"),
        include_str!("sample.rs"),
        include_str!("shape.rs"),
        include_str!("spectrum.rs"),
    ];
    // Methods of settings.
    let others = ["speech", "values"];
    let mut ops = Vec::new();
    for line in sources.iter().flat_map(|source| source.lines()).map(str::trim_start) {
        // Methods, and rows of the macros that make methods: `name = …;` and `name kind n;`.
        let words: Vec<&str> = line.split(' ').collect();
        let made = match words[..] {
            [name, "=", of] if of.ends_with(';') && of.starts_with(char::is_uppercase) => Some(name),
            [name, "=", _, "on", _] | [name, "=", _, _, "on", _] => Some(name),
            [name, "=", of, _] if of.starts_with("ReduceKind") => Some(name),
            [name, "slide" | "spread" | "Largest" | "Position" | "Average", _] => Some(name),
            _ => None,
        };
        let name = line.strip_prefix("pub fn ").and_then(|rest| rest.split(['(', '<']).next()).or(made);
        ops.extend(name.filter(|name| name.starts_with(char::is_lowercase) && !others.contains(name)));
    }
    let mut listed: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    ops.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, ops);
}
