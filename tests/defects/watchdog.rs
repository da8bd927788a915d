//! The watchdog: work that does not move on is reported, and recovers without a word.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bevy::app::SubApp;
use bevy::prelude::*;
use bevy::render::RenderApp;
use bevy::render::error_handler::{RenderErrorHandler, RenderErrorPolicy};
use bevy::render::renderer::RenderDevice;
use bevy::render::settings::RenderCreation;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::error::{Stall, StallStage};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::reports::{WatchdogClock, WatchdogSettings};

use crate::common::Rig;

/// An app whose watchdog has a clock of its own and waits ten of its seconds.
fn watched(backend: Backend) -> Rig {
    let patience = Some(Duration::from_secs(10));
    let watchdog = WatchdogSettings { gpu: patience, cpu: patience };
    let pipelines = PipelineSettings { synchronous: true, ..default() };
    let mut rig = Rig::with(backend, TensorComputePlugin { watchdog, pipelines, ..default() });
    rig.app.init_resource::<WatchdogClock>();
    rig
}

/// Updates once, a second later.
fn tick(rig: &mut Rig) {
    rig.app.world_mut().resource_mut::<WatchdogClock>().0 += Duration::from_secs(1);
    rig.app.update();
}

fn reported(rig: &Rig) -> Vec<Stall> {
    let stall = |fault: TensorFault| match fault {
        TensorFault::Stalled(stall) => stall,
        other => panic!("{other}"),
    };
    rig.faults().into_iter().map(stall).collect()
}

fn listed(rig: &Rig) -> Vec<StallStage> {
    let stalls = rig.app.world().resource::<TensorDiagnostics>().stalls();
    stalls.into_iter().map(|stall| stall.stage).collect()
}

/// A kernel of the CPU backend that waits until the sender sends or is dropped.
fn held(rig: &mut Rig) -> (TensorKernel, Sender<()>) {
    let (sender, receiver) = channel::<()>();
    let receiver = Arc::new(Mutex::new(receiver));
    let wait = move |x: f32| {
        let _ = receiver.lock().unwrap().recv();
        x + 1.0
    };
    let kernel = CustomKernel::elementwise("held", "fn held(x: f32) -> f32 { return x + 1.0; }").cpu_element(wait);
    (rig.app.register_kernel(kernel).unwrap(), sender)
}

// 11
#[test]
fn a_cpu_backend_that_does_not_answer_is_reported_once_and_recovers() {
    let mut rig = watched(Backend::Cpu);
    let (kernel, sender) = held(&mut rig);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32], [1]).unwrap());
    let receiver = rig.record(move |ops| ops.read(ops.custom(&kernel, [x], &())?)).unwrap();
    for _ in 0..9 {
        tick(&mut rig);
    }
    assert_eq!((reported(&rig), receiver.try_recv().is_none()), (vec![], true));
    for _ in 0..20 {
        tick(&mut rig);
    }
    let stalls = reported(&rig);
    assert!(matches!(stalls[..], [Stall { stage: StallStage::Cpu, pending: 1, .. }]), "{stalls:?}");
    assert!(stalls[0].waited >= Duration::from_secs(10), "{stalls:?}");
    assert_eq!(listed(&rig), [StallStage::Cpu]);
    sender.send(()).unwrap();
    assert_eq!(rig.wait(&receiver).unwrap().to_f32(), [2.0]);
    rig.step_until(|app| app.world().resource::<TensorDiagnostics>().stalls().is_empty());
    // An idle backend does not stall.
    for _ in 0..30 {
        tick(&mut rig);
    }
    assert_eq!((reported(&rig).len(), listed(&rig)), (1, vec![]));
}

// 11
#[test]
fn the_watchdog_can_be_switched_off_and_on_while_work_waits() {
    let mut rig = watched(Backend::Cpu);
    rig.app.insert_resource(WatchdogSettings { gpu: None, cpu: None });
    let (kernel, sender) = held(&mut rig);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32], [1]).unwrap());
    let receiver = rig.record(move |ops| ops.read(ops.custom(&kernel, [x], &())?)).unwrap();
    for _ in 0..100 {
        tick(&mut rig);
    }
    assert_eq!(reported(&rig), []);
    rig.app.insert_resource(WatchdogSettings::default());
    tick(&mut rig);
    assert_eq!(reported(&rig).len(), 1, "it has waited for more than a minute");
    drop(sender);
    assert_eq!(rig.wait(&receiver).unwrap().to_f32(), [2.0]);
}

// 11
#[test]
fn a_device_that_does_not_answer_is_reported_and_its_answer_still_arrives() {
    let mut rig = watched(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    assert_eq!(rig.read(x).to_f32(), [1.0, 2.0]);
    rig.settle();
    rig.app.world().resource::<TensorDiagnostics>().hold_answers(true);
    let receiver = rig.record(move |ops| ops.read(ops.add(x, 1.0)?)).unwrap();
    for _ in 0..30 {
        tick(&mut rig);
    }
    let stalls = reported(&rig);
    assert!(matches!(stalls[..], [Stall { stage: StallStage::Device, pending: 1.., .. }]), "{stalls:?}");
    assert_eq!(listed(&rig), [StallStage::Device]);
    rig.app.world().resource::<TensorDiagnostics>().hold_answers(false);
    assert_eq!(rig.wait(&receiver).unwrap().to_f32(), [2.0, 3.0]);
    rig.step_until(|app| app.world().resource::<TensorDiagnostics>().stalls().is_empty());
    assert_eq!(reported(&rig).len(), 1);
}

// 11
#[test]
fn a_lost_device_is_not_waited_for() {
    let mut rig = watched(Backend::Gpu);
    rig.app.insert_resource(RenderErrorHandler(|_, _, _| RenderErrorPolicy::Recover(RenderCreation::default())));
    let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    rig.read(x);
    let before = rig.figures().devices;
    rig.app.world().resource::<TensorDiagnostics>().hold_answers(true);
    let receiver = rig.record(move |ops| ops.read(ops.add(x, 1.0)?)).unwrap();
    tick(&mut rig);
    rig.app.world().resource::<RenderDevice>().wgpu_device().destroy();
    rig.step_until(|app| app.world().resource::<TensorDiagnostics>().figures().devices > before);
    // Answered before the device was lost, or with an error.
    let _ = rig.wait(&receiver);
    for _ in 0..30 {
        tick(&mut rig);
    }
    assert_eq!(listed(&rig), []);
}

/// Takes the renderer away and puts it back.
fn without_renderer<T>(rig: &mut Rig, work: impl FnOnce(&mut Rig) -> T) -> T {
    let renderer: SubApp = rig.app.remove_sub_app(RenderApp).expect("a renderer");
    let result = work(rig);
    rig.app.insert_sub_app(RenderApp, renderer);
    result
}

// 11
#[test]
fn a_renderer_that_stands_still_is_reported_and_nothing_is_lost() {
    let mut rig = watched(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    assert_eq!(rig.read(x).to_f32(), [1.0, 2.0]);
    let receivers = without_renderer(&mut rig, |rig| {
        // Without work there is nothing to report.
        for _ in 0..20 {
            tick(rig);
        }
        assert_eq!(reported(rig), []);
        let mut receivers = Vec::new();
        for _ in 0..15 {
            receivers.push(rig.record(move |ops| {
                ops.store(ops.add(x, 1.0)?, x)?;
                ops.read(x)
            }));
            tick(rig);
        }
        let stalls = reported(rig);
        assert!(matches!(stalls[..], [Stall { stage: StallStage::Renderer, pending: 1.., .. }]), "{stalls:?}");
        receivers
    });
    for (i, receiver) in receivers.into_iter().enumerate() {
        let more = (i + 1) as f32;
        assert_eq!(rig.wait(&receiver.unwrap()).unwrap().to_f32(), [1.0 + more, 2.0 + more]);
    }
    rig.step_until(|app| app.world().resource::<TensorDiagnostics>().stalls().is_empty());
    assert_eq!(reported(&rig).len(), 1);
}
