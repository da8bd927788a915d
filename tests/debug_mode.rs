//! Debug mode traces a NaN or infinity to the op that produced it and to the line that recorded the op.

use bevy::prelude::*;
use bevy_tensor_compute::error::RunError;
use bevy_tensor_compute::pipelines::{PipelineState, TensorPipelines};
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};

/// What was reported: op, line, NaNs, infinities.
fn found(rig: &Rig) -> Vec<(&'static str, u32, u32, u32)> {
    let faults = rig.faults().into_iter().map(|fault| match fault {
        TensorFault::Run(RunError::NonFinite { op, site, nans, infinities, .. }) => {
            assert!(site.file().ends_with("debug_mode.rs"), "{site}");
            (op, site.line(), nans, infinities)
        }
        other => panic!("{other}"),
    });
    faults.collect()
}

#[test]
fn a_nan_is_traced_to_the_op_that_made_it_and_to_its_line() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&[1.0f32, -2.0, 3.0, -4.0], [2, 2]).unwrap());
        let out = rig.spawn(Tensor::zeros([2, 2], DType::F32).unwrap());
        let work = move |ops: &TensorCommands| {
            let fine = ops.matmul(x, x)?;
            let line = line!() + 1;
            let roots = ops.sqrt(fine)?;
            let rows = ops.softmax(roots, -1)?;
            let product = ops.matmul(rows, x)?;
            ops.store(product, out)?;
            Ok(line)
        };
        rig.record(work).unwrap();
        rig.read(out);
        assert_eq!(found(&rig), [], "{backend}: off");
        rig.app.world().resource::<TensorDiagnostics>().set_debug(true);
        let line = rig.record(work).unwrap();
        rig.read(out);
        rig.settle();
        // [1 -2; 3 -4]² is [-5 6; -9 10]. Two of the square roots are NaN, and later ops are not reported.
        let found = found(&rig);
        assert_eq!(found.len(), 1, "{backend}: {found:?}");
        let (op, at, nans, infinities) = found[0];
        assert_eq!((at, nans, infinities), (line, 2, 0), "{backend}: {op}");
        assert!(["sqrt", "matmul"].contains(&op), "{backend}: {op}");
    }
}

#[test]
fn an_infinity_is_traced_and_one_that_came_in_is_not() {
    for backend in BACKENDS {
        let mut rig = Rig::with(
            backend,
            TensorComputePlugin {
                debug: true,
                pipelines: bevy_tensor_compute::PipelineSettings { synchronous: true, ..default() },
                ..default()
            },
        );
        let endless = rig.spawn(Tensor::from_slice(&[1.0f32, f32::INFINITY, 2.0], [3]).unwrap());
        rig.compute(move |ops| ops.add(endless, 1.0)).unwrap();
        rig.settle();
        assert_eq!(found(&rig), [], "{backend}: it came in");
        // A view of every second f16 element, to test positions and packing.
        let halves = rig.spawn(Tensor::from_slice(&[0.0f32, 1.0, 0.0, 3.0, 4.0, 0.0], [2, 3]).unwrap());
        let line = line!() + 2;
        let receiver = rig
            .record(move |ops| {
                let turned = ops.transpose(halves)?;
                let halved = ops.cast(turned, DType::F16)?;
                let kept = ops.recip(halved)?;
                ops.read(kept)
            })
            .unwrap();
        rig.wait(&receiver).unwrap();
        rig.settle();
        let found = found(&rig);
        assert_eq!(found.len(), 1, "{backend}: {found:?}");
        assert_eq!((found[0].2, found[0].3), (0, 3), "{backend}: {found:?}");
        assert!(found[0].1 > line, "{backend}: {found:?}");
    }
}

#[test]
fn the_text_of_every_kernel_can_be_read() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = rig.spawn(Tensor::from_slice(&[1.0f32; 16], [4, 4]).unwrap());
    rig.compute(move |ops| ops.softmax(x, -1)).unwrap();
    let pipelines = rig.app.world().resource::<TensorPipelines>();
    let report = pipelines.report();
    let softmax = report.pipelines.iter().find(|pipeline| &*pipeline.kernel == "softmax").unwrap();
    assert_eq!((softmax.state, softmax.error.as_deref()), (PipelineState::Ready, None));
    let wgsl = pipelines.wgsl(softmax.id).unwrap();
    assert!(wgsl.contains("@compute") && wgsl.len() == softmax.wgsl_bytes, "{wgsl}");
    assert_eq!(pipelines.wgsl(1), None);
}
