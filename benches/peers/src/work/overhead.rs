//! The overhead that remains when there is almost nothing to compute.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bevy::prelude::Entity;
use bevy_tensor_compute::support::Backend;
use bevy_tensor_compute::tensor::{DType, Tensor};

use super::{Compute, Field, Work};
use crate::array::Array;
use crate::burn::{BurnRun, BurnWork, Held};
use crate::measure::Contestant;
use crate::ours::{End, Rig};

/// Side of the small matrices.
const SIDE: usize = 16;

/// Small products that each depend on the previous one, so that nothing fuses. Everything is measured on both sides:
/// for ours recording, Bevy's whole frame and reading the result; for burn the calls and reading the result.
pub fn dependent_ops(count: usize) -> Compute {
    let inputs = vec![Array::uniform(13, 1.0, &[SIDE, SIDE]), rotation()];
    Compute::new(format!("{count} small dependent ops"), inputs, move |ops, x| {
        let mut value = ops.matmul(x[0], x[1])?;
        for _ in 1..count {
            value = ops.matmul(value, x[1])?;
        }
        Ok(value)
    })
    .burn(move |x| {
        let weight = x[1].two();
        (0..count).fold(x[0].two(), |value, _| value.matmul(weight.clone())).into()
    })
    .candle(move |x| (0..count).try_fold(x[0].clone(), |value, _| value.matmul(&x[1])))
    .tolerance(1e-4, 1e-4)
    .whole()
}

/// Rotates pairs of elements by different angles, so that values stay bounded after any number of products.
fn rotation() -> Array {
    let mut values = vec![0.0; SIDE * SIDE];
    for pair in 0..SIDE / 2 {
        let (sin, cos) = (0.3 + pair as f32 * 0.4).sin_cos();
        let (i, j) = (2 * pair, 2 * pair + 1);
        (values[i * SIDE + i], values[i * SIDE + j]) = (cos, sin);
        (values[j * SIDE + i], values[j * SIDE + j]) = (-sin, cos);
    }
    Array::fixed(values, &[SIDE, SIDE])
}

/// The cost that tensor work adds to a frame: a frame that adds two small tensors, stores the sum and waits for the
/// device, minus a frame without tensor work, which Bevy runs anyway. burn adds two small tensors and waits for the
/// device. On the CPU backend, which has no device to wait for, the sum is read back.
pub struct FrameOverhead;

fn inputs() -> [Array; 2] {
    [Array::uniform(15, 1.0, &[SIDE]), Array::uniform(16, 1.0, &[SIDE])]
}

impl Work for FrameOverhead {
    fn name(&self) -> &str {
        "per-frame overhead"
    }

    fn ours<'a>(&self, rig: &'a mut Rig) -> Box<dyn Contestant + 'a> {
        let [a, b] = inputs().map(|array| rig.spawn(array.data()));
        let out = rig.spawn(Tensor::zeros([SIDE], DType::F32).expect("small"));
        Box::new(OursOverhead { rig, a, b, out })
    }

    fn rivals(&self, field: &Field) -> Vec<Box<dyn Contestant>> {
        let Some(device) = &field.burn else { return Vec::new() };
        let run: BurnRun = Rc::new(|x: &[Held]| (x[0].one() + x[1].one()).into());
        vec![Box::new(BurnOverhead(BurnWork::new(device, &inputs(), run, End::Corner)))]
    }

    fn tolerance(&self) -> (f32, f32) {
        (1e-6, 1e-6)
    }
}

struct OursOverhead<'a> {
    rig: &'a mut Rig,
    a: Entity,
    b: Entity,
    out: Entity,
}

impl Contestant for OursOverhead<'_> {
    fn name(&self) -> String {
        "ours".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        let Self { rig, a, b, out } = self;
        let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..repetitions {
            let start = Instant::now();
            rig.update();
            rig.sync();
            without += start.elapsed();
            let read = rig.backend() == Backend::Cpu;
            let start = Instant::now();
            let receiver = rig.frame(|ops| {
                let sum = ops.add(*a, *b)?;
                ops.store(sum, *out)?;
                read.then(|| ops.read(*out)).transpose()
            });
            match receiver {
                Some(receiver) => drop(rig.wait(&receiver)),
                None => rig.sync(),
            }
            with += start.elapsed();
        }
        with.saturating_sub(without)
    }

    fn result(&mut self) -> Vec<f32> {
        self.rig.read(self.out)
    }
}

impl Drop for OursOverhead<'_> {
    fn drop(&mut self) {
        self.rig.despawn([self.a, self.b, self.out]);
    }
}

/// One synchronisation per repetition.
struct BurnOverhead(BurnWork);

impl Contestant for BurnOverhead {
    fn name(&self) -> String {
        self.0.name()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        (0..repetitions).map(|_| self.0.run(1)).sum()
    }

    fn result(&mut self) -> Vec<f32> {
        self.0.result()
    }
}
