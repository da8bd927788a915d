//! Kernels from shader assets: the next frame runs the current version of the asset, unless it is invalid.

use bevy::prelude::*;
use bevy::shader::Shader;
use bevy_tensor_compute::error::{KernelError, SourcePlace};
use bevy_tensor_compute::prelude::*;

use super::{DOUBLE, kernels, register};
use crate::common::Rig;

fn put(rig: &mut Rig, handle: &Handle<Shader>, text: &str) {
    let mut shaders = rig.app.world_mut().resource_mut::<Assets<Shader>>();
    shaders.insert(handle.id(), Shader::from_wgsl(text.to_owned(), "test.wgsl")).expect("the handle is alive");
    // The asset event is sent at the end of this frame. The next frame runs the new code.
    rig.app.update();
    rig.app.update();
}

fn run(rig: &mut Rig, kernel: &TensorKernel, x: Entity) -> Vec<f32> {
    let kernel = kernel.clone();
    rig.compute(move |ops| ops.custom(&kernel, [x], &())).unwrap().to_f32()
}

#[test]
fn an_edit_runs_with_the_next_frame_and_a_broken_one_leaves_the_old_code() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap());
    let handle = rig.app.world_mut().resource_mut::<Assets<Shader>>().reserve_handle();
    let kernel = register(
        &mut rig,
        CustomKernel::shader("edited", handle.clone()).inputs(["x"]).output("y", OutputShape::like("x")),
    );
    let used = kernel.clone();
    let early = rig.compute(move |ops| ops.custom(&used, [x], &())).unwrap_err();
    assert_eq!(early, OpError::from(KernelError::NotLoaded { kernel: "edited" }));
    assert_eq!((kernel.is_ready(), kernel.version()), (false, 0));

    put(&mut rig, &handle, DOUBLE);
    assert_eq!((kernel.is_ready(), kernel.version()), (true, 1));
    assert_eq!(run(&mut rig, &kernel, x), [2.0, 4.0, 6.0]);

    put(&mut rig, &handle, &DOUBLE.replace("2.0 *", "10.0 *"));
    assert_eq!(kernel.version(), 2);
    assert_eq!(run(&mut rig, &kernel, x), [10.0, 20.0, 30.0]);
    assert_eq!(rig.faults(), []);

    // A syntax error, then a missing binding. Both are reported, and the previous version keeps running.
    put(&mut rig, &handle, &DOUBLE.replace("2.0 *", "2.0 * *"));
    assert_eq!(run(&mut rig, &kernel, x), [10.0, 20.0, 30.0]);
    let TensorFault::Kernel(KernelError::Wgsl { kernel: "edited", place, .. }) = &rig.faults()[0] else {
        panic!("{:?}", rig.faults());
    };
    assert_eq!(place.map(|place| place.line), Some(6));
    assert!(kernel.error().is_some());
    put(&mut rig, &handle, &DOUBLE.replace("y[id.x] = ", "z[id.x] = ").replace("> y:", "> z:").replace("&y", "&z"));
    assert_eq!(run(&mut rig, &kernel, x), [10.0, 20.0, 30.0]);
    assert_eq!(
        rig.faults()[1],
        TensorFault::Kernel(KernelError::MissingBinding { kernel: "edited", binding: "y", role: "output" })
    );
    assert_eq!((kernel.version(), rig.faults().len()), (2, 2));

    // Then it is fixed.
    put(&mut rig, &handle, &DOUBLE.replace("2.0 *", "3.0 *"));
    assert_eq!(run(&mut rig, &kernel, x), [3.0, 6.0, 9.0]);
    assert_eq!((kernel.version(), kernel.error()), (3, None));
    assert_eq!(kernels(&rig), ["edited"]);
}

#[test]
fn a_shader_that_is_wrong_from_the_start_is_a_fault_and_an_error_of_the_call() {
    let mut rig = Rig::new(Backend::Gpu);
    let shader = Shader::from_wgsl("fn main() { }", "test.wgsl");
    let handle = rig.app.world_mut().resource_mut::<Assets<Shader>>().add(shader);
    let kernel =
        register(&mut rig, CustomKernel::shader("wrong", handle).inputs(["x"]).output("y", OutputShape::like("x")));
    rig.app.update();
    let expected = KernelError::EntryPoint { kernel: "wrong", entry: "main", found: Vec::new() };
    assert_eq!(rig.faults(), [TensorFault::Kernel(expected.clone())]);
    let x = rig.spawn(Tensor::zeros([3], DType::F32).unwrap());
    assert_eq!(rig.compute(move |ops| ops.custom(&kernel, [x], &())).unwrap_err(), expected.into());
    // Reported once, not in every frame.
    rig.app.update();
    rig.app.update();
    assert_eq!(rig.faults().len(), 1);
}

#[test]
fn elementwise_kernels_are_reloaded_too() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap());
    let text = "fn curve(x: f32) -> f32 { return x + 1.0; }";
    let handle = rig.app.world_mut().resource_mut::<Assets<Shader>>().add(Shader::from_wgsl(text, "curve.wgsl"));
    let kernel = register(&mut rig, CustomKernel::elementwise_shader("curve", handle.clone()));
    rig.app.update();
    assert_eq!(run(&mut rig, &kernel, x), [2.0, 3.0, 4.0]);
    put(&mut rig, &handle, &text.replace("1.0", "5.0"));
    assert_eq!(run(&mut rig, &kernel, x), [6.0, 7.0, 8.0]);
    put(&mut rig, &handle, &text.replace("f32)", "vec2<f32>)"));
    assert_eq!(run(&mut rig, &kernel, x), [6.0, 7.0, 8.0]);
    let place = Some(SourcePlace { line: 1, column: 4 });
    assert!(
        matches!(&rig.faults()[..], [TensorFault::Kernel(error @ KernelError::Wgsl { .. } | error @ KernelError::Elementwise { .. })] if error.place().is_some()),
        "{:?} at {place:?}",
        rig.faults()
    );
}
