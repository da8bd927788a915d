//! Planning, compiling, device memory and background work: one failure stays one failure, and everything behind it goes on.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use bevy::prelude::*;
use bevy::tasks::AsyncComputeTaskPool;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::error::{ReadError, RunError};
use bevy_tensor_compute::pipelines::{CacheFound, PipelineList, TensorPipelines, WarmUpState, WarmUpStatus};
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig, assert_close};

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + 13) % 2003) as f32 / 1001.0 - 1.0).collect()
}

fn register(rig: &mut Rig, kernel: CustomKernel) -> TensorKernel {
    rig.app.register_kernel(kernel).expect("a valid kernel")
}

fn diagnostics(rig: &Rig) -> TensorDiagnostics {
    rig.app.world().resource::<TensorDiagnostics>().clone()
}

type Record = for<'a> fn(&'a TensorCommands, Entity) -> OpResult<TensorValue<'a>>;

// 1
#[test]
fn a_reduction_whose_row_exceeds_half_a_binding_is_planned() {
    let cases: [(&str, Record); 9] = [
        ("sum", |ops, x| ops.sum(x, 0)),
        ("mean", |ops, x| ops.mean(x, 0)),
        ("max", |ops, x| ops.max_of(x, 0)),
        ("min", |ops, x| ops.min_of(x, 0)),
        ("prod", |ops, x| ops.prod(x, 0)),
        ("argmax", |ops, x| ops.argmax(x, 0)),
        ("argmax_last", |ops, x| ops.argmax_last(x, 0)),
        ("argmin", |ops, x| ops.argmin(x, 0)),
        ("argmin_last", |ops, x| ops.argmin_last(x, 0)),
    ];
    let (mut small, mut whole) = (Rig::with_binding_limit(1 << 20), Rig::new(Backend::Cpu));
    // A binding shows 262,144 words: one row of the first; less than one row of the second's result; several rows of the third.
    for (shape, dtype) in
        [([3, 150_000], DType::F32), ([3, 300_000], DType::F16), ([13, 60_000], DType::F32), ([1, 300_000], DType::F32)]
    {
        let mut values = numbers(shape[0] * shape[1]);
        // Equal values and NaNs decide which position wins.
        values[5] = f32::NAN;
        values[shape[1] * (shape[0] - 1) + 5] = f32::NAN;
        (values[7], values[shape[1] * (shape[0] - 1) + 7]) = (2.0, 2.0);
        let tensor = || match dtype {
            DType::F16 => {
                let halves: Vec<half::f16> = values.iter().map(|&v| half::f16::from_f32(v)).collect();
                Tensor::from_slice(&halves, shape).unwrap()
            }
            _ => Tensor::from_slice(&values, shape).unwrap(),
        };
        let (in_parts, at_once) = (small.spawn(tensor()), whole.spawn(tensor()));
        for (what, record) in cases {
            let actual = small.compute(move |ops| record(ops, in_parts)).unwrap();
            let expected = whole.compute(move |ops| record(ops, at_once)).unwrap();
            assert_eq!((actual.shape(), actual.dtype()), (expected.shape(), expected.dtype()), "{what}");
            assert_close(&actual.to_f32(), &expected.to_f32(), 1e-3, 1e-3, &format!("{what} of {shape:?} {dtype}"));
        }
    }
    assert_eq!(small.faults(), []);
}

/// naga validates it, and its SPIR-V writer panics.
const PANICS: &str = "fn zeros(x: u32) -> u32 { return u32(countLeadingZeros(u64(x))); }";

// 2
#[test]
fn a_panic_while_compiling_fails_its_batch_and_work_behind_it_goes_on() {
    for synchronous in [true, false] {
        let pipelines = PipelineSettings { synchronous, ..default() };
        let mut rig = Rig::with(Backend::Gpu, TensorComputePlugin { pipelines, ..default() });
        let kernel = register(&mut rig, CustomKernel::elementwise("zeros", PANICS));
        let x = rig.spawn(Tensor::from_slice(&[1u32, 2, 3], [3]).unwrap());
        for round in 0..2 {
            let bad = kernel.clone();
            let failed = rig.record(move |ops| ops.read(ops.custom(&bad, [x], &())?)).unwrap();
            rig.app.update();
            let behind = rig.record(move |ops| ops.read(ops.add(x, 1u32)?)).unwrap();
            match rig.wait(&failed) {
                Err(ReadError::Failed(RunError::Kernel { message, .. })) => {
                    assert!(message.contains("panicked"), "{message}")
                }
                other => panic!("round {round}: {other:?}"),
            }
            assert_eq!(rig.wait(&behind).unwrap().to_f32(), [2.0, 3.0, 4.0]);
        }
        assert!(rig.faults().iter().all(|fault| matches!(fault, TensorFault::Run(RunError::Kernel { .. }))));
        assert_eq!((rig.faults().len(), rig.figures().pipelines_compiling_now), (2, 0));
    }
}

// 2
#[test]
fn a_panic_in_a_cpu_function_fails_its_batch_and_work_behind_it_goes_on() {
    let mut rig = Rig::new(Backend::Cpu);
    let wgsl = "fn broken(x: f32) -> f32 { return x; }";
    let kernel = register(
        &mut rig,
        CustomKernel::elementwise("broken", wgsl).cpu_element(|_: f32| -> f32 { panic!("so it is") }),
    );
    let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    let failed = rig.record(move |ops| ops.read(ops.custom(&kernel, [x], &())?)).unwrap();
    assert!(matches!(rig.wait(&failed), Err(ReadError::Failed(_))));
    assert_eq!(rig.read(x).to_f32(), [1.0, 2.0]);
}

// 4
#[test]
fn a_spill_without_staging_memory_is_reported_and_tried_again() {
    const WORDS: usize = 100_000;
    let budget = Some(WORDS as u64 * 4 * 5 / 2);
    let mut rig = Rig::with_memory(MemorySettings { budget, ..default() });
    let tensors: Vec<Entity> = (0..4).map(|_| rig.spawn(Tensor::zeros([WORDS], DType::F32).unwrap())).collect();
    // Written by kernels, so that the device has the only copy.
    let store = |rig: &mut Rig, i: usize| {
        let tensor = tensors[i];
        rig.record(move |ops| ops.store(i as f32 + 1.0, tensor)).unwrap();
        rig.settle();
    };
    store(&mut rig, 0);
    store(&mut rig, 1);
    diagnostics(&rig).fail_allocations("tensor:staging", 1);
    store(&mut rig, 2);
    let reported = rig.faults();
    assert!(
        matches!(reported[..], [] | [TensorFault::Run(RunError::OutOfMemory { .. })]),
        "retried or reported: {reported:?}"
    );
    store(&mut rig, 2);
    store(&mut rig, 3);
    for (i, &tensor) in tensors.iter().enumerate() {
        assert_eq!(rig.read(tensor).to_f32(), vec![i as f32 + 1.0; WORDS], "tensor {i}");
    }
    assert_eq!(rig.faults().len(), reported.len());
}

// 4
#[test]
fn a_spill_of_several_tensors_that_fails_half_way_keeps_all_of_them() {
    const WORDS: usize = 50_000;
    let mut rig = Rig::with_memory(MemorySettings { budget: Some(WORDS as u64 * 4 * 9 / 2), ..default() });
    let small: Vec<Entity> = (0..4).map(|_| rig.spawn(Tensor::zeros([WORDS], DType::F32).unwrap())).collect();
    for (i, &tensor) in small.iter().enumerate() {
        rig.record(move |ops| ops.store(i as f32, tensor)).unwrap();
    }
    rig.settle();
    let large = rig.spawn(Tensor::zeros([WORDS * 4], DType::F32).unwrap());
    // All four have to leave. Staging memory for the first is there, for the others not.
    rig.record(move |ops| ops.read(small[0])).unwrap();
    rig.settle();
    diagnostics(&rig).fail_allocations("tensor:staging", 3);
    for _ in 0..4 {
        rig.record(move |ops| ops.store(9.0, large)).unwrap();
        rig.settle();
    }
    assert_eq!(rig.read(large).to_f32(), vec![9.0; WORDS * 4]);
}

// 5
#[test]
fn elementwise_kernels_of_one_text_share_a_launch() {
    const PAIR: &str = "
        const scale = 3.0;
        fn grow(x: f32) -> f32 { return x * scale; }
        fn shift(x: f32) -> f32 { return grow(x) + 1.0; }";
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let kernel = |name| CustomKernel::elementwise(name, PAIR);
        let grow = register(&mut rig, kernel("grow").cpu_element(|x: f32| x * 3.0));
        let shift = register(&mut rig, kernel("shift").cpu_element(|x: f32| x * 3.0 + 1.0));
        // The same text once more, under a third name.
        let again = register(&mut rig, kernel("again").entry("grow").cpu_element(|x: f32| x * 3.0));
        let x = rig.spawn(Tensor::from_slice(&[1.0f32, -2.0], [2]).unwrap());
        let data =
            rig.compute(move |ops| ops.custom(&shift, [ops.custom(&again, [ops.custom(&grow, [x], &())?], &())?], &()));
        assert_eq!(data.unwrap().to_f32(), [28.0, -53.0], "{backend}");
        assert_eq!(rig.faults(), []);
        let plan = diagnostics(&rig).last_plan(backend).unwrap();
        assert_eq!(plan.steps.len(), 1, "{plan:?}");
    }
}

/// FNV-1a, by which cache files are checked.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

// 13
#[test]
fn a_crafted_cache_file_is_ignored() {
    let folder = std::env::temp_dir().join(format!("tensor_defects_{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let start = || {
        let pipelines = PipelineSettings { synchronous: true, cache: Some(folder.clone()), ..default() };
        Rig::with(Backend::Gpu, TensorComputePlugin { pipelines, ..default() })
    };
    let mut rig = start();
    let x = rig.spawn(Tensor::from_slice(&[1.0f32], [1]).unwrap());
    rig.compute(move |ops| ops.add(x, 1.0)).unwrap();
    drop(rig);
    let path = fs::read_dir(&folder).unwrap().next().expect("the file is written at the end").unwrap().path();
    let good = fs::read(&path).unwrap();
    // The lengths are at bytes 28 (pipelines), 32 (tuning) and 36 (driver); the checksum at 20 covers all from 28 on.
    let crafted = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let checksum = fingerprint(&file[28..]);
        file[20..28].copy_from_slice(&checksum.to_le_bytes());
        file
    };
    let length = good.len() as u64;
    let overflow = u64::MAX - u64::from(u32::from_le_bytes(good[28..32].try_into().unwrap())) * 8;
    for file in [
        crafted(28, &u32::MAX.to_le_bytes()),
        crafted(32, &u32::MAX.to_le_bytes()),
        crafted(36, &u64::MAX.to_le_bytes()),
        crafted(36, &overflow.to_le_bytes()),
        crafted(
            28,
            &[[0xff; 4].as_slice(), &[0xff; 4], &length.wrapping_sub(44 + 9 * u64::from(u32::MAX)).to_le_bytes()]
                .concat(),
        ),
        good[..40].to_vec(),
    ] {
        fs::write(&path, file).unwrap();
        let rig = start();
        let found = rig.app.world().resource::<TensorPipelines>().report().file.expect("there is a file").found;
        assert!(matches!(found, CacheFound::Ignored(_)), "{found:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

// 15
#[test]
fn a_read_without_staging_memory_says_so_and_its_batch_does_not_run() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32; 1000], [1000]).unwrap());
    let small = rig.spawn(Tensor::from_slice(&[5.0f32], [1]).unwrap());
    rig.read(x);
    diagnostics(&rig).fail_allocations("tensor:staging", 1);
    let answers = rig
        .record(move |ops| {
            ops.store(ops.add(x, 1.0)?, x)?;
            Ok([ops.read(x)?, ops.read(small)?])
        })
        .unwrap();
    for answer in &answers {
        match rig.wait(answer) {
            Err(ReadError::Failed(RunError::OutOfMemory { .. })) => {}
            other => panic!("{other:?}"),
        }
    }
    rig.settle();
    assert!(matches!(rig.faults()[..], [TensorFault::Run(RunError::OutOfMemory { .. })]), "{:?}", rig.faults());
    assert_eq!(rig.read(x).to_f32(), vec![1.0; 1000], "the batch has not run");
    assert_eq!(rig.figures().readbacks_now, 0);
}

// 15
#[test]
fn a_warm_up_that_cannot_generate_its_tensors_fails_alone() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    let random = rig.spawn(Tensor::random_uniform([500], 0.0, 1.0, 3, DType::F32).unwrap());
    assert_eq!(rig.read(x).to_f32(), [1.0, 2.0]);
    let id =
        rig.record(move |ops| ops.warm_up("square", 0, |ops| ops.store(ops.mul(random, random)?, random))).unwrap();
    // The warm-up is planned, and asks for the content of its tensor.
    rig.app.update();
    diagnostics(&rig).fail_allocations("tensor:plan", 1);
    let receiver = rig.record(move |ops| ops.read(x)).unwrap();
    assert_eq!(rig.wait(&receiver).expect("it has nothing to do with the warm-up").to_f32(), [1.0, 2.0]);
    rig.step_until(|app| app.world().resource::<WarmUpStatus>().is_ready());
    let status = rig.app.world().resource::<WarmUpStatus>();
    let warm_up = status.warm_ups.iter().find(|warm_up| warm_up.id == id).expect("listed");
    assert!(matches!(warm_up.state, WarmUpState::Failed(RunError::OutOfMemory { .. })), "{warm_up:?}");
    assert_eq!(rig.faults(), []);
    assert_eq!(rig.read(random).to_f32().len(), 500, "later work tries again");
}

// 15
#[test]
fn large_answers_arrive_while_every_task_thread_is_busy() {
    let mut rig = Rig::new(Backend::Gpu);
    let values = numbers(1 << 19);
    let x = rig.spawn(Tensor::from_slice(&values, [1 << 19]).unwrap());
    let y = rig.spawn(Tensor::from_slice(&[1.0f32], [1]).unwrap());
    rig.read(y);
    // As long as this lasts, all threads do what a long compilation does.
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let busy = Arc::new(AtomicUsize::new(0));
    let pool = AsyncComputeTaskPool::get();
    for _ in 0..pool.thread_num() {
        let (gate, busy) = (gate.clone(), busy.clone());
        let block = async move {
            busy.fetch_add(1, Ordering::Relaxed);
            let mut open = gate.0.lock().unwrap();
            while !*open {
                open = gate.1.wait(open).unwrap();
            }
        };
        pool.spawn(block).detach();
    }
    rig.step_until(|_| busy.load(Ordering::Relaxed) == pool.thread_num());
    let read = rig.record(move |ops| ops.read(x)).unwrap();
    let mut answer = None;
    for _ in 0..2000 {
        rig.app.update();
        answer = answer.or_else(|| read.try_recv());
        if answer.is_some() {
            break;
        }
    }
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert_eq!(answer.expect("the answer waits for no task").unwrap().to_f32(), values);
}

// 15
#[test]
fn scratch_memory_shrinks_when_work_needs_less() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let keep = |rig: &mut Rig, frames| rig.app.world_mut().resource_mut::<MemorySettings>().pool_frames = frames;
        keep(&mut rig, 1_000_000);
        let x = rig.spawn(Tensor::from_slice(&numbers(1 << 18), [512, 512]).unwrap());
        let scratch = |rig: &Rig| match backend {
            Backend::Gpu => rig.figures().scratch_bytes,
            Backend::Cpu => rig.figures().cpu_scratch_bytes,
        };
        rig.compute(move |ops| ops.matmul(ops.softmax(ops.matmul(x, x)?, LAST)?, x)).unwrap();
        let much = scratch(&rig);
        assert!(much >= 1 << 20, "{backend}: {much}");
        // Small work, frame after frame.
        keep(&mut rig, 5);
        let y = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [1, 2]).unwrap());
        for _ in 0..20 {
            let product = rig.compute(move |ops| ops.softmax(ops.matmul_nt(y, y)?, LAST)).unwrap();
            assert_eq!(product.to_f32(), [1.0]);
        }
        let little = scratch(&rig);
        assert!(little < much / 8, "{backend}: {little} of {much}");
        // No work at all.
        keep(&mut rig, 1_000_000);
        rig.compute(move |ops| ops.matmul(ops.softmax(ops.matmul(x, x)?, LAST)?, x)).unwrap();
        assert!(scratch(&rig) >= 1 << 20);
        keep(&mut rig, 5);
        rig.step_until(|app| {
            let figures = app.world().resource::<TensorDiagnostics>().figures();
            figures.scratch_bytes + figures.cpu_scratch_bytes + figures.pool_idle_bytes == 0
        });
    }
}

/// Frames in which [`WarmUpStatus`] changed.
#[derive(Resource, Default)]
struct Changes(usize);

// 15
#[test]
fn finished_warm_ups_are_listed_up_to_a_bound_and_read_only_when_they_change() {
    let mut rig = Rig::new(Backend::Gpu);
    let count = |status: Res<WarmUpStatus>, mut changes: ResMut<Changes>| changes.0 += usize::from(status.is_changed());
    rig.app.init_resource::<Changes>().add_systems(Update, count);
    let pipelines = rig.app.world().resource::<TensorPipelines>().clone();
    for i in 0..600 {
        pipelines.precompile(&format!("warm-up {i}"), 0, &PipelineList::default());
        if i % 50 == 0 {
            rig.app.update();
        }
    }
    rig.app.update();
    rig.step_until(|app| app.world().resource::<WarmUpStatus>().is_ready());
    pipelines.precompile("last", 0, &PipelineList::default());
    rig.app.update();
    rig.step_until(|app| app.world().resource::<WarmUpStatus>().is_ready());
    let status = rig.app.world().resource::<WarmUpStatus>();
    let last = status.warm_ups.last().expect("the last is listed").label.clone();
    assert!(status.warm_ups.len() <= 257 && last == "last", "{} {last}", status.warm_ups.len());
    for _ in 0..300 {
        pipelines.precompile("more", 0, &PipelineList::default());
        rig.app.update();
        rig.app.update();
    }
    rig.step_until(|app| app.world().resource::<WarmUpStatus>().is_ready());
    assert!(rig.app.world().resource::<WarmUpStatus>().warm_ups.len() <= 258);
    rig.app.update();
    let before = rig.app.world().resource::<Changes>().0;
    for _ in 0..10 {
        rig.app.update();
    }
    assert_eq!(rig.app.world().resource::<Changes>().0, before, "nothing changes in a steady frame");
}
