//! Transfers between host and device. Only on the GPU, because the CPU backend has none.
//!
//! Each repetition writes or reads its own tensor. An upload is done when the data is on the device, and its time is
//! that of the frame that wrote it. A readback is done when the caller owns the values on the host.

use std::time::{Duration, Instant};

use bevy::prelude::Entity;
use bevy_tensor_compute::support::Backend;
use bevy_tensor_compute::tensor::{DType, Tensor, TensorData};

use super::{Field, Work};
use crate::array::Array;
use crate::burn::{BurnReadback, BurnUpload};
use crate::measure::Contestant;
use crate::ours::Rig;

/// Bytes in flight per turn.
const TURN_BYTES: usize = 128 << 20;

/// Maximum number of tensors per turn.
const MOST: usize = 32;

pub fn all() -> Vec<Box<dyn Work>> {
    let mut list: Vec<Box<dyn Work>> = Vec::new();
    for megabytes in [1, 64] {
        list.push(Box::new(Transfer::new("upload", true, megabytes)));
        list.push(Box::new(Transfer::new("readback", false, megabytes)));
    }
    list
}

struct Transfer {
    name: String,
    up: bool,
    megabytes: usize,
}

impl Transfer {
    fn new(verb: &str, up: bool, megabytes: usize) -> Self {
        Self { name: format!("{verb} {megabytes} MB"), up, megabytes }
    }

    fn array(&self) -> Array {
        Array::uniform(17, 1.0, &[self.megabytes << 18])
    }

    fn most(&self) -> usize {
        (TURN_BYTES / (self.megabytes << 20)).min(MOST)
    }
}

impl Work for Transfer {
    fn name(&self) -> &str {
        &self.name
    }

    fn runs_on(&self, backend: Backend) -> bool {
        backend == Backend::Gpu
    }

    fn ours<'a>(&self, rig: &'a mut Rig) -> Box<dyn Contestant + 'a> {
        let data = self.array().data();
        let tensors = (0..self.most()).map(|_| rig.spawn(data.clone())).collect();
        let corner = rig.spawn(Tensor::zeros([1], DType::F32).expect("small"));
        Box::new(OursTransfer { rig, data, tensors, corner, up: self.up, last: None })
    }

    fn rivals(&self, field: &Field) -> Vec<Box<dyn Contestant>> {
        let Some(device) = &field.burn else { return Vec::new() };
        let (array, most) = (self.array(), self.most());
        if self.up {
            vec![Box::new(BurnUpload::new(device, &array, most))]
        } else {
            vec![Box::new(BurnReadback::new(device, &array, most))]
        }
    }
}

struct OursTransfer<'a> {
    rig: &'a mut Rig,
    data: TensorData,
    tensors: Vec<Entity>,
    corner: Entity,
    up: bool,
    last: Option<TensorData>,
}

impl Contestant for OursTransfer<'_> {
    fn name(&self) -> String {
        "ours".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        let Self { rig, data, tensors, corner, up, last } = self;
        *last = None;
        let tensors = &tensors[..repetitions];
        let start = Instant::now();
        if *up {
            let receiver = rig.frame(|ops| {
                for &tensor in tensors {
                    ops.write_data(tensor, data)?;
                }
                ops.read(*corner)
            });
            rig.wait(&receiver);
            return start.elapsed();
        }
        let receivers = rig.frame(|ops| tensors.iter().map(|&tensor| ops.read(tensor)).collect::<Result<Vec<_>, _>>());
        let mut read: Vec<TensorData> = receivers.iter().map(|receiver| rig.wait(receiver)).collect();
        let time = start.elapsed();
        *last = read.pop();
        time
    }

    fn result(&mut self) -> Vec<f32> {
        match self.last.take() {
            Some(data) => data.to_f32(),
            None => self.rig.read(self.tensors[0]),
        }
    }

    fn most(&self) -> usize {
        self.tensors.len()
    }
}

impl Drop for OursTransfer<'_> {
    fn drop(&mut self) {
        let spawned = std::mem::take(&mut self.tensors);
        self.rig.despawn(spawned.into_iter().chain([self.corner]));
    }
}
