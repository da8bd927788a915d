//! Diagnostics of a running app are consistent.

use std::time::Duration;

use bevy::diagnostic::{DiagnosticPath, DiagnosticsStore};
use bevy::prelude::*;
use bevy_tensor_compute::figures::TimingReport;
use bevy_tensor_compute::memory::PoolKind;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::reports::diagnostic_paths;

use crate::common::{BACKENDS, Rig};

/// Two models that share a tensor, and a tensor without a model. All are used, so that they are resident on their
/// backend.
fn models(rig: &mut Rig) -> ([Entity; 2], Vec<Entity>) {
    let world = rig.app.world_mut();
    let models = ["encoder", "decoder"].map(|name| world.spawn((TensorModel, Name::new(name))).id());
    let mut tensors = Vec::new();
    for (model, size) in [(Some(models[0]), 64), (Some(models[0]), 96), (Some(models[1]), 48), (None, 32)] {
        let tensor = Tensor::random_uniform([size, size], -1.0, 1.0, 7, DType::F32).unwrap();
        let mut entity = world.spawn((tensor, Name::new(format!("matrix {size}"))));
        if let Some(model) = model {
            entity.insert(TensorOf(model));
        }
        tensors.push(entity.id());
    }
    let shared = world.get::<Tensor>(tensors[0]).unwrap().clone();
    world.spawn((shared, TensorOf(models[1]), Name::new("shared")));
    (models, tensors)
}

fn run(rig: &mut Rig, tensors: &[Entity], frames: usize) {
    for _ in 0..frames {
        for &x in tensors {
            rig.record(move |ops| {
                let product = ops.matmul(x, x)?;
                let product = ops.softmax(product, -1)?;
                ops.store(product, x)
            })
            .unwrap();
        }
        rig.app.update();
    }
}

fn value(rig: &Rig, path: &DiagnosticPath) -> Option<f64> {
    rig.app.world().resource::<DiagnosticsStore>().get(path).expect("it is registered").value()
}

#[cfg(feature = "inspector")]
#[test]
fn the_models_bytes_add_up_to_the_total() {
    use bevy_tensor_compute::inspector::InspectorSnapshot;

    let plugin = TensorInspectorPlugin { open: true, window: false, refresh: Duration::ZERO, ..default() };
    let mut rig = Rig::with_plugin(Backend::Gpu, plugin);
    let (models, tensors) = models(&mut rig);
    run(&mut rig, &tensors, 3);
    rig.settle();
    let figures = rig.figures();
    let snapshot = rig.app.world().resource::<InspectorSnapshot>().clone();
    let sum: u64 = snapshot.models.iter().map(|row| row.own_device_bytes).sum();
    assert!(sum > 0);
    assert_eq!(sum, figures.device_bytes, "sum over models = total");
    let [first, second] = models.map(|model| snapshot.models.iter().find(|row| row.model == Some(model)).unwrap());
    assert_eq!((first.usage.tensors, second.usage.tensors), (2, 2));
    assert!(second.usage.device_bytes > second.own_device_bytes, "what is shared counts in each, and once in all");
    let parts = figures.device_bytes + figures.scratch_bytes + figures.plan_bytes + figures.pool_idle_bytes;
    assert_eq!(parts, figures.total_device_bytes, "kinds = total");
    let sample = snapshot.history.back().unwrap();
    assert_eq!(sample.total(), figures.total_device_bytes);
    assert_eq!(sample.models.iter().map(|(_, bytes)| bytes).sum::<u64>(), sample.tensors);
}

#[test]
fn buffers_by_size_add_up_to_the_figures() {
    let mut rig = Rig::new(Backend::Gpu);
    let (_, tensors) = models(&mut rig);
    run(&mut rig, &tensors, 3);
    rig.read(tensors[0]);
    rig.settle();
    let (figures, pool) = (rig.figures(), rig.app.world().resource::<TensorDiagnostics>().pool());
    let bytes = |kinds: &[PoolKind], count: fn(&bevy_tensor_compute::memory::PoolClass) -> usize| {
        pool.iter().filter(|class| kinds.contains(&class.kind)).map(|class| class.bytes * count(class) as u64).sum()
    };
    let used: u64 = bytes(&[PoolKind::Tensors, PoolKind::Plans], |class| class.used);
    assert_eq!(used, figures.device_bytes + figures.scratch_bytes + figures.plan_bytes);
    let idle: u64 = bytes(&[PoolKind::Tensors, PoolKind::Plans], |class| class.idle);
    assert_eq!(idle, figures.pool_idle_bytes);
    let staging: u64 = bytes(&[PoolKind::Staging], |class| class.used + class.idle);
    assert_eq!(staging, figures.staging_bytes);
}

#[test]
fn kernel_times_add_up_to_no_more_than_their_frame() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (_, tensors) = models(&mut rig);
        let diagnostics = rig.app.world().resource::<TensorDiagnostics>().clone();
        diagnostics.set_timings(true);
        run(&mut rig, &tensors, 12);
        let launches = |report: &TimingReport| report.frames.iter().map(|frame| frame.spans.len()).sum::<usize>();
        rig.step_until(|_| diagnostics.timings().is_some_and(|report| launches(&report) >= 8 * 8));
        let report = diagnostics.timings().unwrap();
        for frame in &report.frames {
            let (busy, length) = (frame.busy(), frame.length());
            assert!(busy > Duration::ZERO && busy <= length.mul_f64(1.05), "{backend}: {busy:?} of {length:?}");
        }
        // The totals by kernel, by op and by model count the same launches.
        let kernels: u64 = report.kernels.iter().map(|kernel| kernel.stats.count).sum();
        let ops: u64 = report.ops.iter().map(|op| op.stats.count).sum();
        assert_eq!(kernels, ops, "{backend}");
        let time = |frame: &bevy_tensor_compute::figures::FrameTimeline| frame.busy();
        if let Some((number, busy)) = diagnostics.last_complete_frame(backend) {
            let frame = report.frames.iter().find(|frame| frame.backend == backend && frame.frame == number);
            assert_eq!(frame.map(time), Some(busy), "{backend}");
        }
    }
}

#[test]
fn the_store_has_the_main_figures() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (_, tensors) = models(&mut rig);
        run(&mut rig, &tensors, 3);
        assert_eq!(value(&rig, &diagnostic_paths::GPU_MS), None, "{backend}: not measured is not 0");
        rig.app.world().resource::<TensorDiagnostics>().set_timings(true);
        run(&mut rig, &tensors, 8);
        let (launches, ms) = match backend {
            Backend::Gpu => (diagnostic_paths::DISPATCHES, diagnostic_paths::GPU_MS),
            Backend::Cpu => (diagnostic_paths::CPU_KERNELS, diagnostic_paths::CPU_MS),
        };
        rig.step_until(|app| app.world().resource::<DiagnosticsStore>().get(&ms).unwrap().value().is_some());
        let store = rig.app.world().resource::<DiagnosticsStore>();
        // The CPU backend runs asynchronously, so the launches of a frame may be counted in later frames.
        let counted: f64 = store.get(&launches).unwrap().values().sum();
        let all = rig.figures().dispatches + rig.figures().cpu_steps;
        assert!(counted >= 1.0 && counted <= all as f64, "{backend}: {counted} of {all} launches");
        let figures = rig.figures();
        assert_eq!(value(&rig, &diagnostic_paths::DEVICE_BYTES), Some(figures.total_device_bytes as f64));
        assert_eq!(value(&rig, &diagnostic_paths::TENSOR_BYTES), Some(figures.device_bytes as f64));
        assert_eq!(value(&rig, &diagnostic_paths::PIPELINES), Some(figures.pipelines_built as f64));
        assert_eq!(value(&rig, &diagnostic_paths::READBACKS), Some(figures.readbacks_now as f64));
        let time = value(&rig, &ms).unwrap();
        assert!(time > 0.0 && time < 10_000.0, "{backend}: {time} ms");
    }
}
