//! The encoders of the similarity example with their shipped weights: the cost of a text and of a picture, and of the
//! kernels they use. Run with `cargo bench --bench encoders`. Add `-- --gpu` for the GPU and `-- --launches` for every
//! launch of the last run. Needs `assets/models`.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../examples/multimodal_similarity/engine/mod.rs"]
#[expect(dead_code, reason = "the example uses all of it")]
mod engine;

use std::path::Path;
use std::time::{Duration, Instant};

use bevy::ecs::system::RunSystemOnce;
use bevy::prelude::*;
use bevy_tensor_compute::formats::SafetensorsFile;
use bevy_tensor_compute::nn::Weights;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::NameError;
use common::Rig;
use engine::encoders::{TextEncoder, VisionEncoder};
use engine::tokens::Tokens;

/// Measured runs, and the runs before them, which plan, pack and compile.
const RUNS: usize = 40;
const BEFORE: usize = 5;

/// A text of a few words, of a sentence, and of a paragraph.
const TEXTS: [&str; 3] = [
    "a cat",
    "an animal that lives in the ocean and has eight long arms, a large head and no bones at all",
    "The gallery shows pictures on a curved wall. Whoever types a few words sees the pictures that mean them come forward, grow and glow, while the \
     others step back. The words may be anything: names of things, what one would do with them, or what they remind one of.",
];

fn main() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models");
    let tokens = Tokens::load(&models.join("tokenizer.json")).expect("the tokeniser of the example");
    for backend in [Backend::Cpu, Backend::Gpu].into_iter().take(if asked("--gpu") { 2 } else { 1 }) {
        let mut rig = Rig::new(backend);
        let text = find(&mut rig, &models.join("minilm.safetensors"), TextEncoder::find);
        for words in TEXTS {
            let encoded = tokens.encode(words).expect("words");
            let (length, count) = (encoded.padded(), encoded.ids.len());
            let (ids, mean) = encoded.rows();
            let ids = rig.spawn(Tensor::from_slice(&ids, [1, length]).expect("fits"));
            let mean = rig.spawn(Tensor::from_slice(&mean, [1, length]).expect("fits"));
            measure(&mut rig, &format!("text of {count} tokens"), |ops| text.encode(ops, ids, mean, count));
        }
        let vision = find(&mut rig, &models.join("efficientnet.safetensors"), VisionEncoder::find);
        let shape = [1, 3, VisionEncoder::SIDE, VisionEncoder::SIDE];
        let pixels: Vec<f32> = (0..shape.iter().product()).map(|i| (i % 255) as f32 / 128.0 - 1.0).collect();
        let pixels = rig.spawn(Tensor::from_slice(&pixels, shape).expect("fits"));
        measure(&mut rig, "picture of 224 by 224", |ops| vision.encode(ops, pixels));
    }
}

fn find<T: 'static>(
    rig: &mut Rig,
    path: &Path,
    find: impl Fn(&Weights) -> Result<T, NameError> + Send + Sync + 'static,
) -> T {
    let mut file = SafetensorsFile::open(path).expect("the weights of the example");
    let model = rig.app.world_mut().spawn(TensorModel).id();
    for name in file.names() {
        let tensor = Tensor::from(file.read(&name).expect("a tensor"));
        rig.app.world_mut().spawn((Name::new(name), tensor, TensorOf(model)));
    }
    let system = move |models: TensorModels| find(&models.weights(model));
    rig.app.world_mut().run_system_once(system).expect("the plugin is there").expect("the weights have their names")
}

fn measure(rig: &mut Rig, what: &str, mut encode: impl for<'a> FnMut(&'a TensorCommands) -> OpResult<TensorValue<'a>>) {
    let diagnostics = rig.app.world().resource::<TensorDiagnostics>().clone();
    let mut times = Vec::new();
    for run in 0..BEFORE + RUNS {
        if run == BEFORE {
            diagnostics.clear_timings();
            diagnostics.set_timings(true);
        }
        let start = Instant::now();
        let mut receiver = None;
        rig.with_ops(|ops| {
            let value = encode(ops).expect("the shapes fit");
            receiver = Some(ops.read(value).expect("a value"));
        });
        let receiver = receiver.expect("was recorded");
        rig.app.update();
        while receiver.try_recv().is_none() {
            // Leaves the cores to the compute threads, as a frame would.
            std::thread::sleep(Duration::from_micros(500));
            rig.app.update();
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    diagnostics.set_timings(false);
    let first = times[0];
    let mut times = times.split_off(BEFORE);
    times.sort_by(f64::total_cmp);
    println!(
        "\n{} {what}: {:.1} ms (fastest {:.1}, slowest {:.1}, very first {first:.1})",
        rig.backend,
        times[RUNS / 2],
        times[0],
        times[RUNS - 1]
    );
    let Some(report) = diagnostics.timings() else { return };
    let kernels = report.kernels.iter().filter(|timing| timing.backend == rig.backend);
    for timing in kernels.take(8) {
        let launches = timing.stats.count / RUNS as u64;
        let ms = timing.stats.mean.as_secs_f64() * 1e3 * launches as f64;
        let rate = timing.stats.gigaflops().unwrap_or_default();
        println!("  {ms:>8.3} ms {rate:>6.1} GFLOP/s  {launches:>3} × {} {}", timing.kernel, timing.variant);
    }
    let frame = report.frames.iter().rfind(|frame| frame.backend == rig.backend);
    for span in frame.filter(|_| asked("--launches")).into_iter().flat_map(|frame| &frame.spans) {
        let seconds = (span.end - span.start).as_secs_f64();
        println!(
            "  {:>8.3} ms {:>6.1} GFLOP/s {:>6.1} GB/s  {} in {}",
            seconds * 1e3,
            span.flops as f64 / seconds / 1e9,
            span.bytes as f64 / seconds / 1e9,
            span.kernel,
            span.op
        );
    }
}

fn asked(option: &str) -> bool {
    std::env::args().any(|argument| argument == option)
}
