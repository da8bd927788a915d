//! The savings of shares and views: a matcher that uses the outputs of two encoders, BERT `[128, 768]` and ViT `[197,
//! 768]`, with two `[768, 512]` projections. In one variant it shares their tensors and views their first rows. In the
//! other it has copies that are updated every frame. Run with `cargo bench --bench sharing`.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use common::{BACKENDS, Rig};

/// Number of timed frames, alternating between the variants.
const FRAMES: usize = 60;

fn main() {
    println!("{:>8} {:>8} {:>14} {:>14} {:>12}", "backend", "matcher", "bytes in all", "bytes added", "ms a frame");
    for backend in BACKENDS {
        let mut ways = [Way::new(backend, false), Way::new(backend, true)];
        for frame in 0..FRAMES + 10 {
            for way in &mut ways {
                let ms = way.frame();
                // The first frames compile and allocate.
                if frame >= 10 {
                    way.times.push(ms);
                }
            }
        }
        let [shared, copied] = ways.map(|way| {
            let name = if way.copies.is_some() { "copies" } else { "shares" };
            let ms = median(way.times);
            println!("{:>8} {name:>8} {:>14} {:>14} {ms:>12.3}", backend.to_string(), way.bytes, way.added);
            (way.bytes, ms)
        });
        println!(
            "{:>8} copies take {:.2} times the memory and {:.2} times the time",
            "",
            copied.0 as f64 / shared.0 as f64,
            copied.1 / shared.1
        );
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Way {
    rig: Rig,
    /// The outputs of the encoders.
    outputs: [Entity; 2],
    /// What the matcher reads.
    rows: [Entity; 2],
    projections: [Entity; 2],
    scores: Entity,
    /// The matcher's own copies of the outputs.
    copies: Option<[Entity; 2]>,
    bytes: u64,
    /// Bytes that the matcher added for the outputs.
    added: u64,
    times: Vec<f64>,
}

impl Way {
    fn new(backend: Backend, copy: bool) -> Self {
        let mut rig = Rig::new(backend);
        let world = rig.app.world_mut();
        let [text, vision, matcher] =
            ["text", "vision", "matcher"].map(|name| world.spawn((TensorModel, Name::new(name))).id());
        let normal =
            |shape: [usize; 2], seed| Tensor::random_normal(shape, 0.0, 1.0, seed, DType::F32).expect("floats");
        let mut own = |model: Entity, name: &'static str, tensor: Tensor| {
            world.spawn((Name::new(name), tensor, TensorOf(model))).id()
        };
        let outputs = [own(text, "tokens", normal([128, 768], 1)), own(vision, "patches", normal([197, 768], 2))];
        let projections =
            [own(matcher, "of text", normal([768, 512], 3)), own(matcher, "of vision", normal([768, 512], 4))];
        let scores = own(matcher, "scores", Tensor::zeros([1, 1], DType::F32).expect("small"));
        let before = Self::bytes(&mut rig);
        let mut copies = None;
        let rows = if copy {
            let own = |rig: &mut Rig, shape: [usize; 2], name: &'static str| {
                let tensor = Tensor::zeros(shape, DType::F32).expect("floats");
                rig.app.world_mut().spawn((Name::new(name), tensor, TensorOf(matcher))).id()
            };
            let owned = [own(&mut rig, [128, 768], "tokens"), own(&mut rig, [197, 768], "patches")];
            copies = Some(owned);
            owned
        } else {
            let mut state = SystemState::<TensorModels>::new(rig.app.world_mut());
            let mut models = state.get_mut(rig.app.world_mut()).expect("the plugin is there");
            let first = |tensor: &Tensor| tensor.window(0, 768)?.reshape([1, 768]);
            let rows = [(text, "tokens"), (vision, "patches")]
                .map(|(model, name)| models.share_view(model, name, matcher, name, first).expect("both are there"));
            state.apply(rig.app.world_mut());
            rows
        };
        let after = Self::bytes(&mut rig);
        let mut way = Self {
            rig,
            outputs,
            rows,
            projections,
            scores,
            copies,
            bytes: 0,
            added: after - before,
            times: Vec::new(),
        };
        way.frame();
        way.bytes = Self::bytes(&mut way.rig);
        way
    }

    /// Bytes of all storages, each counted once.
    fn bytes(rig: &mut Rig) -> u64 {
        rig.memory(|memory| memory.total().bytes)
    }

    /// Runs a frame in which the outputs of the encoders change and the matcher compares their first rows. Returns the
    /// ms until the result arrives.
    fn frame(&mut self) -> f64 {
        let (outputs, rows, projections) = (self.outputs, self.rows, self.projections);
        let (scores, copies) = (self.scores, self.copies);
        let start = Instant::now();
        let receiver = self.rig.record(move |ops| -> Result<TensorReceiver, OpError> {
            for output in outputs {
                let next = ops.mul(output, 0.999)?;
                ops.store(next, output)?;
            }
            let mut sides = Vec::new();
            for i in 0..2 {
                let row = match copies {
                    Some(copies) => {
                        ops.store(outputs[i], copies[i])?;
                        ops.slice(copies[i], 0, 0, 1)?.into()
                    }
                    None => TensorOperand::from(rows[i]),
                };
                let projected = ops.matmul(row, projections[i])?;
                sides.push(ops.l2_normalize(projected, 1)?);
            }
            let score = ops.matmul_nt(sides[0], sides[1])?;
            ops.store(score, scores)?;
            ops.read(scores)
        });
        let score = self.rig.wait(&receiver.expect("shapes fit")).expect("a value");
        assert!(score.to_f32()[0].abs() <= 1.001, "a cosine");
        start.elapsed().as_secs_f64() * 1e3
    }
}
