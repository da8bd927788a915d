//! The cost of the inspector: open with 1,000 tensors and 200 kernels, and closed. Run with `cargo bench --bench
//! inspector`.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use bevy::prelude::*;
use bevy_egui::egui;
use bevy_tensor_compute::figures::{KernelTiming, TimingStats};
use bevy_tensor_compute::inspector::{
    InspectorPanel, InspectorSnapshot, InspectorState, TensorInspector, inspector_window,
};
use bevy_tensor_compute::prelude::*;
use common::Rig;

const TENSORS: usize = 1_000;
const KERNELS: usize = 200;

fn main() {
    let (closed, open, mut snapshot) = gathering();
    println!("{TENSORS} tensors, {KERNELS} launches a frame, CPU backend: a frame of the app, mean");
    println!("{:>34} {closed:>10.1} µs", "closed");
    println!("{:>34} {open:>10.1} µs", "open, every figure of every panel");
    let gather = (open - closed).max(0.0);
    add_kernels(&mut snapshot);
    println!("\n{KERNELS} kernels: drawing a frame, median (the budget is 2 ms in all)");
    println!("{:>12} {:>14} {:>14} {:>18}", "panel", "layout µs", "meshes µs", "with figures ms");
    for panel in InspectorPanel::ALL {
        let (layout, meshes) = drawing(panel, &snapshot);
        let all = (gather + layout + meshes) / 1e3;
        println!("{:>12} {layout:>14.1} {meshes:>14.1} {all:>18.2}", panel.name());
    }
}

#[derive(Resource)]
struct Work(Entity);

fn record(work: Res<Work>, ops: TensorCommands) -> Result {
    let mut value = ops.matmul(work.0, work.0)?;
    for _ in 1..KERNELS {
        value = ops.matmul(value, work.0)?;
    }
    ops.store(value, work.0)?;
    Ok(())
}

/// Mean µs of a frame with the inspector closed and open, measured alternately, and the last snapshot.
fn gathering() -> (f64, f64, InspectorSnapshot) {
    let mut rig = Rig::with_plugin(Backend::Cpu, TensorInspectorPlugin { window: false, ..default() });
    rig.app.add_systems(Update, record);
    let model = rig.app.world_mut().spawn((TensorModel, Name::new("model"))).id();
    for i in 0..TENSORS {
        let tensor = Tensor::zeros([4, 4], DType::F32).expect("small");
        let name = Name::new(format!("layer {i} weights"));
        let tensor = rig.app.world_mut().spawn((tensor, TensorOf(model), name)).id();
        rig.record(move |ops| ops.store(0.5, tensor)).expect("a tensor");
        rig.app.insert_resource(Work(tensor));
    }
    let [mut closed, mut open] = [Vec::new(), Vec::new()];
    for round in 0..10 {
        for (opened, times) in [(false, &mut closed), (true, &mut open)] {
            rig.app.world_mut().resource_mut::<TensorInspector>().open = opened;
            for frame in 0..60 {
                let start = Instant::now();
                rig.app.update();
                // Skips the first frames.
                if round > 0 && frame >= 10 {
                    times.push(start.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
    }
    let mean = |times: Vec<f64>| times.iter().sum::<f64>() / times.len() as f64;
    // Figures are collected five times per second. The mean includes that cost, the median would hide it.
    (mean(closed), mean(open), rig.app.world().resource::<InspectorSnapshot>().clone())
}

/// Adds as many different kernels as a large app has.
fn add_kernels(snapshot: &mut InspectorSnapshot) {
    let Some(timings) = &mut snapshot.timings else { return };
    timings.kernels = (0..KERNELS)
        .map(|i| {
            let time = Duration::from_micros(10 + i as u64);
            let stats =
                TimingStats { count: 9, window: 9, last: time, min: time, mean: time, p95: time, bytes: 99, flops: 99 };
            KernelTiming { backend: Backend::Gpu, kernel: "matmul", variant: format!("form {i}").into(), stats }
        })
        .collect();
    for kernel in &timings.kernels {
        let history = (0..60).map(|i| i as f32).collect();
        snapshot.kernel_history.insert((kernel.backend, kernel.kernel, kernel.variant.clone()), history);
    }
}

/// Median µs to lay out a panel and to tessellate it.
fn drawing(panel: InspectorPanel, snapshot: &InspectorSnapshot) -> (f64, f64) {
    let mut inspector = TensorInspector::from(TensorInspectorPlugin { open: true, ..default() });
    inspector.panel = panel;
    let mut state = InspectorState::default();
    state.tensors.selected = snapshot.tensors.first().map(|row| row.entity);
    let ctx = egui::Context::default();
    let screen = egui::Rect::from_min_size(egui::Pos2::ZERO, egui::vec2(1920.0, 1080.0));
    let [mut layout, mut meshes] = [Vec::new(), Vec::new()];
    for frame in 0..120 {
        let input = egui::RawInput { screen_rect: Some(screen), time: Some(f64::from(frame) / 60.0), ..default() };
        let start = Instant::now();
        ctx.begin_pass(input);
        black_box(inspector_window(&ctx, &mut inspector, snapshot, &mut state));
        let output = ctx.end_pass();
        let laid_out = start.elapsed();
        black_box(ctx.tessellate(output.shapes, output.pixels_per_point));
        if frame >= 20 {
            layout.push(laid_out.as_secs_f64() * 1e6);
            meshes.push((start.elapsed() - laid_out).as_secs_f64() * 1e6);
        }
    }
    (median(layout), median(meshes))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
