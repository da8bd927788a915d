//! Tensors beyond what the device allows are typed errors before anything is allocated, and nothing else suffers.

use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::{ReadError, RunError};

use crate::common::Rig;

#[test]
fn a_tensor_beyond_the_binding_limit_is_an_error_that_says_how_much_there_is() {
    let mut rig = Rig::new(Backend::Gpu);
    let limits = &rig.app.world().resource::<TensorSupport>().adapter.as_ref().unwrap().limits;
    let limit = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let small = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap());
    rig.read(small);
    let before = rig.figures();
    let elements = (limit / 4 + 1) as usize;
    let big = rig.spawn(Tensor::zeros([elements], DType::F32).unwrap());
    let receiver = rig
        .record(move |ops| {
            let sum = ops.add(big, 1.0)?;
            ops.read(sum)
        })
        .unwrap();
    let error = rig.wait(&receiver).unwrap_err();
    let ReadError::Failed(RunError::Limit { requested, available, .. }) = error else { panic!("{error}") };
    assert_eq!((requested >= limit + 4, available <= limit), (true, true), "{requested} of {available}");
    rig.app.world_mut().despawn(big);
    rig.settle();
    let after = rig.figures();
    assert_eq!(after.device_bytes, before.device_bytes);
    assert!(after.peak_device_bytes < before.peak_device_bytes + (1 << 20), "nothing of that size was allocated");
    assert_eq!(rig.read(small).to_f32(), [1.0, 2.0]);
}
