//! Custom kernels: their inputs and outputs, and how they become part of plans. Mistakes return typed errors, and the
//! app keeps running.

mod bad;
mod elementwise;
mod reload;

use bevy::prelude::*;
use bevy_tensor_compute::error::{KernelError, ReadError, RunError};
use bevy_tensor_compute::plan::PlanReport;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};

const DOUBLE: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&y)) { y[id.x] = 2.0 * x[id.x]; }
}";

/// `y = 2 x`, for both backends.
fn double(name: &'static str) -> CustomKernel {
    CustomKernel::wgsl(name, DOUBLE).inputs(["x"]).output("y", OutputShape::like("x")).cpu(|call| {
        let x = call.input::<f32>(0)?;
        call.output::<f32>(0)?.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    })
}

/// Registers a valid kernel.
#[track_caller]
fn register(rig: &mut Rig, kernel: CustomKernel) -> TensorKernel {
    rig.app.register_kernel(kernel).expect("a good kernel")
}

fn values(rig: &mut Rig, tensor: Entity) -> Vec<f32> {
    rig.read(tensor).to_f32()
}

fn report(rig: &Rig) -> PlanReport {
    rig.app.world().resource::<TensorDiagnostics>().last_plan(rig.backend).expect("something ran")
}

fn kernels(rig: &Rig) -> Vec<&'static str> {
    report(rig).steps.iter().map(|step| step.kernel).collect()
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32 + 1.0).collect()
}

#[test]
fn the_length_of_an_array_is_the_tensors_own() {
    const DOT: &str = "
        var<storage, read> a: array<f32>;
        var<storage, read> b: array<f32>;
        var<storage, read_write> result: array<f32>;
        @compute @workgroup_size(1)
        fn main() {
            var sum = 0.0;
            for (var i = 0u; i < arrayLength(&a); i++) { sum += a[i] * b[i]; }
            result[0] = sum + 1000.0 * f32(arrayLength(&a));
        }";
    let mut rig = Rig::new(Backend::Gpu);
    let dot =
        register(&mut rig, CustomKernel::wgsl("dot", DOT).inputs(["a", "b"]).output("result", OutputShape::fixed([1])));
    for n in [1usize, 3, 4, 5, 63, 65] {
        let a = rig.spawn(Tensor::from_slice(&numbers(n), [n]).unwrap());
        let sum: f32 = numbers(n).iter().map(|v| v * v).sum();
        let kernel = dot.clone();
        let data = rig.compute(move |ops| ops.custom(&kernel, [a, a], &())).unwrap();
        assert_eq!(data.to_f32(), [sum + 1000.0 * n as f32], "{n} elements");
        // Intermediate values are in scratch memory, which is bound with the same exact size.
        let kernel = dot.clone();
        let data = rig
            .compute(move |ops| {
                let twice = ops.add(a, a)?;
                let same = ops.reshape(a, &[-1])?;
                ops.custom(&kernel, (twice, same), &())
            })
            .unwrap();
        assert_eq!(data.to_f32(), [2.0 * sum + 1000.0 * n as f32], "{n} elements in scratch");
    }
    assert_eq!(rig.faults(), []);
}

#[test]
fn a_kernel_is_one_launch_straight_into_the_tensor_it_is_stored_to() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let kernel = register(&mut rig, double("double"));
        let x = rig.spawn(Tensor::from_slice(&numbers(100), [100]).unwrap());
        let y = rig.spawn(Tensor::zeros([100], DType::F32).unwrap());
        let used = kernel.clone();
        rig.record(move |ops| {
            let value = ops.custom(&used, [x], &())?;
            ops.store(value, y)
        })
        .unwrap();
        rig.app.update();
        rig.settle();
        let expected: Vec<f32> = numbers(100).iter().map(|v| 2.0 * v).collect();
        assert_eq!(values(&mut rig, y), expected, "{backend}");
        let used = kernel.clone();
        rig.record(move |ops| {
            let value = ops.custom(&used, [x], &())?;
            ops.store(value, y)
        })
        .unwrap();
        rig.app.update();
        rig.step_until(|app| {
            let report = app.world().resource::<TensorDiagnostics>().last_plan(backend);
            report.is_some_and(|report| report.steps.len() == 1 && report.steps[0].kernel == "double")
        });
        let report = report(&rig);
        assert_eq!((report.steps[0].op, report.scratch_bytes), ("double", 0), "{backend}");
        assert!(report.steps[0].site.file().ends_with("custom_kernels.rs"));
        // It cannot run in place, because threads read what other threads write.
        rig.record(move |ops| {
            let value = ops.custom(&kernel, [x], &())?;
            ops.store(value, x)
        })
        .unwrap();
        assert_eq!(values(&mut rig, x), expected, "{backend}");
        assert_eq!(rig.faults(), []);
    }
}

const BOTH: &str = "
struct Params { scale: f32, shift: vec2<f32>, count: u32, weights: array<vec4<f32>, 2> }
var<storage, read> a: array<f32>;
var<storage, read> b: array<f32>;
var<storage, read_write> sum: array<f32>;
var<storage, read_write> larger: array<u32>;
SPACE params: Params;
@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if (i >= params.count) { return; }
    sum[i] = params.scale * (a[i] + b[i]) + params.shift.y + params.weights[1].z;
    larger[i] = select(0u, 1u, a[i] > b[i]);
}";

#[derive(Reflect, Clone)]
struct BothParams {
    // In a different order than in the WGSL struct: members are matched by name.
    count: u32,
    shift: Vec2,
    scale: f32,
    weights: [Vec4; 2],
}

fn both(name: &'static str, space: &str) -> CustomKernel {
    CustomKernel::wgsl(name, BOTH.replace("SPACE", space))
        .inputs(["a", "b"])
        .output("sum", OutputShape::like("a"))
        .output(
            "larger",
            OutputShape::by(|inputs| {
                if inputs[0] == inputs[1] { Ok(inputs[0].clone()) } else { Err("a and b differ".to_owned()) }
            }),
        )
        .params::<BothParams>()
        .cpu(|call| {
            let (a, b) = (call.input::<f32>(0)?, call.input::<f32>(1)?);
            let (scale, shift, weight) =
                (call.param::<f32>("scale")?, call.param::<Vec2>("shift")?, call.param_at::<Vec4>("weights", 1)?);
            for (i, sum) in call.output::<f32>(0)?.iter_mut().enumerate() {
                *sum = scale * (a[i] + b[i]) + shift.y + weight.z;
            }
            let larger = call.output::<u32>(1)?;
            larger.iter_mut().enumerate().for_each(|(i, larger)| *larger = u32::from(a[i] > b[i]));
            Ok(())
        })
}

fn both_params(count: usize) -> BothParams {
    let weights = [Vec4::ZERO, Vec4::new(0.0, 0.0, 100.0, 0.0)];
    BothParams { count: count as u32, shift: Vec2::new(-1.0, 0.5), scale: 10.0, weights }
}

#[test]
fn several_inputs_and_outputs_with_params_in_either_space() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (name, space) in [("both_uniform", "var<uniform>"), ("both_storage", "var<storage, read>")] {
            let kernel = register(&mut rig, both(name, space));
            let a = rig.spawn(Tensor::from_slice(&numbers(70), [7, 10]).unwrap());
            let b = rig.spawn(Tensor::full([7, 10], 35.0, DType::F32).unwrap());
            let larger = rig.spawn(Tensor::zeros([7, 10], DType::U32).unwrap());
            let sum = rig
                .compute(move |ops| {
                    let [sum, more] = ops.custom_outputs(&kernel, [a, b], &both_params(70))?;
                    ops.store(more, larger)?;
                    assert_eq!((ops.shape(sum)?, ops.dtype(more)?), (Shape::from([7, 10]), DType::U32));
                    Ok(sum)
                })
                .unwrap();
            let expected: Vec<f32> = numbers(70).iter().map(|v| 10.0 * (v + 35.0) + 100.5).collect();
            assert_eq!(sum.to_f32(), expected, "{backend} {name}");
            let expected: Vec<u32> = numbers(70).iter().map(|&v| u32::from(v > 35.0)).collect();
            assert_eq!(rig.read(larger).as_slice::<u32>().unwrap(), expected, "{backend} {name}");
        }
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn unused_outputs_are_allowed() {
    let mut rig = Rig::new(Backend::Gpu);
    let kernel = register(&mut rig, both("both", "var<uniform>"));
    let a = rig.spawn(Tensor::from_slice(&numbers(5), [5]).unwrap());
    let larger = rig
        .compute(move |ops| {
            let [_, larger] = ops.custom_outputs(&kernel, (a, a), &both_params(5))?;
            Ok(larger)
        })
        .unwrap();
    assert_eq!(larger.as_slice::<u32>().unwrap(), [0; 5]);
}

#[test]
fn views_are_seen_as_they_are() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let kernel = register(&mut rig, double("double"));
        let whole = Tensor::from_slice(&numbers(24), [4, 6]).unwrap();
        let turned = whole.transpose().unwrap();
        // Starts at an element that is not a valid binding offset.
        let odd = whole.slice(0, 1, 3).unwrap();
        let column = whole.slice(1, 2, 3).unwrap();
        let wide = whole.slice(0, 3, 4).unwrap().broadcast_to([2, 6]).unwrap();
        for view in [whole, turned, odd, column, wide] {
            let shape = view.shape().clone();
            let view = rig.spawn(view);
            let expected: Vec<f32> = values(&mut rig, view).iter().map(|v| 2.0 * v).collect();
            let used = kernel.clone();
            let data = rig.compute(move |ops| ops.custom(&used, [view], &())).unwrap();
            assert_eq!((data.shape(), data.to_f32()), (&shape, expected), "{backend}");
        }
        // Also stored through a view.
        let target = Tensor::zeros([4, 6], DType::F32).unwrap();
        let row = rig.spawn(target.slice(0, 1, 2).unwrap());
        let target = rig.spawn(target);
        rig.record(move |ops| {
            let row_values = ops.full([1, 6], 21.0, DType::F32)?;
            let value = ops.custom(&kernel, [row_values], &())?;
            ops.store(value, row)
        })
        .unwrap();
        let expected: Vec<f32> = (0..24).map(|i| if (6..12).contains(&i) { 42.0 } else { 0.0 }).collect();
        assert_eq!(values(&mut rig, target), expected, "{backend}");
    }
}

#[test]
fn kernels_follow_each_other_and_other_ops() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let kernel = register(&mut rig, double("double"));
        let x = rig.spawn(Tensor::from_slice(&[-1.0f32, 2.0, -3.0, 4.0], [2, 2]).unwrap());
        let data = rig
            .compute(move |ops| {
                let y = ops.relu(x)?;
                let y = ops.custom(&kernel, [y], &())?;
                let y = ops.custom(&kernel, [y], &())?;
                let y = ops.matmul(y, x)?;
                let y = ops.custom(&kernel, [y], &())?;
                ops.add(y, 1.0)
            })
            .unwrap();
        // relu(x)·4 = [[0, 8], [0, 16]], times x = [[-24, 32], [-48, 64]].
        assert_eq!(data.to_f32(), [-47.0, 65.0, -95.0, 129.0], "{backend}");
        let names = kernels(&rig);
        assert_eq!(names.iter().filter(|name| **name == "double").count(), 3, "{backend}: {names:?}");
    }
}

#[test]
fn one_text_may_hold_several_entry_points_with_bindings_of_their_own() {
    const TEXT: &str = "
        var<storage, read> a: array<f32>;
        var<storage, read> b: array<f32>;
        var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(8)
        fn negate(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x < arrayLength(&y)) { y[id.x] = -a[id.x]; }
        }
        @compute @workgroup_size(16)
        fn multiply(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x < arrayLength(&y)) { y[id.x] = a[id.x] * b[id.x]; }
        }";
    let mut rig = Rig::new(Backend::Gpu);
    let shape = || OutputShape::like("a");
    let negate =
        register(&mut rig, CustomKernel::wgsl("negate", TEXT).entry("negate").inputs(["a"]).output("y", shape()));
    let multiply = register(
        &mut rig,
        CustomKernel::wgsl("multiply", TEXT).entry("multiply").inputs(["a", "b"]).output("y", shape()),
    );
    let x = rig.spawn(Tensor::from_slice(&numbers(20), [20]).unwrap());
    let data = rig
        .compute(move |ops| {
            let minus = ops.custom(&negate, [x], &())?;
            ops.custom(&multiply, (x, minus), &())
        })
        .unwrap();
    assert_eq!(data.to_f32(), numbers(20).iter().map(|v| -v * v).collect::<Vec<_>>());
    assert_eq!(kernels(&rig), ["negate", "multiply"]);
}

#[test]
fn scratch_memory_and_zeroed_outputs() {
    const TEXT: &str = "
        var<storage, read> x: array<u32>;
        var<storage, read_write> sorted: array<u32>;
        var<storage, read_write> counts: array<atomic<u32>>;
        var<storage, read_write> reversed: array<u32>;
        @compute @workgroup_size(64)
        fn main(@builtin(local_invocation_index) i: u32) {
            reversed[i] = x[63u - i];
            atomicAdd(&counts[x[i] % 4u], 1u);
            storageBarrier();
            sorted[i] = reversed[63u - i] + reversed[0];
        }";
    let mut rig = Rig::new(Backend::Gpu);
    let kernel = register(
        &mut rig,
        CustomKernel::wgsl("count", TEXT)
            .inputs(["x"])
            .output("sorted", OutputShape::like("x"))
            .zeroed_output("counts", OutputShape::fixed([4]))
            .scratch("reversed", OutputShape::like("x"))
            .dispatch(Dispatch::Workgroups([1, 1, 1])),
    );
    let data: Vec<u32> = (0..64).collect();
    let x = rig.spawn(Tensor::from_slice(&data, [64]).unwrap());
    let out = rig.spawn(Tensor::zeros([64], DType::U32).unwrap());
    for _ in 0..3 {
        let kernel = kernel.clone();
        let counts = rig
            .compute(move |ops| {
                let [sorted, counts] = ops.custom_outputs(&kernel, [x], &())?;
                ops.store(sorted, out)?;
                Ok(counts)
            })
            .unwrap();
        assert_eq!(counts.as_slice::<u32>().unwrap(), [16; 4]);
        assert_eq!(rig.read(out).as_slice::<u32>().unwrap(), (63..127).collect::<Vec<u32>>());
    }
}

#[test]
fn modules_of_the_library_can_be_imported() {
    const TEXT: &str = "
        #import tensor::indexing
        #import tensor::reductions // and the rest
        #import tensor::math
        #import tensor::random
        var<storage, read> x: array<f32>;
        var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(100)
        fn main(@builtin(local_invocation_index) i: u32) {
            let n = arrayLength(&x);
            let value = select(0.0, x[i], i < n);
            let sum = workgroup_sum(value, i, 100u);
            let most = workgroup_max(value, i, 100u);
            let least = workgroup_min(value, i, 100u);
            if (i == 0u) {
                y[0] = sum;
                y[1] = most;
                y[2] = least;
                y[3] = erf_f32(0.5) + tanh_f32(0.5);
                y[4] = f32(wrap_index(-1, n) + index_2d(position_2d(13u, 5u), 5u));
                y[5] = f32(hash(1u, 2u) % 1000u);
            }
        }";
    let mut rig = Rig::new(Backend::Gpu);
    let kernel =
        register(&mut rig, CustomKernel::wgsl("library", TEXT).inputs(["x"]).output("y", OutputShape::fixed([6])));
    let x = rig.spawn(Tensor::from_slice(&numbers(90), [90]).unwrap());
    let data = rig.compute(move |ops| ops.custom(&kernel, [x], &())).unwrap().to_f32();
    assert_eq!(data[..3], [4095.0, 90.0, 0.0]);
    assert!((data[3] - (0.520_499_9 + 0.462_117_16)).abs() < 1e-5, "{}", data[3]);
    assert_eq!(data[4], 89.0 + 13.0);
    assert!((0.0..1000.0).contains(&data[5]));
}

#[test]
fn dispatches_by_elements_by_axes_and_by_rules() {
    const GRID: &str = "
        var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(4, 2)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x < 5u && id.y < 3u && id.z < 4u) { y[(id.z * 3u + id.y) * 5u + id.x] = id.x + 10u * id.y + 100u * id.z; }
        }";
    let mut rig = Rig::new(Backend::Gpu);
    let expected: Vec<u32> =
        (0..4).flat_map(|z| (0..3).flat_map(move |y| (0..5).map(move |x| x + 10 * y + 100 * z))).collect();
    let dispatches = [
        ("axes", Dispatch::Axes),
        ("given", Dispatch::Workgroups([2, 2, 4])),
        ("rule", Dispatch::by(|_, outputs| [2, 2, (outputs[0][0] * outputs[0][1]) as u32])),
    ];
    for (name, dispatch) in dispatches {
        let kernel = register(
            &mut rig,
            CustomKernel::wgsl(name, GRID).output("y", OutputShape::fixed([2, 2, 3, 5])).dispatch(dispatch),
        );
        let data = rig.compute(move |ops| ops.custom(&kernel, (), &())).unwrap();
        assert_eq!(data.as_slice::<u32>().unwrap(), expected, "{name}");
    }
    // More workgroups than one dimension allows.
    let many = |name, folded: bool| {
        let index = if folded { "thread_index(wid, nwg, 0u, 1u)" } else { "wid.x" };
        let nwg = if folded { ", @builtin(num_workgroups) nwg: vec3<u32>" } else { "" };
        let text = format!(
            "#import tensor::indexing
            var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(1)
            fn main(@builtin(workgroup_id) wid: vec3<u32>{nwg}) {{
                let i = {index};
                if (i < arrayLength(&y)) {{ y[i] = i; }}
            }}"
        );
        CustomKernel::wgsl(name, text).output("y", OutputShape::fixed([70_000]))
    };
    let folded = register(&mut rig, many("folded", true));
    let data = rig.compute(move |ops| ops.custom(&folded, (), &())).unwrap();
    assert_eq!(data.as_slice::<u32>().unwrap(), (0..70_000).collect::<Vec<u32>>());
    let flat = register(&mut rig, many("flat", false));
    let error = rig.compute(move |ops| ops.custom(&flat, (), &())).unwrap_err();
    assert!(matches!(&error, OpError::Argument { op: "flat", reason } if reason.contains("num_workgroups")), "{error}");
    let none = many("none", true).dispatch(Dispatch::by(|_, _| [1, 0, 1]));
    let none = register(&mut rig, none);
    let error = rig.compute(move |ops| ops.custom(&none, (), &())).unwrap_err();
    assert!(error.to_string().contains("[1, 0, 1] workgroups does nothing"), "{error}");
    assert_eq!(rig.faults(), []);
}

#[test]
fn vectors_and_trusted_kernels() {
    const TEXT: &str = "
        var<storage, read> x: array<vec4<f32>>;
        var<storage, read_write> y: array<vec2<f32>>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x < arrayLength(&x)) { y[id.x] = x[id.x].xy + x[id.x].zw; }
        }";
    let mut rig = Rig::new(Backend::Gpu);
    let pairs = OutputShape::by(|inputs| Ok(Shape::from([inputs[0].elements() / 4, 2])));
    let kernel = CustomKernel::wgsl("pairs", TEXT).inputs(["x"]).output("y", pairs);
    // SAFETY: every access is guarded by the length of the shorter array, and there is no loop.
    let kernel = register(&mut rig, unsafe { kernel.trusted() });
    let x = rig.spawn(Tensor::from_slice(&numbers(8), [8]).unwrap());
    let used = kernel.clone();
    assert_eq!(rig.compute(move |ops| ops.custom(&used, [x], &())).unwrap().to_f32(), [4.0, 6.0, 12.0, 14.0]);
    let odd = rig.spawn(Tensor::from_slice(&numbers(6), [6]).unwrap());
    let error = rig.compute(move |ops| ops.custom(&kernel, [odd], &())).unwrap_err();
    assert!(matches!(&error, OpError::Shape { reason, .. } if reason.contains("4 elements at a time")), "{error}");
}

#[test]
fn a_steady_frame_with_other_params_builds_nothing() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let kernel = register(&mut rig, both("both", "var<uniform>"));
        let (a, b) = (
            rig.spawn(Tensor::from_slice(&numbers(64), [64]).unwrap()),
            rig.spawn(Tensor::full([64], 1.0, DType::F32).unwrap()),
        );
        let out = rig.spawn(Tensor::zeros([64], DType::F32).unwrap());
        let frame = |rig: &mut Rig, number: f32| {
            let kernel = kernel.clone();
            let receiver = rig
                .record(move |ops| {
                    let params = BothParams { scale: number, ..both_params(64) };
                    let [sum, _] = ops.custom_outputs(&kernel, [a, b], &params)?;
                    ops.store(sum, out)?;
                    ops.read(out)
                })
                .unwrap();
            let data = rig.wait(&receiver).unwrap().to_f32();
            assert_eq!(data[3], number * 5.0 + 100.5, "{backend}");
        };
        (0..5).for_each(|i| frame(&mut rig, i as f32));
        let before = rig.figures();
        (0..100).for_each(|i| frame(&mut rig, i as f32));
        let after = rig.figures();
        assert_eq!(after.plans_built, before.plans_built, "{backend}: plans");
        assert_eq!(after.bind_groups_made, before.bind_groups_made, "{backend}: bind groups");
        assert_eq!(after.pipelines_built, before.pipelines_built, "{backend}: pipelines");
        assert_eq!(after.buffers_allocated, before.buffers_allocated, "{backend}: buffers");
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn without_a_cpu_function_the_cpu_backend_says_so() {
    let mut rig = Rig::new(Backend::Cpu);
    let kernel =
        register(&mut rig, CustomKernel::wgsl("gpu_only", DOUBLE).inputs(["x"]).output("y", OutputShape::like("x")));
    let x = rig.spawn(Tensor::zeros([3], DType::F32).unwrap());
    let error = rig.compute(move |ops| ops.custom(&kernel, [x], &())).unwrap_err();
    assert_eq!(error, OpError::NoCpuFunction { op: "gpu_only" });
}

#[test]
fn a_cpu_function_that_fails_fails_its_batch_and_nothing_else() {
    let mut rig = Rig::new(Backend::Cpu);
    let failing = |name, run: fn(f32) -> Result| {
        CustomKernel::wgsl(name, DOUBLE)
            .inputs(["x"])
            .output("y", OutputShape::like("x"))
            .cpu(move |call| run(call.input::<f32>(0)?[0]))
    };
    let error = register(&mut rig, failing("error", |_| Err("no luck".into())));
    let panic = register(&mut rig, failing("panic", |x| panic!("{x} is too much")));
    let x = rig.spawn(Tensor::full([3], 7.0, DType::F32).unwrap());
    let read = |rig: &mut Rig, kernel: TensorKernel| {
        let receiver = rig
            .record(move |ops| {
                let y = ops.custom(&kernel, [x], &())?;
                ops.read(y)
            })
            .unwrap();
        rig.wait(&receiver).unwrap_err()
    };
    let failed = read(&mut rig, error);
    let expected = RunError::CpuFunction { kernel: "error", message: "no luck".to_owned() };
    assert!(
        matches!(&failed, ReadError::Failed(RunError::CpuFunction { kernel: "error", message }) if message.contains("no luck")),
        "{failed} is not {expected}"
    );
    let failed = read(&mut rig, panic);
    assert!(failed.to_string().contains("7 is too much"), "{failed}");
    assert_eq!(values(&mut rig, x), [7.0; 3]);
    assert_eq!(rig.faults().len(), 2);
}

#[test]
fn calls_that_do_not_fit_are_errors_of_the_call() {
    let mut rig = Rig::new(Backend::Gpu);
    let one = register(&mut rig, double("double"));
    let two = register(&mut rig, both("both", "var<uniform>"));
    let x = rig.app.world_mut().spawn((Name::new("x"), Tensor::zeros([3], DType::F32).unwrap())).id();
    let long = rig.spawn(Tensor::zeros([4], DType::F32).unwrap());
    let half = rig.app.world_mut().spawn((Name::new("half"), Tensor::zeros([3], DType::F16).unwrap())).id();
    let gone = rig.app.world_mut().spawn_empty().id();
    rig.app.world_mut().despawn(gone);
    rig.with_ops(|ops| {
        let text = |result: OpResult<TensorValue>| result.unwrap_err().to_string();
        let both = |result: Result<[TensorValue; 2], OpError>| result.unwrap_err().to_string();
        assert_eq!(text(ops.custom(&one, [x, x], &())), "double: the kernel takes 1 inputs (x), not 2");
        assert_eq!(text(ops.custom(&one, [half], &())), "double: \"half\" is f16; input `x` is of f32; cast first");
        assert!(text(ops.custom(&one, [gone], &())).contains("has no tensor"));
        assert!(text(ops.custom(&one, [x], &1u32)).contains("the kernel has no params"));
        assert!(text(ops.custom(&two, [x, x], &both_params(3))).contains("the kernel has 2 outputs, not 1"));
        assert!(both(ops.custom_outputs(&two, [x, x], &())).contains("the params of the kernel are"));
        assert!(both(ops.custom_outputs(&two, [x, long], &both_params(3))).contains("a and b differ"));
        let cast = ops.cast(half, DType::F32).unwrap();
        ops.custom(&one, [cast], &()).unwrap();
        // A number is a tensor with one element.
        ops.custom(&one, [2.0], &()).unwrap();
    });
    let empty = rig.spawn(Tensor::zeros([0, 3], DType::F32).unwrap());
    let used = one.clone();
    assert_eq!(rig.compute(move |ops| ops.custom(&used, [empty], &())).unwrap().shape(), &Shape::from([0, 3]));
    assert_eq!(rig.compute(move |ops| ops.custom(&one, [21.0], &())).unwrap().to_f32(), [42.0]);
    assert_eq!(rig.faults(), []);
}

#[test]
fn a_dropped_kernel_frees_its_name_and_its_recorded_work_still_runs() {
    let mut rig = Rig::new(Backend::Gpu);
    let kernel = register(&mut rig, double("double"));
    let taken = rig.app.register_kernel(double("double"));
    assert_eq!(taken.unwrap_err(), KernelError::NameTaken { kernel: "double" });
    assert_eq!(rig.app.world().resource::<TensorKernels>().iter().count(), 1);
    let x = rig.spawn(Tensor::full([5], 4.0, DType::F32).unwrap());
    let receiver = rig
        .record(move |ops| {
            let y = ops.custom(&kernel, [x], &())?;
            ops.read(y)
        })
        .unwrap();
    assert_eq!(rig.app.world().resource::<TensorKernels>().iter().count(), 0);
    register(&mut rig, double("double"));
    assert_eq!(rig.wait(&receiver).unwrap().to_f32(), [8.0; 5]);
}
