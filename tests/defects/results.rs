//! Results: too large ones are errors, and all others are right, at any size.

use bevy_tensor_compute::error::{OpError, ReadError, RunError, TensorError};
use bevy_tensor_compute::ops::{
    ConvSettings, ConvTransposeSettings, DepthOrder, Padding, PoolSettings, ResizeMode, ResizeSettings, ResizeTo,
};
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig, assert_close};

// 7

type Recorded = for<'a> fn(&'a TensorCommands, [bevy::prelude::Entity; 4]) -> OpResult<TensorValue<'a>>;

#[test]
fn results_beyond_what_can_be_addressed_are_errors_of_the_call() {
    let cases: &[(&str, Recorded)] = &[
        ("add", |ops, [tall, wide, ..]| ops.add(tall, wide)),
        ("expression", |ops, [tall, wide, ..]| {
            let (tall, wide) = (ops.value(tall)?, ops.value(wide)?);
            ops.relu(tall + wide)
        }),
        ("comparison", |ops, [tall, wide, ..]| ops.less(tall, wide)),
        ("pow", |ops, [tall, wide, ..]| ops.pow(tall, wide)),
        ("select", |ops, [tall, wide, _, mask]| ops.select(mask, tall, wide)),
        ("select, one number", |ops, [tall, _, _, mask]| ops.select(mask, tall, 0.0)),
        ("broadcast_to", |ops, [tall, ..]| ops.broadcast_to(tall, [200_000, 200_000])),
        ("broadcast_to, overflow", |ops, [tall, ..]| ops.broadcast_to(tall, [1 << 40, 200_000, 1 << 40])),
        ("broadcast_to, empty but huge", |ops, [tall, ..]| ops.broadcast_to(tall, [0, 200_000, 1 << 40])),
        ("pad, edge", |ops, [tall, ..]| ops.pad(tall, &[(0, 0), (0, 200_000)], PadMode::Edge)),
        ("pad, reflect", |ops, [_, wide, ..]| ops.pad(wide, &[(200_000, 0), (0, 0)], PadMode::Reflect)),
        ("pad, wrap", |ops, [tall, ..]| ops.pad(tall, &[(0, isize::MAX - 200_000), (0, 0)], PadMode::Wrap)),
        ("pad, edge of one axis", |ops, [tall, ..]| ops.pad(tall, &[(0, 1 << 33), (0, 0)], PadMode::Edge)),
        ("pad, constant", |ops, [tall, ..]| ops.pad(tall, &[(0, 0), (1 << 40, 0)], PadMode::Constant(0.0))),
        ("tile", |ops, [tall, ..]| ops.tile(tall, &[200_000, 1])),
        ("tile, overflow", |ops, [tall, ..]| ops.tile(tall, &[usize::MAX, usize::MAX])),
        ("repeat", |ops, [tall, ..]| ops.repeat(tall, 0, usize::MAX)),
        ("matmul", |ops, [tall, wide, ..]| ops.matmul(tall, wide)),
        ("full", |ops, _| ops.full([usize::MAX, 2], 0.0, DType::F32)),
        ("arange", |ops, _| ops.arange(0.0, 1.0, 1 << 31, DType::F32)),
        ("eye", |ops, _| ops.eye(1 << 20, 1 << 20, 0, DType::F32)),
        ("one_hot", |ops, [_, _, index, _]| ops.one_hot(index, 1 << 31, DType::F32)),
        ("gather", |ops, [tall, _, index, _]| {
            let index = ops.broadcast_to(index, [1 << 20, 4])?;
            let table = ops.broadcast_to(tall, [200_000, 2000])?;
            ops.gather(table, index, 0)
        }),
        ("concat", |ops, [tall, ..]| {
            let part = ops.broadcast_to(tall, [200_000, 10_000])?;
            ops.concat([part, part], 0)
        }),
        ("stack", |ops, [tall, ..]| {
            let part = ops.broadcast_to(tall, [200_000, 10_000])?;
            ops.stack([part, part], 0)
        }),
        ("resize", |ops, [tall, ..]| ops.resize(tall, &[1], ResizeTo::Sizes(&[200_000]), ResizeSettings::default())),
        ("resize, one axis", |ops, [tall, ..]| {
            ops.resize(tall, &[0], ResizeTo::Sizes(&[usize::MAX]), ResizeSettings::default())
        }),
        ("sum of a product that is never stored", |ops, [tall, wide, ..]| {
            let product = ops.mul(tall, wide)?;
            ops.sum(product, bevy_tensor_compute::ops::Axes::ALL)
        }),
    ];
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let tall = rig.spawn(Tensor::zeros([200_000, 1], DType::F32).unwrap());
        let wide = rig.spawn(Tensor::zeros([1, 200_000], DType::F32).unwrap());
        let index = rig.spawn(Tensor::zeros([4], DType::I32).unwrap());
        let mask = rig.spawn(Tensor::zeros([1, 200_000], DType::Bool).unwrap());
        for &(what, record) in cases {
            let entities = [tall, wide, index, mask];
            let error = rig.record(move |ops| ops.read(record(ops, entities)?)).map(|_| ()).unwrap_err();
            let typed = matches!(error, OpError::Argument { .. });
            assert!(typed, "{backend} {what}: {error}");
        }
        let direct = rig.record(move |ops| {
            let (tall, wide) = (ops.value(tall)?, ops.value(wide)?);
            ops.read(tall * wide)
        });
        assert!(matches!(direct.map(|_| ()), Err(OpError::Argument { op: "read", .. })));
        // What is refused leaves nothing behind that runs.
        let sum = rig.compute(move |ops| ops.sum(tall, bevy_tensor_compute::ops::Axes::ALL)).unwrap();
        assert_eq!(sum.to_f32(), [0.0]);
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn host_data_beyond_what_can_be_addressed_is_an_error() {
    // A row that is repeated needs no memory of its own.
    let row = vec![0u8; 1 << 16];
    let rows = vec![&row[..]; 1 << 16];
    let too_large = |result: Result<(), TensorError>| assert!(matches!(result, Err(TensorError::TooLarge { .. })));
    too_large(Tensor::from_rows(&rows).map(|_| ()));
    too_large(Tensor::from_slice::<f32>(&[], [0, 1 << 31]).map(|_| ()));
    too_large(TensorData::new::<f32>(&[], [usize::MAX, 0]).map(|_| ()));
    too_large(TensorData::quantized(DType::Q4_0, [0, 1 << 40], &[]).map(|_| ()));
    too_large(TensorData::from_gguf_blocks(DType::Q8_0, [0, 1 << 40], &[]).map(|_| ()));
    too_large(Tensor::zeros([1 << 31], DType::U8).map(|_| ()));
    too_large(Tensor::zeros([1], DType::U8).unwrap().broadcast_to([1 << 31]).map(|_| ()));
    // Two gigabytes of zeros that are never touched.
    let bytes = vec![0u8; 1 << 31];
    too_large(TensorData::new(&bytes, [1 << 31]).map(|_| ()));
    too_large(Tensor::from_slice(&bytes, [1 << 16, 1 << 15]).map(|_| ()));
}

#[test]
fn memory_that_the_machine_does_not_have_is_an_error_on_the_cpu() {
    // Sixty-four results of 8 GB that are all needed at once.
    let mut rig = Rig::new(Backend::Cpu);
    let x = rig.spawn(Tensor::zeros([1], DType::F32).unwrap());
    let receiver = rig
        .record(move |ops| {
            let mut parts = Vec::new();
            for i in 0..64 {
                let row = ops.add(x, f64::from(i))?;
                let whole = ops.broadcast_to(row, [1 << 15, (1 << 16) - 1])?;
                parts.push(ops.cumsum(whole, 1)?);
            }
            let mut sum = parts[0];
            for &part in &parts[1..] {
                sum = ops.matmul_nt(ops.slice(part, 0, 0, 1)?, ops.slice(sum, 0, 0, 1)?)?;
                sum = ops.broadcast_to(sum, [1, (1 << 16) - 1])?;
            }
            ops.read(sum)
        })
        .unwrap();
    let answer = rig.wait(&receiver);
    assert!(matches!(answer, Err(ReadError::Failed(RunError::OutOfMemory { .. }))), "{answer:?}");
    // The backend goes on.
    assert_eq!(rig.compute(move |ops| ops.add(x, 1.0)).unwrap().to_f32(), [1.0]);
}

// 12

#[test]
fn diagonals_far_outside_keep_or_clear_everything() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::ones([3, 4], DType::F32).unwrap());
        for (k, lower) in [(i32::MAX, 12.0), (i32::MAX - 1, 12.0), (4, 12.0), (-3, 0.0), (i32::MIN, 0.0)] {
            let tril = rig.compute(move |ops| ops.tril(x, k)).unwrap();
            assert_eq!(tril.to_f32().iter().sum::<f32>(), lower, "{backend} tril {k}");
            let triu = rig.compute(move |ops| ops.triu(x, k)).unwrap();
            assert_eq!(triu.to_f32().iter().sum::<f32>(), 12.0 - lower, "{backend} triu {k}");
            let eye = rig.compute(move |ops| ops.eye(3, 4, k, DType::F32)).unwrap();
            assert_eq!(eye.to_f32(), [0.0; 12], "{backend} eye {k}");
        }
        let tril = rig.compute(move |ops| ops.tril(x, 1)).unwrap();
        assert_eq!(tril.to_f32(), [1., 1., 0., 0., 1., 1., 1., 0., 1., 1., 1., 1.]);
    }
}

#[test]
fn a_convolution_over_nothing_but_padding_is_its_bias() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let bias = rig.spawn(Tensor::from_slice(&[3.0f32, -4.0], [2]).unwrap());
        for dtype in [DType::F32, DType::F16] {
            // No positions, no channels, no batch.
            for (x, weight) in
                [([1, 3, 0, 0], [2, 3, 2, 2]), ([1, 0, 1, 1], [2, 0, 2, 2]), ([0, 3, 1, 1], [2, 3, 2, 2])]
            {
                let batch = x[0];
                let x = rig.spawn(Tensor::zeros(x, dtype).unwrap());
                let weight = rig.spawn(Tensor::ones(weight, dtype).unwrap());
                let settings = ConvSettings { padding: Padding::Explicit([[1, 1]; 2]), ..Default::default() };
                let y = rig.compute(move |ops| ops.conv2d(x, weight, bias, settings)).unwrap();
                assert_eq!(y.shape()[..2], [batch, 2]);
                let plane = y.shape()[2] * y.shape()[3];
                let expected = [vec![3.0; plane], vec![-4.0; plane]].concat().repeat(batch);
                assert_eq!(y.to_f32(), expected, "{backend}");
                let y = rig.compute(move |ops| ops.conv2d(x, weight, None::<TensorOperand>, settings)).unwrap();
                assert_eq!(y.to_f32(), vec![0.0; expected.len()], "{backend}");
            }
            let x = rig.spawn(Tensor::zeros([1, 0, 2], dtype).unwrap());
            let weight = rig.spawn(Tensor::ones([0, 2, 2], dtype).unwrap());
            let settings = ConvTransposeSettings::default();
            let y = rig.compute(move |ops| ops.conv_transpose1d(x, weight, bias, settings)).unwrap();
            assert_eq!(y.to_f32(), [3.0, 3.0, 3.0, -4.0, -4.0, -4.0], "{backend}");
        }
    }
}

#[test]
fn a_maximum_over_nothing_but_padding_is_the_lowest_number() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        // Three windows: before the input, on it, behind it.
        let settings = PoolSettings { padding: Padding::Explicit([[4, 4]]), size: [4], ..Default::default() };
        for (dtype, lowest) in [
            (DType::F32, f32::NEG_INFINITY),
            (DType::F16, f32::NEG_INFINITY),
            (DType::I32, i32::MIN as f32),
            (DType::I8, -128.0),
            (DType::U32, 0.0),
            (DType::U8, 0.0),
        ] {
            for size in [4, 0] {
                let x = rig.spawn(Tensor::full([1, 1, size], 7.0, dtype).unwrap());
                let y = rig.compute(move |ops| ops.max_pool1d(x, settings)).unwrap();
                let expected = if size == 4 { vec![lowest, 7.0, lowest] } else { vec![lowest; 2] };
                assert_eq!((y.dtype(), y.to_f32()), (dtype, expected.clone()), "{backend} {dtype} {size}");
                let y = rig.compute(move |ops| ops.max_pool1d_indices(x, settings)).unwrap();
                assert_eq!(y.to_f32(), vec![0.0; expected.len()], "{backend} {dtype} {size}");
                if dtype.is_float() {
                    for include_pad in [true, false] {
                        let settings = PoolSettings { include_pad, ..settings };
                        let y = rig.compute(move |ops| ops.avg_pool1d(x, settings)).unwrap();
                        let expected = if size == 4 { vec![0.0, 7.0, 0.0] } else { vec![0.0; 2] };
                        assert_eq!(y.to_f32(), expected, "{backend} {dtype} {size}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_scatter_of_nothing_changes_nothing() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap());
        let none = rig.spawn(Tensor::zeros([0], DType::I32).unwrap());
        let tuples = rig.spawn(Tensor::zeros([0, 1], DType::I32).unwrap());
        let updates = rig.spawn(Tensor::zeros([0], DType::F32).unwrap());
        let y = rig.compute(move |ops| ops.scatter_elements(x, none, updates, 0, ScatterMode::Add)).unwrap();
        assert_eq!(y.to_f32(), [1.0, 2.0, 3.0], "{backend}");
        let y = rig.compute(move |ops| ops.scatter_nd(x, tuples, updates, ScatterMode::Replace)).unwrap();
        assert_eq!(y.to_f32(), [1.0, 2.0, 3.0], "{backend}");
    }
}

#[test]
fn huge_steps_blocks_and_windows_are_results_or_errors_but_never_overflow() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let row = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [1, 1, 4]).unwrap());
        let empty = rig.spawn(Tensor::zeros([1, 0, 0, 0], DType::F32).unwrap());
        let plane = rig.spawn(Tensor::ones([1, 1, 2, 2], DType::F32).unwrap());
        let weight = rig.spawn(Tensor::ones([1, 1, 1], DType::F32).unwrap());
        const HUGE: [usize; 6] = [usize::MAX, usize::MAX / 2, isize::MAX as usize, 1 << 32, 1 << 31, (1 << 32) + 1];
        for huge in HUGE {
            for step in [huge as isize, isize::MIN, -(huge as isize).saturating_abs()] {
                let value = rig.compute(move |ops| ops.slice_step(row, 2, 1, isize::MAX, step));
                let values = value.unwrap().to_f32();
                assert!(values.len() <= 2, "{backend} {step}: {values:?}");
                let twice = rig.compute(move |ops| {
                    let once = ops.slice_step(row, 2, 1, 2, step.max(2))?;
                    ops.slice_step(once, 2, 0, isize::MAX, step.max(2))
                });
                assert_eq!(twice.unwrap().to_f32(), [2.0], "{backend} {step}");
            }
            // A stride that is never taken, and a dilation of one element.
            let settings = PoolSettings { stride: Some([huge]), size: [2], ..Default::default() };
            assert_eq!(rig.compute(move |ops| ops.max_pool1d(row, settings)).unwrap().to_f32(), [2.0], "{backend}");
            let settings = PoolSettings { dilation: [huge], stride: Some([1]), size: [1], ..Default::default() };
            let pooled = rig.compute(move |ops| ops.avg_pool1d(row, settings)).unwrap();
            assert_eq!(pooled.to_f32(), [1.0, 2.0, 3.0, 4.0], "{backend}");
            let settings = ConvSettings { stride: [huge], dilation: [huge], ..Default::default() };
            let conv = rig.compute(move |ops| ops.conv1d(row, weight, None::<TensorOperand>, settings)).unwrap();
            assert_eq!(conv.to_f32(), [1.0], "{backend}");
            let settings = PoolSettings { ceil_mode: true, stride: Some([huge]), size: [2], ..Default::default() };
            assert_eq!(rig.compute(move |ops| ops.max_pool1d(row, settings)).unwrap().to_f32(), [2.0], "{backend}");
            // Padding, windows and blocks that cannot be.
            let refused: Vec<(&str, Result<TensorData, OpError>)> = vec![
                ("padding", {
                    let settings =
                        PoolSettings { padding: Padding::Explicit([[huge, huge]]), size: [2], ..Default::default() };
                    rig.compute(move |ops| ops.max_pool1d(row, settings))
                }),
                ("padding and stride", {
                    let padding = Padding::Explicit([[huge - 1, 0]]);
                    let settings = PoolSettings { padding, stride: Some([huge]), size: [1], ..Default::default() };
                    rig.compute(move |ops| ops.max_pool1d(row, settings))
                }),
                (
                    "window",
                    rig.compute(move |ops| ops.avg_pool1d(row, PoolSettings { size: [huge], ..Default::default() })),
                ),
                ("transposed stride", {
                    let settings = ConvTransposeSettings { stride: [huge], ..Default::default() };
                    rig.compute(move |ops| ops.conv_transpose1d(row, weight, None::<TensorOperand>, settings))
                }),
                ("transposed, same", {
                    let settings =
                        ConvTransposeSettings { stride: [huge], padding: Padding::Same, ..Default::default() };
                    rig.compute(move |ops| ops.conv_transpose1d(row, weight, None::<TensorOperand>, settings))
                }),
                ("transposed, output padding", {
                    let settings = ConvTransposeSettings { output_padding: [huge], ..Default::default() };
                    rig.compute(move |ops| ops.conv_transpose1d(row, weight, None::<TensorOperand>, settings))
                }),
                ("depth_to_space", {
                    rig.compute(move |ops| ops.depth_to_space(plane, huge, DepthOrder::DepthColumnRow))
                }),
                ("space_to_depth", rig.compute(move |ops| ops.space_to_depth(plane, huge))),
                ("repeat", rig.compute(move |ops| ops.repeat(row, 2, huge))),
            ];
            for (what, result) in refused {
                assert!(result.is_err(), "{backend} {what} {huge}: {result:?}");
            }
            // Nothing in blocks: empty, or refused.
            let _ = rig.compute(move |ops| ops.depth_to_space(empty, huge, DepthOrder::ColumnRowDepth));
            let _ = rig.compute(move |ops| ops.space_to_depth(empty, huge));
            let whole = Tensor::zeros([1, 1, 4], DType::F32).unwrap();
            let _ =
                whole.slice_step(2, 0, isize::MAX, huge as isize).map(|view| view.slice_step(2, 0, 9, huge as isize));
        }
        // Windows of two billion taps, all but four of them padding.
        let settings =
            PoolSettings { padding: Padding::Explicit([[1 << 29, 1 << 29]]), size: [1 << 30], ..Default::default() };
        assert_eq!(rig.compute(move |ops| ops.max_pool1d(row, settings)).unwrap().to_f32(), [4.0], "{backend}");
        let average = rig.compute(move |ops| ops.avg_pool1d(row, settings)).unwrap().to_f32();
        assert_eq!(average, [2.5], "{backend}");
        // A filter that would be infinitely wide.
        let antialias = ResizeSettings { antialias: true, mode: ResizeMode::Linear, ..Default::default() };
        let resized = rig.compute(move |ops| ops.resize(row, &[2], ResizeTo::Scales(&[1e-30]), antialias)).unwrap();
        assert_eq!(resized.shape()[..], [1, 1, 0], "{backend}");
    }
}

// 8

/// Numbers that look random, the same on every run.
fn noise(count: usize) -> impl Iterator<Item = u32> {
    (0..count as u32).map(|i| {
        let mut x = i.wrapping_mul(0x9e37_79b9) ^ 0x85eb_ca6b;
        x ^= x >> 16;
        x = x.wrapping_mul(0x7feb_352d);
        x ^= x >> 15;
        x = x.wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    })
}

#[test]
fn the_best_of_long_rows_are_right() {
    for (rows, n, k) in [(1, 1_000_000, 100), (1, 300_000, 70_000), (20, 70_000, 3), (2, 5000, 5000), (300, 2000, 40)] {
        // Many equal values, so that their order matters.
        let values: Vec<f32> = noise(rows * n).map(|x| (x % 50_021) as f32 - 25_000.0).collect();
        for largest in [true, false] {
            let expected: Vec<i32> = values
                .chunks(n)
                .flat_map(|row| {
                    let mut order: Vec<i32> = (0..n as i32).collect();
                    order.sort_by(|&a, &b| {
                        let (a, b) = (row[a as usize], row[b as usize]);
                        if largest { b.total_cmp(&a) } else { a.total_cmp(&b) }
                    });
                    order.truncate(k);
                    order
                })
                .collect();
            for backend in BACKENDS {
                let mut rig = Rig::new(backend);
                let x = rig.spawn(Tensor::from_slice(&values, [rows, n]).unwrap());
                let found = rig
                    .compute(move |ops| {
                        let (_, positions) = if largest { ops.top_k(x, k, 1)? } else { ops.bottom_k(x, k, 1)? };
                        Ok(positions)
                    })
                    .unwrap();
                let found = found.as_slice::<i32>().unwrap();
                let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "{backend} [{rows}, {n}] best {k}");
            }
        }
    }
}

#[test]
fn running_sums_of_long_lines_are_right() {
    for shape in [[1, 10_000_000, 1], [3, 700_001, 2], [1, 70_000, 50]] {
        let count: usize = shape.iter().product();
        let [outer, n, inner] = shape;
        let values: Vec<i32> = noise(count).map(|x| x as i32).collect();
        for exclusive in [false, true] {
            let mut expected = vec![0i32; count];
            for line in 0..outer * inner {
                let (o, i) = (line / inner, line % inner);
                let mut sum = 0i32;
                for j in 0..n {
                    let at = (o * n + j) * inner + i;
                    let next = sum.wrapping_add(values[at]);
                    expected[at] = if exclusive { sum } else { next };
                    sum = next;
                }
            }
            for backend in BACKENDS {
                let mut rig = Rig::new(backend);
                let x = rig.spawn(Tensor::from_slice(&values, shape).unwrap());
                let settings = CumsumSettings { exclusive, ..Default::default() };
                let sums = rig.compute(move |ops| ops.cumsum_with(x, 1, settings)).unwrap();
                let wrong = sums.as_slice::<i32>().unwrap().iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "{backend} {shape:?} exclusive {exclusive}");
            }
        }
    }
    // Floats: as close to the truth as sums of parts are.
    let values: Vec<f32> = noise(3_000_000).map(|x| x as f32 / u32::MAX as f32 - 0.5).collect();
    let mut sum = 0.0f64;
    let exact: Vec<f32> = values
        .iter()
        .map(|&v| {
            sum += f64::from(v);
            sum as f32
        })
        .collect();
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&values, [values.len()]).unwrap());
        let sums = rig.compute(move |ops| ops.cumsum(x, 0)).unwrap();
        assert_close(&sums.to_f32(), &exact, 0.05, 1e-3, "running sums");
    }
}

#[test]
fn pooling_over_large_windows_is_right() {
    // A window of 300 × 400, and one line of 200,000.
    for (shape, size) in [([1, 2, 300, 401], [300, 400]), ([2, 1, 1, 200_003], [1, 200_000])] {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = noise(count).map(|x| (x % 100_003) as f32 - 50_000.0).collect();
        let [planes, high, wide] = [shape[0] * shape[1], shape[2], shape[3]];
        let outs = wide - size[1] + 1;
        let (mut largest, mut places, mut means) = (Vec::new(), Vec::new(), Vec::new());
        for plane in 0..planes {
            for out in 0..outs {
                let window = (0..high).flat_map(|h| (out..out + size[1]).map(move |w| h * wide + w));
                let (mut best, mut place, mut sum) = (f32::NEG_INFINITY, 0, 0.0f64);
                for at in window {
                    let value = values[plane * high * wide + at];
                    if value > best {
                        (best, place) = (value, at);
                    }
                    sum += f64::from(value);
                }
                largest.push(best);
                places.push(place as f32);
                means.push((sum / (size[0] * size[1]) as f64) as f32);
            }
        }
        for backend in BACKENDS {
            let mut rig = Rig::new(backend);
            let x = rig.spawn(Tensor::from_slice(&values, shape).unwrap());
            let settings = PoolSettings { stride: Some([1, 1]), size, ..Default::default() };
            let found = rig.compute(move |ops| ops.max_pool2d(x, settings)).unwrap();
            assert_eq!(found.to_f32(), largest, "{backend} {size:?}");
            let found = rig.compute(move |ops| ops.max_pool2d_indices(x, settings)).unwrap();
            assert_eq!(found.to_f32(), places, "{backend} {size:?}");
            let found = rig.compute(move |ops| ops.avg_pool2d(x, settings)).unwrap();
            assert_close(&found.to_f32(), &means, 1.0, 1e-3, "averages");
        }
    }
}

/// What a scatter should give, update by update.
fn scattered(data: &[f32], at: &[i32], updates: &[f32], mode: ScatterMode) -> Vec<f32> {
    let mut out = data.to_vec();
    for (&at, &update) in at.iter().zip(updates) {
        let old = &mut out[at as usize];
        *old = match mode {
            ScatterMode::Replace => update,
            ScatterMode::Add => *old + update,
            ScatterMode::Mul => *old * update,
            ScatterMode::Min => old.min(update),
            ScatterMode::Max => old.max(update),
        };
    }
    out
}

#[test]
fn a_million_updates_of_a_million_elements_are_right_and_repeat_exactly() {
    const N: usize = 1_000_000;
    let data: Vec<f32> = noise(N).map(|x| x as f32 / u32::MAX as f32).collect();
    let updates: Vec<f32> = noise(N).map(|x| (x >> 3) as f32 / 1e8 - 1.0).collect();
    let spread: Vec<i32> = noise(N).map(|x| ((x ^ 0x5555) % N as u32) as i32).collect();
    // Half of all updates hit one element, the others a few.
    let heaped: Vec<i32> = noise(N).map(|x| if x % 2 == 0 { 77 } else { (x % 1000) as i32 }).collect();
    let modes = [ScatterMode::Replace, ScatterMode::Add, ScatterMode::Mul, ScatterMode::Min, ScatterMode::Max];
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&data, [N]).unwrap());
        let u = rig.spawn(Tensor::from_slice(&updates, [N]).unwrap());
        for at in [&spread, &heaped] {
            let index = rig.spawn(Tensor::from_slice(at, [N]).unwrap());
            for mode in modes {
                let expected = scattered(&data, at, &updates, mode);
                let mut run = |nd: bool| {
                    rig.compute(move |ops| {
                        if nd {
                            let tuples = ops.unsqueeze(index, &[1])?;
                            ops.scatter_nd(x, tuples, u, mode)
                        } else {
                            ops.scatter_elements(x, index, u, 0, mode)
                        }
                    })
                    .unwrap()
                };
                let first = run(false);
                let what = format!("{backend} {mode:?}");
                match mode {
                    // Half a million terms and their rounding.
                    ScatterMode::Add => assert_close(&first.to_f32(), &expected, 20.0, 1e-3, &what),
                    ScatterMode::Mul => assert_close(&first.to_f32(), &expected, 1e-5, 1e-4, &what),
                    _ => assert_eq!(first.to_f32().iter().zip(&expected).position(|(a, b)| a != b), None, "{what}"),
                }
                assert_eq!(run(false).bytes(), first.bytes(), "{what}: run to run");
                assert_eq!(run(true).bytes(), first.bytes(), "{what}: as slices");
            }
        }
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn scatters_of_slices_and_integers_are_right_at_size() {
    const N: usize = 100_000;
    // Slices of three, in rows of an inner axis.
    let data: Vec<i32> = noise(N * 3).map(|x| x as i32 % 1000).collect();
    let updates: Vec<i32> = noise(2 * N * 3).map(|x| (x >> 7) as i32 % 1000).collect();
    let at: Vec<i32> = noise(2 * N).map(|x| (x % 317) as i32 * 300 - 300).collect();
    let modes = [ScatterMode::Replace, ScatterMode::Add, ScatterMode::Mul, ScatterMode::Min, ScatterMode::Max];
    for mode in modes {
        let mut expected = data.clone();
        for (i, &at) in at.iter().enumerate() {
            // Negative positions count from the end.
            let at = if at < 0 { (at + N as i32) as usize } else { at as usize };
            for j in 0..3 {
                let (old, update) = (&mut expected[at * 3 + j], updates[i * 3 + j]);
                *old = match mode {
                    ScatterMode::Replace => update,
                    ScatterMode::Add => old.wrapping_add(update),
                    ScatterMode::Mul => old.wrapping_mul(update),
                    ScatterMode::Min => (*old).min(update),
                    ScatterMode::Max => (*old).max(update),
                };
            }
        }
        for backend in BACKENDS {
            let mut rig = Rig::new(backend);
            let x = rig.spawn(Tensor::from_slice(&data, [N, 3]).unwrap());
            let index = rig.spawn(Tensor::from_slice(&at, [2 * N, 1]).unwrap());
            let u = rig.spawn(Tensor::from_slice(&updates, [2 * N, 3]).unwrap());
            let y = rig.compute(move |ops| ops.scatter_nd(x, index, u, mode)).unwrap();
            let wrong = y.as_slice::<i32>().unwrap().iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "{backend} {mode:?}");
            assert_eq!(rig.faults(), []);
        }
    }
}

// Found by fuzzing: a huge factor enlarged the rounding error of exp(x) - 1 to an infinity on one backend.
#[test]
fn exponential_units_are_exact_near_zero_and_with_any_factor() {
    let x = [-0.0f32, 0.0, -1e-30, -1e-7, -1e-3, -0.3, -0.499, -0.5, -0.501, -2.0, -8.0, -100.0, 0.7, 3e4];
    let celu = |x: f32, a: f32| match f64::from(x) {
        x if x > 0.0 => x,
        x => f64::from(a) * (x / f64::from(a)).exp_m1(),
    };
    let elu = |x: f32, a: f32| if x > 0.0 { f64::from(x) } else { f64::from(a) * f64::from(x).exp_m1() };
    let selu = |x: f32| 1.050_700_987_355_480_5 * elu(x, 1.673_263_2);
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let tensor = rig.spawn(Tensor::from_slice(&x, [x.len()]).unwrap());
            let check = |what: &str, got: TensorData, expected: &dyn Fn(f32) -> f64| {
                let relative =
                    [3e-7, 1e-3, 8e-3][[DType::F32, DType::F16, DType::BF16].iter().position(|d| *d == dtype).unwrap()];
                let round = |v: f32| match dtype {
                    DType::F16 => half::f16::from_f32(v).to_f32(),
                    DType::BF16 => half::bf16::from_f32(v).to_f32(),
                    _ => v,
                };
                for (x, got) in x.iter().map(|&x| round(x)).zip(got.to_f32()) {
                    let wide = expected(x);
                    let e = round(wide as f32);
                    let near = got == e || (f64::from(got) - wide).abs() <= relative * wide.abs() + 6e-8;
                    assert!(near, "{backend}, {dtype}: {what} of {x} is {got}, expected {wide}");
                }
            };
            for a in [1.0f32, 0.5, 2.0, 1e-3, 1e30, f32::MAX] {
                let got = rig.compute(move |ops| ops.celu(ops.cast(tensor, dtype)?, a)).unwrap();
                check(&format!("celu by {a}"), got, &|x| celu(x, a));
            }
            for a in [1.0f32, 0.5, 1e30] {
                let got = rig.compute(move |ops| ops.elu(ops.cast(tensor, dtype)?, a)).unwrap();
                check(&format!("elu by {a}"), got, &|x| elu(x, a));
            }
            let got = rig.compute(move |ops| ops.selu(ops.cast(tensor, dtype)?)).unwrap();
            check("selu", got, &selu);
        }
    }
}
