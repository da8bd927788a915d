//! Compile costs: the first inference of a 12-layer encoder with and without warm-up, frame times while pipelines
//! compile, and the overhead of timings. Run with `cargo bench --bench pipelines`. Each variant runs in its own
//! process, without the driver's disk cache.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use bevy::prelude::*;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::pipelines::{WarmUpState, WarmUpStatus};
use bevy_tensor_compute::prelude::*;
use common::Rig;

const LAYERS: usize = 12;
const TOKENS: usize = 64;
const WIDTH: usize = 192;
const HEADS: usize = 4;
/// A frame at 60 frames per second.
const FRAME: Duration = Duration::from_micros(16_667);

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("first-cold") => first(false),
        Some("first-warm") => first(true),
        _ => {
            let (cold, warm) = (child("first-cold"), child("first-warm"));
            println!("first inference of {LAYERS} layers, ms");
            println!("{:>24} {:>10.1}", "without warm-up", cold[0]);
            println!("{:>24} {:>10.1}", "after a warm-up", warm[0]);
            println!("{:>24} {:>10.1}", "later ones", warm[1]);
            println!("{:>24} {:>10.2}", "sooner by", cold[0] / warm[0]);
            println!("\nframes of 1/60 s during a warm-up of {:.0} pipelines ({:.0} ms), ms", warm[2], warm[3]);
            println!("{:>24} {:>10} {:>10} {:>10}", "", "median", "longest", "ratio");
            for (name, at) in [("while they compile", 4), ("while each runs once", 6)] {
                println!("{name:>24} {:>10.2} {:>10.2} {:>10.2}", warm[at], warm[at + 1], warm[at + 1] / warm[at]);
            }
            timings();
        }
    }
}

/// Runs one half in a separate process, as on a first start. Returns the figures it prints.
fn child(mode: &str) -> Vec<f64> {
    let program = std::env::current_exe().expect("this program is a file");
    let output = std::process::Command::new(program)
        .arg(mode)
        .env("MESA_SHADER_CACHE_DISABLE", "true")
        .output()
        .expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("figures ")).unwrap_or_else(|| panic!("{output:?}"));
    line.split(' ').skip(1).map(|figure| figure.parse().expect("a number")).collect()
}

#[derive(Clone, Copy)]
struct Layer {
    qkv: Entity,
    out: Entity,
    up: Entity,
    down: Entity,
}

struct Encoder {
    input: Entity,
    layers: Vec<Layer>,
}

fn spawn(rig: &mut Rig) -> Encoder {
    let mut matrix = |shape: [usize; 2]| {
        let tensor = Tensor::random_normal(shape, 0.0, 0.05, 7, DType::F32).expect("a sensible size");
        rig.spawn(tensor)
    };
    let input = matrix([TOKENS, WIDTH]);
    let layers = (0..LAYERS).map(|_| Layer {
        qkv: matrix([WIDTH, 3 * WIDTH]),
        out: matrix([WIDTH, WIDTH]),
        up: matrix([WIDTH, 4 * WIDTH]),
        down: matrix([4 * WIDTH, WIDTH]),
    });
    Encoder { input, layers: layers.collect() }
}

fn record<'a>(ops: &'a TensorCommands, encoder: &Encoder) -> OpResult<TensorValue<'a>> {
    let mut x = ops.mul(encoder.input, 1.0)?;
    for layer in &encoder.layers {
        let y = ops.layer_norm(x, None, None, -1, 1e-5)?;
        let y = ops.matmul(y, layer.qkv)?;
        let y = ops.reshape(y, &[1, TOKENS as isize, (3 * HEADS) as isize, (WIDTH / HEADS) as isize])?;
        let y = ops.permute(y, &[0, 2, 1, 3])?;
        let mut parts = ops.split(y, 1, &[HEADS, HEADS, HEADS])?.into_iter();
        let (Some(q), Some(k), Some(v)) = (parts.next(), parts.next(), parts.next()) else {
            unreachable!("it was split into three")
        };
        let y = ops.attention(q, k, v, AttentionSettings::default())?;
        let y = ops.permute(y, &[0, 2, 1, 3])?;
        let y = ops.reshape(y, &[TOKENS as isize, WIDTH as isize])?;
        let y = ops.matmul(y, layer.out)?;
        x = ops.add(x, y)?;
        let y = ops.layer_norm(x, None, None, -1, 1e-5)?;
        let y = ops.matmul(y, layer.up)?;
        let y = ops.gelu(y)?;
        let y = ops.matmul(y, layer.down)?;
        x = ops.add(x, y)?;
    }
    Ok(x)
}

/// Frame times in ms.
#[derive(Default)]
struct Frames(Vec<f64>);

impl Frames {
    /// Updates the app at display rate until `done` returns true.
    fn until(&mut self, rig: &mut Rig, mut done: impl FnMut(&mut App) -> bool) {
        while !done(&mut rig.app) {
            let start = Instant::now();
            rig.app.update();
            std::thread::sleep(FRAME.saturating_sub(start.elapsed()));
            self.0.push(ms(start));
        }
    }
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Runs one inference. Returns its time in ms.
fn infer(rig: &mut Rig, encoder: &Encoder) -> f64 {
    let start = Instant::now();
    let mut receiver = None;
    rig.with_ops(|ops| receiver = record(ops, encoder).and_then(|value| ops.read(value)).ok());
    let receiver = receiver.expect("the work records");
    rig.wait(&receiver).expect("the work runs");
    ms(start)
}

/// The first inference of an app, and the frames before it.
fn first(warm: bool) {
    let plugin = TensorComputePlugin { pipelines: PipelineSettings::default(), ..default() };
    let mut rig = Rig::with(Backend::Gpu, plugin);
    let encoder = spawn(&mut rig);
    let mut frames = Frames::default();
    let mut idle = 0;
    frames.until(&mut rig, |_| {
        idle += 1;
        idle > 30
    });
    let (mut compiling, mut running) = (Frames::default(), Frames::default());
    let start = Instant::now();
    if warm {
        rig.with_ops(|ops| {
            ops.warm_up("encoder", 0, |ops| record(ops, &encoder).and_then(|value| ops.read(value)).map(drop))
                .expect("the work records");
        });
        let state = |app: &mut App| app.world().resource::<WarmUpStatus>().clone();
        compiling
            .until(&mut rig, |app| state(app).warm_ups.iter().any(|warm_up| warm_up.state != WarmUpState::Compiling));
        running.until(&mut rig, |app| state(app).is_ready());
    }
    let (took, compiled) = (ms(start), rig.figures().pipelines_built);
    let first = infer(&mut rig, &encoder);
    let later = median((0..5).map(|_| infer(&mut rig, &encoder)).collect());
    let longest = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    println!(
        "figures {first} {later} {compiled} {took} {} {} {} {}",
        median(compiling.0.clone()),
        longest(&compiling.0),
        median(running.0.clone()),
        longest(&running.0)
    );
}

/// The cost of timings: the same frames with timings off and on, alternating.
fn timings() {
    println!("\nframes of 96 launches, ms (median of 60, taking turns)");
    let mut rig = Rig::new(Backend::Gpu);
    let diagnostics = rig.app.world().resource::<TensorDiagnostics>().clone();
    let x = rig.spawn(Tensor::random_normal([128, 128], 0.0, 0.05, 3, DType::F32).expect("a sensible size"));
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..62 {
        for (mode, times) in times.iter_mut().enumerate() {
            diagnostics.set_timings(mode > 0);
            diagnostics.set_split_passes(mode == 2);
            let start = Instant::now();
            rig.compute(move |ops| {
                let mut value = ops.matmul(x, x)?;
                for _ in 1..96 {
                    value = ops.matmul(value, x)?;
                }
                Ok(value)
            })
            .expect("the work runs");
            // The first rounds create what later rounds reuse.
            if round >= 2 {
                times.push(ms(start));
            }
        }
    }
    let [off, inside, split] = times.map(median);
    for (name, time) in [("off", off), ("inside passes", inside), ("a pass each", split)] {
        println!("{name:>24} {time:>10.2} {:>9.1} %", (time / off - 1.0) * 100.0);
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
