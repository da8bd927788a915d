//! Timings of launches by kernel, op and model. While they are off, nothing is measured and there is no cost.

use std::time::{Duration, Instant};

use bevy::prelude::*;
use bevy::render::settings::WgpuSettings;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::figures::{TimingReport, TimingSource};
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};

fn diagnostics(rig: &Rig) -> TensorDiagnostics {
    rig.app.world().resource::<TensorDiagnostics>().clone()
}

/// A model of two matrices.
fn model(rig: &mut Rig) -> (Entity, [Entity; 2]) {
    let world = rig.app.world_mut();
    let model = world.spawn(TensorModel).id();
    let mut tensor = |shape: [usize; 2]| {
        let tensor = Tensor::random_uniform(shape, -1.0, 1.0, 3, DType::F32).unwrap();
        world.spawn((tensor, TensorOf(model))).id()
    };
    (model, [tensor([24, 40]), tensor([40, 16])])
}

/// Runs two launches twice. Returns the line of the first op.
fn run(rig: &mut Rig, [a, b]: [Entity; 2]) -> u32 {
    for _ in 0..2 {
        rig.compute(move |ops| {
            let y = ops.matmul(a, b)?;
            ops.softmax(y, -1)
        })
        .unwrap();
    }
    line!() - 5
}

/// Updates until this many launches have been measured.
fn wait_for(rig: &mut Rig, launches: u64) -> TimingReport {
    let diagnostics = diagnostics(rig);
    let count = |report: &TimingReport| report.kernels.iter().map(|kernel| kernel.stats.count).sum::<u64>();
    rig.step_until(|_| diagnostics.timings().is_some_and(|report| count(&report) >= launches));
    diagnostics.timings().unwrap()
}

#[test]
fn every_launch_has_a_time_by_kernel_by_op_and_by_model() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (model, tensors) = model(&mut rig);
        run(&mut rig, tensors);
        assert_eq!(diagnostics(&rig).timings(), None, "{backend}: off at first");
        diagnostics(&rig).set_timings(true);
        let line = run(&mut rig, tensors);
        let report = wait_for(&mut rig, 4);
        let source = diagnostics(&rig).timing_source(backend);
        assert_eq!(source == TimingSource::HostClock, backend == Backend::Cpu, "{source:?}");
        assert_eq!(report.kernels.len(), 2, "{backend}: {:?}", report.kernels);

        let product = report.kernels.iter().find(|kernel| kernel.kernel == "matmul").unwrap();
        assert_eq!((product.backend, product.stats.count), (backend, 2));
        assert_eq!(product.stats.bytes, 2 * 4 * (24 * 40 + 40 * 16 + 24 * 16));
        assert_eq!(product.stats.flops, 2 * 2 * 24 * 40 * 16);
        for kernel in &report.kernels {
            let stats = kernel.stats;
            assert!(stats.min <= stats.mean && stats.mean <= stats.p95 && stats.last >= stats.min, "{stats:?}");
            assert!(stats.p95 > Duration::ZERO && stats.p95 < Duration::from_secs(10), "{backend}: {stats:?}");
            assert!(stats.gigabytes_per_second().unwrap() > 0.0 && stats.gigaflops().unwrap() > 0.0);
        }

        let op = report.ops.iter().find(|op| op.op == "matmul").unwrap();
        assert!(op.site.file().ends_with("timings.rs"), "{}", op.site);
        assert_eq!((op.site.line(), op.stats.count), (line, 2));
        // The softmax accesses no tensor, but its input was computed from the model's tensors.
        assert_eq!(report.models.len(), 1);
        assert_eq!((report.models[0].model, report.models[0].stats.count), (model, 2));
        assert!(report.models[0].stats.last > Duration::ZERO);

        for frame in &report.frames {
            assert_eq!(frame.backend, backend);
            assert_eq!(frame.spans.iter().map(|span| span.kernel).collect::<Vec<_>>(), ["matmul", "softmax"]);
            assert_eq!(frame.spans[0].start, Duration::ZERO);
            assert!(frame.spans[0].end <= frame.spans[1].start && frame.spans[1].start <= frame.spans[1].end);
            assert!(frame.spans.iter().all(|span| span.model == Some(model) && span.pass == 0));
        }
        assert!(report.frames.len() >= 2);

        diagnostics(&rig).set_timings(false);
        diagnostics(&rig).clear_timings();
        run(&mut rig, tensors);
        rig.settle();
        assert_eq!(diagnostics(&rig).timings(), None, "{backend}: off again");
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn where_the_clock_is_outside_passes_every_launch_gets_its_own() {
    let mut rig = Rig::new(Backend::Gpu);
    let (_, tensors) = model(&mut rig);
    run(&mut rig, tensors);
    let before = rig.figures();
    run(&mut rig, tensors);
    let between = rig.figures();
    assert_eq!(between.passes - before.passes, 2, "one pass a batch");
    diagnostics(&rig).set_timings(true);
    diagnostics(&rig).set_split_passes(true);
    run(&mut rig, tensors);
    assert_eq!(rig.figures().passes - between.passes, 4);
    let report = wait_for(&mut rig, 4);
    for frame in &report.frames {
        let [first, second] = &frame.spans[..] else { panic!("{:?}", frame.spans) };
        assert_eq!((first.pass, second.pass), (0, 1));
        assert!(first.end <= second.start, "{first:?} {second:?}");
    }
    assert_eq!(rig.faults(), []);
}

#[test]
fn a_device_without_a_clock_has_no_times_rather_than_zeros() {
    let clock = wgpu::Features::TIMESTAMP_QUERY
        | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
        | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
    let pipelines = PipelineSettings { synchronous: true, ..default() };
    let plugin = TensorComputePlugin { pipelines, timings: true, ..default() };
    let renderer = WgpuSettings { disabled_features: Some(clock), ..default() };
    let mut rig = Rig::with_renderer(Backend::Gpu, plugin, renderer);
    let (_, tensors) = model(&mut rig);
    run(&mut rig, tensors);
    rig.settle();
    assert_eq!(diagnostics(&rig).timing_source(Backend::Gpu), TimingSource::Unsupported);
    assert_eq!(diagnostics(&rig).timings(), None);
    assert_eq!(rig.faults(), []);
}

#[test]
fn a_steady_app_with_timings_on_still_allocates_nothing() {
    let mut rig = Rig::new(Backend::Gpu);
    let (_, tensors) = model(&mut rig);
    diagnostics(&rig).set_timings(true);
    for _ in 0..20 {
        run(&mut rig, tensors);
    }
    rig.settle();
    let before = rig.figures();
    for _ in 0..20 {
        run(&mut rig, tensors);
    }
    rig.settle();
    let after = rig.figures();
    assert_eq!(after.buffers_allocated, before.buffers_allocated);
    assert_eq!(after.bind_groups_made, before.bind_groups_made);
}

/// The benchmark `pipelines` measures the cost. This test has a bound that holds on a noisy machine but not with a
/// mistake.
#[test]
fn timing_costs_little() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::random_uniform([256, 256], -0.1, 0.1, 5, DType::F32).unwrap());
    let frame = |rig: &mut Rig, on: bool| {
        diagnostics(rig).set_timings(on);
        let start = Instant::now();
        rig.compute(move |ops| {
            let mut value = ops.matmul(x, x)?;
            for _ in 0..7 {
                value = ops.matmul(value, x)?;
            }
            Ok(value)
        })
        .unwrap();
        start.elapsed()
    };
    frame(&mut rig, false);
    frame(&mut rig, true);
    let (mut off, mut on): (Vec<Duration>, Vec<Duration>) =
        (0..15).map(|_| (frame(&mut rig, false), frame(&mut rig, true))).unzip();
    off.sort();
    on.sort();
    let ratio = on[7].as_secs_f64() / off[7].as_secs_f64();
    assert!(ratio < 1.3, "{:?} with timings, {:?} without", on[7], off[7]);
}
