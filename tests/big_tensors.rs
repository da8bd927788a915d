//! Tensors larger than one binding are processed in parts. Work that cannot be split returns a typed error before
//! anything is allocated, and other work is unaffected.

use bevy::prelude::*;
use bevy_tensor_compute::error::{ReadError, RunError};
use bevy_tensor_compute::memory::SyncDirection;
use bevy_tensor_compute::prelude::*;

use crate::common::{Rig, assert_close};

/// The binding limit in these tests.
const MIB: u64 = 1 << 20;

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + 13) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// Positive numbers, whose sums have small rounding errors.
fn positive(n: usize) -> Vec<f32> {
    numbers(n).into_iter().map(|number| number + 1.5).collect()
}

type Record = for<'a> fn(&'a TensorCommands, &[Entity]) -> OpResult<TensorValue<'a>>;

/// Runs on a device with small bindings and on the CPU, which has no such limit, and compares the results.
#[track_caller]
fn same_in_parts(tensors: impl Fn() -> Vec<Tensor>, cases: &[(&str, Record)]) {
    let [mut small, mut whole] = [Rig::with_binding_limit(MIB), Rig::new(Backend::Cpu)];
    let spawned = |rig: &mut Rig| tensors().into_iter().map(|tensor| rig.spawn(tensor)).collect::<Vec<Entity>>();
    let (in_parts, at_once) = (spawned(&mut small), spawned(&mut whole));
    for &(what, record) in cases {
        let run = |rig: &mut Rig, tensors: &[Entity]| {
            let tensors = tensors.to_vec();
            rig.compute(move |ops| record(ops, &tensors)).unwrap()
        };
        let (actual, expected) = (run(&mut small, &in_parts), run(&mut whole, &at_once));
        assert_eq!((actual.shape(), actual.dtype()), (expected.shape(), expected.dtype()), "{what}");
        assert_close(&actual.to_f32(), &expected.to_f32(), 1e-4, 1e-4, what);
    }
    assert_eq!(small.faults(), whole.faults());
}

#[test]
fn maps_work_in_parts() {
    let tensors = || {
        vec![
            Tensor::from_slice(&numbers(700 * 1024), [700, 1024]).unwrap(),
            Tensor::from_slice(&numbers(1024), [1024]).unwrap(),
            Tensor::from_slice(&numbers(1024 * 700), [1024, 700]).unwrap(),
            Tensor::full([700, 1024], 0.37, DType::F16).unwrap(),
            Tensor::random_uniform([700, 1024], -1.0, 1.0, 7, DType::F32).unwrap(),
            Tensor::arange(0.0, 1.0, 700 * 1024, DType::I32).unwrap(),
        ]
    };
    same_in_parts(
        tensors,
        &[
            ("broadcast chain", |ops, t| {
                let sum = ops.add(t[0], t[1])?;
                let y = ops.gelu(sum)?;
                ops.mul(y, t[0])
            }),
            ("transposed", |ops, t| {
                let turned = ops.transpose(t[2])?;
                ops.sub(turned, t[0])
            }),
            ("halves", |ops, t| {
                let y = ops.mul(t[3], t[3])?;
                ops.add(y, t[3])
            }),
            ("random", |ops, t| ops.add(t[4], 0.0)),
            ("counted", |ops, t| {
                let y = ops.cast(t[5], DType::F32)?;
                ops.mul(y, 0.25)
            }),
            ("joined", |ops, t| ops.concat([t[0], t[4]], 0)),
            ("turned over", |ops, t| ops.flip(t[0], 0)),
            ("stored in place", |ops, t| {
                let y = ops.mul(t[4], 2.0)?;
                ops.store(y, t[4])?;
                ops.add(t[4], 1.0)
            }),
        ],
    );
}

#[test]
fn reductions_work_in_parts() {
    let odd = 600_011;
    let tensors = move || {
        vec![
            Tensor::from_slice(&positive(700 * 1024), [700, 1024]).unwrap(),
            // A length without equal parts.
            Tensor::from_slice(&positive(odd), [odd]).unwrap(),
            Tensor::from_slice(&positive(3 * 300_000), [3, 300_000]).unwrap(),
        ]
    };
    same_in_parts(
        tensors,
        &[
            ("all", |ops, t| ops.sum(t[0], Axes::ALL)),
            ("rows", |ops, t| ops.mean(t[0], 1)),
            ("columns", |ops, t| ops.max_of(t[0], TensorAxis(0).keep())),
            ("softmax", |ops, t| ops.softmax(t[0], 1)),
            ("norm", |ops, t| ops.layer_norm(t[0], None, None, 1, 1e-5)),
            ("odd sum", |ops, t| ops.sum(t[1], Axes::ALL)),
            ("odd mean", |ops, t| ops.mean(t[1], 0)),
            ("odd smallest", |ops, t| ops.min_of(t[1], 0)),
            ("odd variance", |ops, t| ops.var(t[1], 0, 0)),
            ("first largest", |ops, t| ops.argmax(t[1], 0)),
            ("last largest", |ops, t| ops.argmax_last(t[1], 0)),
            ("long rows", |ops, t| ops.argmin(t[2], 1)),
            ("across", |ops, t| ops.sum(t[2], 0)),
        ],
    );
}

/// Mesa's llvmpipe ends the loops of a thread after 65,535 iterations. Kernels must not iterate that often.
#[test]
fn long_rows_are_taken_to_their_end() {
    let [mut gpu, mut cpu] = [Rig::new(Backend::Gpu), Rig::new(Backend::Cpu)];
    let shapes = [[1, 1_200_007], [66, 140_001]];
    let cases: [(&str, Record); 8] = [
        ("sum", |ops, t| ops.sum(t[0], 1)),
        ("largest", |ops, t| ops.argmax(t[0], 1)),
        ("sum of squares of all", |ops, t| ops.sum_squares(t[0], Axes::ALL)),
        ("softmax", |ops, t| {
            let y = ops.softmax(t[0], 1)?;
            ops.max_of(y, 1)
        }),
        ("norm", |ops, t| {
            let y = ops.layer_norm(t[0], None, None, 1, 1e-5)?;
            ops.max_of(y, 1)
        }),
        ("product", |ops, t| ops.matmul_nt(t[0], t[0])),
        ("running sum", |ops, t| {
            let y = ops.cumsum(t[0], 1)?;
            ops.max_of(y, 1)
        }),
        ("distance", |ops, t| {
            let y = ops.mul(t[0], 0.5)?;
            ops.cosine_similarity(t[0], y, 1, 1e-8)
        }),
    ];
    for shape in shapes {
        let tensor = || Tensor::from_slice(&positive(shape[0] * shape[1]), shape).unwrap();
        let (x, y) = (gpu.spawn(tensor()), cpu.spawn(tensor()));
        for (what, record) in cases {
            let actual = gpu.compute(move |ops| record(ops, &[x])).unwrap();
            let expected = cpu.compute(move |ops| record(ops, &[y])).unwrap();
            assert_close(&actual.to_f32(), &expected.to_f32(), 1e-6, 2e-4, &format!("{what} of {shape:?}"));
        }
        gpu.app.world_mut().despawn(x);
        cpu.app.world_mut().despawn(y);
    }
}

#[test]
fn products_work_in_parts() {
    let tensors = || {
        vec![
            Tensor::from_slice(&numbers(700 * 512), [700, 512]).unwrap(),
            Tensor::from_slice(&numbers(512 * 900), [512, 900]).unwrap(),
            Tensor::from_slice(&numbers(900 * 512), [900, 512]).unwrap(),
            Tensor::from_slice(&numbers(512), [1, 512]).unwrap(),
            Tensor::from_slice(&numbers(900), [900]).unwrap(),
            Tensor::from_slice(&numbers(6 * 200 * 300), [6, 200, 300]).unwrap(),
            Tensor::from_slice(&numbers(6 * 300 * 160), [6, 300, 160]).unwrap(),
            Tensor::quantized(DType::Q8_0, [4096, 512], &numbers(4096 * 512)).unwrap(),
        ]
    };
    same_in_parts(
        tensors,
        &[
            ("plain", |ops, t| ops.matmul(t[0], t[1])),
            ("transposed", |ops, t| ops.matmul_nt(t[0], t[2])),
            ("one row", |ops, t| ops.matmul(t[3], t[1])),
            ("linear with an activation", |ops, t| {
                let y = ops.linear(t[0], t[2], t[4])?;
                ops.relu(y)
            }),
            ("batched", |ops, t| ops.matmul(t[5], t[6])),
            ("blocks, one row", |ops, t| ops.matmul_nt(t[3], t[7])),
            ("blocks", |ops, t| ops.matmul_nt(t[0], t[7])),
        ],
    );
}

#[test]
fn tables_work_in_parts_and_count_each_bad_index_once() {
    let tensors = || {
        let ids: Vec<i32> = (0..500).map(|i| (i * 37) % 3000).chain([-1, -3000, 2999, 0, 5000, -4000]).collect();
        vec![
            Tensor::from_slice(&numbers(3000 * 256), [3000, 256]).unwrap(),
            Tensor::from_slice(&ids, [ids.len()]).unwrap(),
            Tensor::quantized(DType::Q8_0, [8000, 256], &numbers(8000 * 256)).unwrap(),
            Tensor::from_slice(&(0..2000).map(|i| i % 100).collect::<Vec<i32>>(), [2000]).unwrap(),
        ]
    };
    same_in_parts(
        tensors,
        &[
            ("floats", |ops, t| ops.embedding(t[0], t[1])),
            ("blocks", |ops, t| ops.embedding(t[2], t[1])),
            ("many ids, and work on what they find", |ops, t| {
                let rows = ops.embedding(t[0], t[3])?;
                ops.tanh(rows)
            }),
        ],
    );
}

#[test]
fn what_cannot_be_done_in_parts_is_an_error_and_the_rest_goes_on() {
    let mut rig = Rig::with_binding_limit(MIB);
    let big = rig.spawn(Tensor::from_slice(&numbers(300_000), [300_000]).unwrap());
    let small = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    let index = rig.spawn(Tensor::zeros([2], DType::I32).unwrap());
    rig.read(small);
    rig.read(index);
    let before = rig.figures();
    let receiver = rig
        .record(move |ops| {
            let scattered = ops.scatter_elements(big, index, 1.0, 0, ScatterMode::Replace)?;
            ops.read(scattered)
        })
        .unwrap();
    let Err(ReadError::Failed(error)) = rig.wait(&receiver) else { panic!("a scatter needs all of its data") };
    let RunError::Limit { requested, available, .. } = &error else { panic!("{error}") };
    assert!(*requested >= 1_200_000 && *available <= MIB, "{error}");
    assert!(error.to_string().contains("scatter_elements"), "{error}");
    assert_eq!(rig.figures().device_bytes, before.device_bytes, "nothing was allocated");
    assert_eq!(rig.read(small).to_f32(), [1.0, 2.0]);
    assert_eq!(rig.read(big).to_f32(), numbers(300_000));
}

#[test]
fn a_cumulative_sum_along_one_row_is_computed_in_parts() {
    let mut rig = Rig::with_binding_limit(MIB);
    let values: Vec<i32> = (0..600_001).map(|i| i % 1000 - 300).collect();
    let big = rig.spawn(Tensor::from_slice(&values, [values.len()]).unwrap());
    let mut sum = 0;
    let mut expected = values.clone();
    expected.iter_mut().for_each(|value| {
        sum += *value;
        *value = sum;
    });
    let sums = rig.compute(move |ops| ops.cumsum(big, 0)).unwrap();
    assert_eq!(sums.as_slice::<i32>().unwrap().iter().zip(&expected).position(|(a, b)| a != b), None);
}

#[test]
fn a_tensor_beyond_the_device_s_own_binding_limit_works_in_parts() {
    let mut rig = Rig::new(Backend::Gpu);
    let limits = &rig.app.world().resource::<TensorSupport>().adapter.as_ref().unwrap().limits;
    let (binding, buffer) = (limits.max_storage_buffer_binding_size, limits.max_buffer_size);
    if buffer < binding + 64 || binding > 256 << 20 {
        // Gigabytes would not test more than the small limits above.
        println!("the device binds {binding} bytes of at most {buffer}");
        return;
    }
    let elements = (binding / 4 + 10) as usize;
    let big = rig.spawn(Tensor::full([elements], 0.5, DType::F32).unwrap());
    let sum = rig.compute(move |ops| ops.sum(big, 0)).unwrap();
    assert_eq!(sum.item::<f32>().unwrap(), elements as f32 / 2.0);
}

#[test]
fn a_tensor_beyond_the_largest_buffer_is_an_error_that_says_how_much_there_is() {
    let mut rig = Rig::new(Backend::Gpu);
    let limit = rig.app.world().resource::<TensorSupport>().adapter.as_ref().unwrap().limits.max_buffer_size;
    let small = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    rig.read(small);
    let before = rig.figures();
    let Ok(big) = Tensor::zeros([(limit / 4 + 1) as usize], DType::F32) else {
        println!("no tensor is larger than the device's {limit} bytes");
        return;
    };
    let big = rig.spawn(big);
    let receiver = rig.record(move |ops| ops.store(1.0, big).and_then(|()| ops.read(small))).unwrap();
    let error = rig.wait(&receiver).unwrap_err();
    let ReadError::Failed(RunError::Limit { requested, available, .. }) = error else { panic!("{error}") };
    assert!(requested > available && available <= limit, "{requested} of {available}");
    rig.app.world_mut().despawn(big);
    rig.settle();
    let after = rig.figures();
    assert_eq!(after.device_bytes, before.device_bytes);
    assert!(after.peak_device_bytes < before.peak_device_bytes + MIB, "nothing of that size was allocated");
    assert_eq!(rig.read(small).to_f32(), [1.0, 2.0]);
}

/// The part of the test below that runs in a process with little memory.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by a_full_device_is_a_typed_error_and_freed_memory_is_used_again"]
fn fill_the_device() {
    if std::env::var_os("TENSOR_FILL_THE_DEVICE").is_none() {
        return;
    }
    let mut rig = Rig::new(Backend::Gpu);
    let small = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    rig.read(small);
    for round in 0..2 {
        let mut tensors = Vec::new();
        // An unused buffer takes address space but no memory, so this is fast.
        while rig.faults().len() == round {
            assert!(tensors.len() < 64, "the device has no end");
            let tensor = rig.spawn(Tensor::zeros([200 << 20], DType::F32).unwrap());
            rig.memory(|memory| memory.synchronize(tensor, SyncDirection::ToDevice)).unwrap();
            // One frame to allocate, one to report.
            rig.app.update();
            rig.app.update();
            tensors.push(tensor);
        }
        let faults = rig.faults();
        let Some(TensorFault::Run(RunError::OutOfMemory { requested, .. })) = faults.last() else {
            panic!("{faults:?}")
        };
        assert_eq!(*requested, 800 << 20);
        assert!(tensors.len() > 1, "there was room for one");
        assert_eq!(
            rig.figures().device_bytes >> 20,
            800 * (tensors.len() as u64 - 1),
            "what failed counts for nothing"
        );
        // The app and the other tensors still work.
        assert_eq!(rig.compute(move |ops| ops.mul(small, 2.0)).unwrap().to_f32(), [2.0, 4.0]);
        for tensor in tensors {
            rig.app.world_mut().despawn(tensor);
        }
        rig.settle();
        // The pool keeps some of it idle, which must not block other allocations.
    }
    rig.memory(|memory| memory.trim());
    rig.settle();
    assert_eq!(rig.figures().device_bytes >> 20, 0);
    println!("filled twice");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_a_typed_error_and_freed_memory_is_used_again() {
    // A software device runs out of address space, so this runs in a process with a limit on it.
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 12000000 && exec \"$0\" big_tensors::fill_the_device --exact --ignored --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env("TENSOR_FILL_THE_DEVICE", "1")
        .output()
        .unwrap();
    let [said, cried] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success() && said.contains("filled twice"), "{said}\n{cried}");
}
