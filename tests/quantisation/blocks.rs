//! Blocks: their bytes are those of PyPI's `gguf`, wherever they are made; what they cost; what can be done with them and what cannot.

use bevy::prelude::*;
use bevy_tensor_compute::TensorError;
use bevy_tensor_compute::prelude::*;
use safetensors::SafeTensors;

use super::{block, floats, noise};
use crate::common::{BACKENDS, Rig};

/// What `tests/vectors/gguf/make.py` made: numbers, and for a type their blocks and the numbers of those.
struct Vectors {
    x: Vec<f32>,
    shape: [usize; 2],
    blocks: Vec<u8>,
    numbers: Vec<f32>,
}

fn vectors(dtype: DType) -> Vectors {
    let file = include_bytes!("../vectors/gguf/blocks.safetensors");
    let file = SafeTensors::deserialize(file).expect("a file of tensors");
    let bytes = |name: &str| file.tensor(name).expect("a tensor of the file");
    let numbers = |name: &str| -> Vec<f32> {
        bytes(name).data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let shape = bytes("x").shape().try_into().expect("two axes");
    let (name, dequantized) = (dtype.name(), format!("{dtype} numbers"));
    Vectors { x: numbers("x"), shape, blocks: bytes(name).data().to_vec(), numbers: numbers(&dequantized) }
}

/// Equal bits, but that any NaN is as good as another.
#[track_caller]
fn assert_same(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        // The file's zeros times infinity are NaN; so are ours.
        assert!(a == e || a.is_nan() && e.is_nan(), "{what}: element {i} is {a}, not {e}");
    }
}

#[test]
fn the_host_makes_the_bytes_of_gguf() {
    for dtype in DType::QUANTIZED {
        let vectors = vectors(dtype);
        let data = TensorData::quantized(dtype, vectors.shape, &vectors.x).expect("whole blocks");
        let made = data.to_gguf_blocks().expect("quantised");
        let wrong = made.iter().zip(&vectors.blocks).position(|(a, b)| a != b);
        assert_eq!((made.len(), wrong), (vectors.blocks.len(), None), "{dtype}");
        assert_same(&data.to_f32(), &vectors.numbers, dtype.name());
        let back = TensorData::from_gguf_blocks(dtype, vectors.shape, &vectors.blocks).expect("whole blocks");
        assert_eq!(back, data);
    }
}

#[test]
fn both_backends_make_and_read_the_bytes_of_gguf() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in DType::QUANTIZED {
            let vectors = vectors(dtype);
            let x = floats(&mut rig, &vectors.shape, &vectors.x);
            let data = rig.compute(move |ops| ops.quantize(x, dtype)).expect("it fits");
            assert_eq!((data.dtype(), data.shape()), (dtype, &Shape::from(vectors.shape)));
            let made = data.to_gguf_blocks().expect("quantised");
            let wrong = made.iter().zip(&vectors.blocks).position(|(a, b)| a != b);
            assert_eq!((made.len(), wrong), (vectors.blocks.len(), None), "{dtype} on the {backend}");

            let stored = Tensor::from_gguf_blocks(dtype, vectors.shape, &vectors.blocks).expect("whole blocks");
            let stored = rig.spawn(stored);
            assert_eq!(rig.read(stored).to_gguf_blocks().expect("quantised"), vectors.blocks);
            let numbers = rig.compute(move |ops| ops.dequantize(stored)).expect("quantised");
            assert_eq!(numbers.dtype(), DType::F32);
            assert_same(&numbers.to_f32(), &vectors.numbers, &format!("{dtype} on the {backend}"));
            let halves = rig.compute(move |ops| ops.cast(stored, DType::F16)).expect("quantised");
            assert_eq!(halves.dtype(), DType::F16);
            let again = rig.compute(move |ops| ops.cast(x, dtype)).expect("floats").to_gguf_blocks();
            assert_eq!(again.expect("quantised"), vectors.blocks, "cast is quantize");
        }
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn storages_shrink_as_promised_by_the_device_counter() {
    for (dtype, most) in [(DType::Q8_0, 0.266), (DType::Q4_0, 0.141), (DType::Q4_128, 0.13), (DType::I8, 0.25)] {
        let mut rig = Rig::new(Backend::Gpu);
        let before = rig.figures().device_bytes;
        let plain = rig.spawn(Tensor::zeros([512, 512], DType::F32).expect("small"));
        let small = Tensor::zeros([512, 512], dtype).expect("small");
        let bytes = small.storage_bytes() as u64;
        let small = rig.spawn(small);
        rig.read(plain);
        let whole = rig.figures().device_bytes - before;
        rig.read(small);
        let part = rig.figures().device_bytes - before - whole;
        assert_eq!(whole, 1 << 20);
        assert!(part.abs_diff(bytes) < 16, "{part} bytes for {bytes}");
        assert!(part as f64 <= most * whole as f64, "{dtype} takes {part} of {whole} bytes");
    }
}

#[test]
fn what_is_not_finite_or_tiny_stays_in_its_block() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in DType::QUANTIZED {
            let n = block(dtype);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = noise(6 * n, 1);
                values[n + 7] = bad;
                // So small that the scale is 0 as a half, and subnormal.
                values[4 * n..5 * n].fill(1e-40);
                let x = floats(&mut rig, &[3, 2 * n], &values);
                let host = TensorData::quantized(dtype, [3, 2 * n], &values).expect("whole blocks");
                let data = rig.compute(move |ops| ops.quantize(x, dtype)).expect("it fits");
                assert_eq!(data.to_gguf_blocks(), host.to_gguf_blocks(), "{dtype} on the {backend} with {bad}");
                for (i, v) in data.to_f32().into_iter().enumerate() {
                    match i / n {
                        1 => assert!(v.is_nan(), "element {i} is {v}"),
                        4 => assert_eq!(v, 0.0),
                        _ => assert!((v - values[i]).abs() < 0.15, "element {i} is {v}, not {}", values[i]),
                    }
                }
            }
        }
    }
}

#[test]
fn dequantising_joins_the_work_around_it() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let values = noise(4 * 64, 2);
        let tensor = rig.spawn(Tensor::quantized(DType::Q4_0, [4, 64], &values).expect("whole blocks"));
        let row = floats(&mut rig, &[64], &values[..64]);
        let expected: Vec<f32> =
            rig.read(tensor).to_f32().iter().enumerate().map(|(i, v)| v * 2.0 + values[i % 64]).collect();
        let sum = rig.compute(move |ops| {
            let x = ops.dequantize(tensor)?;
            ops.add(x * 2.0, row)
        });
        crate::common::assert_close(&sum.expect("it fits").to_f32(), &expected, 1e-6, 1e-6, "the sum");
        let plan = rig.app.world().resource::<TensorDiagnostics>().last_plan(backend).expect("something ran");
        let kernels: Vec<_> = plan.steps.iter().map(|step| step.kernel).collect();
        assert_eq!(kernels, ["map"], "on the {backend}");
    }
}

#[test]
fn rows_can_be_viewed_and_nothing_else() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in DType::QUANTIZED {
            // An odd number of blocks in a row, so that rows begin inside groups.
            let k = 3 * block(dtype);
            let values = noise(5 * k, 3);
            let whole = Tensor::quantized(dtype, [5, k], &values).expect("whole blocks");
            let all = TensorData::quantized(dtype, [5, k], &values).expect("whole blocks").to_f32();
            let rows = |from: usize, to: usize| &all[from * k..to * k];
            let views = [
                (whole.slice(0, 1, 3), 1, 3),
                (whole.slice(0, 3, 5), 3, 5),
                (whole.slice(0, 0, 4), 0, 4),
                (whole.slice(0, 2, 3).and_then(|row| row.reshape([1, 3, k / 3])), 2, 3),
                (whole.window(k, 2 * k), 1, 3),
                (whole.slice(0, 5, 5), 5, 5),
            ];
            for (view, from, to) in views {
                let view = view.expect("whole rows");
                assert_eq!(view.storage_id(), whole.storage_id());
                let view = rig.spawn(view);
                assert_eq!(rig.read(view).to_f32(), rows(from, to), "{dtype} rows {from}..{to} on the {backend}");
                let numbers = rig.compute(move |ops| ops.dequantize(view)).expect("quantised");
                assert_eq!(numbers.to_f32(), rows(from, to), "{dtype} rows {from}..{to} on the {backend}");
            }
            let tensor = rig.spawn(whole.clone());
            let part = rig.compute(move |ops| ops.slice(tensor, 0, 1, 4)).expect("whole rows");
            assert_eq!((part.dtype(), &part.to_f32()[..]), (dtype, rows(1, 4)));
            let part = rig.compute(move |ops| {
                let rows = ops.slice(tensor, 0, 2, 4)?;
                ops.reshape(rows, &[2, 3, -1])
            });
            assert_eq!(part.expect("whole rows").to_f32(), rows(2, 4));

            let refused = [
                whole.transpose(),
                whole.permute(&[1, 0]),
                whole.slice(1, 1, k as isize),
                whole.slice_step(0, 0, 5, 2),
                whole.slice(1, 0, k as isize / 3),
                whole.broadcast_to([2, 5, k]),
                whole.reshape([k, 5]),
                whole.window(1, k),
            ];
            for view in refused {
                assert!(matches!(view, Err(TensorError::QuantizedView { .. })), "{view:?}");
            }
            for (start, end, step, axis) in
                [(0, 5, 2, 0), (5, 0, -1, 0), (1, k as isize, 1, 1), (0, k as isize / 3, 1, 1)]
            {
                let error =
                    rig.compute(move |ops| ops.slice_step(tensor, axis, start, end, step)).expect_err("no rows");
                assert!(matches!(error, OpError::Type { op: "slice_step", .. }), "{error}");
            }
            let error = rig.compute(move |ops| ops.reshape(tensor, &[-1, 5])).expect_err("no rows").to_string();
            assert!(
                error.contains("reshape") && error.contains(dtype.name()) && error.contains("dequantize"),
                "{error}"
            );
        }
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn rows_are_looked_up_as_floats() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in DType::QUANTIZED {
            let d = 3 * block(dtype);
            let values = noise(7 * d, 4);
            let all = TensorData::quantized(dtype, [7, d], &values).expect("whole blocks").to_f32();
            let table = rig.spawn(Tensor::quantized(dtype, [7, d], &values).expect("whole blocks"));
            let ids = rig.spawn(Tensor::from_slice(&[6i32, 0, -2, 3], [2, 2]).expect("four"));
            let expected: Vec<f32> = [6, 0, 5, 3].iter().flat_map(|&r| all[r * d..(r + 1) * d].to_vec()).collect();
            let found = rig.compute(move |ops| ops.embedding(table, ids)).expect("it fits");
            assert_eq!((found.dtype(), found.shape()), (DType::F32, &Shape::from([2, 2, d])));
            assert_eq!(found.to_f32(), expected, "{dtype} on the {backend}");
            let found = rig.compute(move |ops| ops.gather(table, ids, 0)).expect("it fits");
            assert_eq!(found.to_f32(), expected);
            let columns = rig.compute(move |ops| ops.gather(table, 5, 1)).expect("it fits");
            assert_eq!(columns.to_f32(), (0..7).map(|r| all[r * d + 5]).collect::<Vec<_>>());
        }
    }
}

#[test]
fn nothing_is_quantised_too() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for dtype in DType::QUANTIZED {
            let none = floats(&mut rig, &[0, block(dtype)], &[]);
            let data = rig.compute(move |ops| ops.quantize(none, dtype)).expect("it fits");
            assert_eq!(data.to_gguf_blocks(), Ok(Vec::new()));
            let numbers = rig.compute(move |ops| {
                let blocks = ops.quantize(none, dtype)?;
                ops.dequantize(blocks)
            });
            assert_eq!(numbers.expect("it fits").shape(), &Shape::from([0, block(dtype)]));
            let rows = floats(&mut rig, &[3, 0], &[]);
            assert!(rig.compute(move |ops| ops.quantize(rows, dtype)).expect("it fits").to_f32().is_empty());
        }
    }
}

#[test]
fn mistakes_are_typed_errors() {
    let values = [0.5f32; 64];
    let blocks = |shape: &[usize]| Tensor::quantized(DType::Q8_0, shape, &values);
    assert!(blocks(&[64]).is_ok());
    assert!(matches!(blocks(&[4, 16]), Err(TensorError::Blocks { block: 32, .. })));
    assert!(matches!(blocks(&[2, 64]), Err(TensorError::Length { values: 64, .. })));
    assert!(matches!(blocks(&[]), Err(TensorError::Blocks { .. })));
    assert!(matches!(Tensor::zeros([33], DType::Q4_0), Err(TensorError::Blocks { .. })));
    assert!(matches!(Tensor::zeros([1, 64], DType::Q4_128), Err(TensorError::Blocks { block: 128, .. })));
    let bytes = TensorData::from_gguf_blocks(DType::Q4_0, [64], &[0; 35]);
    assert!(matches!(bytes, Err(TensorError::BlockBytes { expected: 36, bytes: 35, .. })));
    let plain = [
        Tensor::quantized(DType::F32, [64], &values),
        Tensor::from_gguf_blocks(DType::I8, [64], &[0; 64]),
        Tensor::full([64], 1.0, DType::Q8_0),
        Tensor::ones([64], DType::Q8_0),
        Tensor::arange(0.0, 1.0, 64, DType::Q8_0),
        Tensor::eye(64, 64, DType::Q8_0),
        Tensor::random_uniform([64], 0.0, 1.0, 1, DType::Q8_0),
        Tensor::random_normal([64], 0.0, 1.0, 1, DType::Q8_0),
    ];
    for result in plain {
        assert!(matches!(result, Err(TensorError::UnsupportedType { .. })), "{result:?}");
    }
    let data = TensorData::new(&values, [64]).expect("64");
    assert!(matches!(data.to_gguf_blocks(), Err(TensorError::UnsupportedType { .. })));
    let data = TensorData::quantized(DType::Q8_0, [64], &values).expect("two blocks");
    assert!(matches!(data.as_slice::<i8>(), Err(TensorError::ElementType { held: DType::Q8_0, .. })));

    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = floats(&mut rig, &[2, 48], &[0.0; 96]);
        let whole = rig.spawn(Tensor::zeros([2, 64], DType::I32).expect("small"));
        let error = rig.compute(move |ops| ops.quantize(x, DType::Q8_0)).expect_err("not whole blocks");
        assert!(matches!(error, OpError::Shape { op: "quantize", .. }), "{error}");
        let error = rig.compute(move |ops| ops.quantize(x, DType::I8)).expect_err("no quantised type");
        assert!(matches!(error, OpError::Argument { op: "quantize", .. }), "{error}");
        let error = rig.compute(move |ops| ops.cast(whole, DType::Q8_0)).expect_err("integers");
        assert!(matches!(error, OpError::Type { op: "cast", .. }), "{error}");
        let error = rig.compute(move |ops| ops.full([64], 1.0, DType::Q4_0)).expect_err("no blocks");
        assert!(matches!(error, OpError::Argument { op: "full", .. }), "{error}");
        let blocks = rig.spawn(Tensor::quantized(DType::Q8_0, [2, 32], &[0.0; 64]).expect("two blocks"));
        let error = rig.compute(move |ops| {
            let value = ops.quantize(x, DType::Q8_0).or_else(|_| ops.reshape(blocks, &[1, 64]))?;
            ops.neg(value * 2.0)
        });
        assert!(matches!(error, Err(OpError::Type { op: "neg", .. })), "{error:?}");
        rig.app.update();
        assert_eq!(rig.faults(), []);
    }
}
