//! Fourier transforms on the CPU backend beside `realfft` alone on one thread, and 30 seconds of sound as mel bands. Run with
//! `cargo bench --bench sound`. `tools/sound_time.py` measures NumPy and librosa.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::Instant;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use common::Rig;

/// Measured rounds. The fastest counts, because other programs only add time.
const ROUNDS: usize = 15;
/// Times that work is recorded in one round, so that frames and readbacks do not count.
const REPEATS: usize = 8;

fn signal(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin() + (i as f32 * i as f32 * 1e-5).cos()).collect()
}

fn main() {
    println!("{:>24} {:>12} {:>12} {:>7}", "work", "ours, ms", "realfft, ms", "ratio");
    let mut rig = Rig::new(Backend::Cpu);
    for (lines, n) in [(4096, 256), (1024, 1024), (2048, 400), (256, 4096), (64, 16384), (16, 65536), (256, 1009)] {
        let x = signal(lines * n);
        let tensor = rig.spawn(Tensor::from_slice(&x, [lines, n]).expect("a tensor"));
        let result = rig.spawn(Tensor::zeros([lines, n / 2 + 1, 2], DType::F32).expect("a tensor"));
        let ours = measure(&mut rig, |ops| {
            let y = ops.rfft(tensor, None, LAST).expect("a transform");
            ops.store(y, result).expect("fits");
        });
        let plan = realfft::RealFftPlanner::<f32>::new().plan_fft_forward(n);
        let (mut line, mut scratch) = (plan.make_input_vec(), plan.make_scratch_vec());
        let mut out = vec![realfft::num_complex::Complex::default(); lines * (n / 2 + 1)];
        let alone = best(|| {
            for (line_of, out) in x.chunks(n).zip(out.chunks_mut(n / 2 + 1)) {
                line.copy_from_slice(line_of);
                plan.process_with_scratch(&mut line, out, &mut scratch).expect("lengths fit");
            }
            black_box(&out);
        });
        let work = format!("rfft {lines} x {n}");
        println!("{work:>24} {ours:>12.3} {alone:>12.3} {:>7.2}", alone / ours);
        rig.app.world_mut().despawn(tensor);
        rig.app.world_mut().despawn(result);
    }
    let samples = rig.spawn(Tensor::from_slice(&signal(480_000), [480_000]).expect("a tensor"));
    let bands = rig.spawn(Tensor::zeros([3001, 80], DType::F32).expect("a tensor"));
    let ours = measure(&mut rig, |ops| {
        let y = ops.log_mel(samples, LogMelSettings::speech()).expect("bands");
        ops.store(y, bands).expect("fits");
    });
    println!("{:>24} {ours:>12.3}", "log_mel of 30 s");
}

/// The fastest of several runs, in ms.
fn best(mut work: impl FnMut()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e3
    };
    (0..ROUNDS).map(run).fold(f64::INFINITY, f64::min)
}

/// The fastest time of work that is recorded, in ms.
fn measure(rig: &mut Rig, record: impl Fn(&TensorCommands)) -> f64 {
    let done = rig.spawn(Tensor::zeros([1], DType::F32).expect("small"));
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        let start = Instant::now();
        let mut receiver = None;
        rig.with_ops(|ops| {
            (0..REPEATS).for_each(|_| record(ops));
            receiver = Some(ops.read(done).expect("readable"));
        });
        rig.wait(&receiver.expect("recorded")).expect("values");
        times.push(start.elapsed().as_secs_f64() * 1e3 / REPEATS as f64);
    }
    times.into_iter().skip(1).fold(f64::INFINITY, f64::min)
}
