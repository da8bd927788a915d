//! The encoders of the similarity example against onnxruntime on the original weights, and what they find.
//!
//! References are made by `tools/references.py`.

#[path = "../examples/multimodal_similarity/engine/mod.rs"]
#[expect(dead_code, reason = "the example uses all of it")]
pub mod engine;

use std::path::{Path, PathBuf};

use bevy::prelude::*;
use bevy_tensor_compute::formats::SafetensorsFile;
use bevy_tensor_compute::nn::Weights;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::NameError;
use engine::encoders::{TextEncoder, VisionEncoder};
use engine::library::{Library, read_pixels};
use engine::matcher::Matcher;
use engine::search::best;
use engine::tokens::Tokens;

use crate::common::{BACKENDS, Rig, assert_close};

/// Everyday queries and what is sensible for each.
const QUERIES: [(&str, &[&str]); 24] = [
    ("a cat", &["cat face", "cat"]),
    ("something to drink", &["hot beverage", "beer mug", "wine glass", "glass of milk"]),
    ("fast vehicle", &["racing car", "motorcycle", "rocket", "automobile"]),
    ("it is raining", &["cloud with rain", "umbrella with rain drops"]),
    ("a sweet dessert", &["soft ice cream", "birthday cake"]),
    ("flying in the sky", &["airplane", "helicopter", "eagle", "rocket"]),
    ("a musical instrument", &["guitar", "violin", "musical keyboard", "drum"]),
    ("play football", &["soccer ball"]),
    ("a cold winter day", &["snowman without snow", "snowflake", "snow-capped mountain"]),
    ("a hot sunny day", &["sun"]),
    ("wake me up in the morning", &["alarm clock", "hot beverage"]),
    ("reading a good book", &["books"]),
    ("take a photo", &["camera"]),
    ("happy birthday", &["birthday cake", "wrapped gift", "balloon"]),
    ("a computer", &["laptop"]),
    ("an animal that lives in the ocean", &["shark", "octopus", "tropical fish", "crab"]),
    ("king of the jungle", &["lion"]),
    ("a small insect", &["honeybee", "butterfly"]),
    ("ride to work on two wheels", &["bicycle", "motorcycle"]),
    ("travel to space", &["rocket"]),
    ("unlock the door", &["key"]),
    ("a beautiful flower", &["sunflower"]),
    ("spooky halloween night", &["ghost", "jack-o-lantern"]),
    ("I love you", &["red heart"]),
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders").join(name)
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models")
}

/// A model with a file's tensors.
fn load(rig: &mut Rig, path: &Path) -> Entity {
    let mut file = SafetensorsFile::open(path).unwrap();
    let model = rig.app.world_mut().spawn(TensorModel).id();
    for name in file.names() {
        let tensor = Tensor::from(file.read(&name).unwrap());
        rig.app.world_mut().spawn((Name::new(name), tensor, TensorOf(model)));
    }
    model
}

fn find<T: Send + Sync + 'static>(
    rig: &mut Rig,
    model: Entity,
    find: impl Fn(&Weights) -> Result<T, NameError> + Send + Sync + 'static,
) -> T {
    let system = move |models: TensorModels| find(&models.weights(model)).unwrap();
    let id = rig.app.world_mut().register_system(system);
    rig.app.world_mut().run_system(id).unwrap()
}

/// The unit embedding of a text.
fn embed(rig: &mut Rig, encoder: &TextEncoder, tokens: &Tokens, text: &str) -> TensorData {
    let encoded = tokens.encode(text).unwrap();
    let ((ids, mean), length, count) = (encoded.rows(), encoded.padded(), encoded.ids.len());
    let ids = rig.spawn(Tensor::from_slice(&ids, [1, length]).unwrap());
    let mean = rig.spawn(Tensor::from_slice(&mean, [1, length]).unwrap());
    let encoder = encoder.clone();
    rig.compute(move |ops| encoder.encode(ops, ids, mean, count)).unwrap()
}

fn tokens() -> Tokens {
    Tokens::load(&models().join("tokenizer.json")).unwrap()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Texts and their embeddings by the original weights.
fn text_references() -> Vec<(String, Vec<f32>)> {
    let mut file = SafetensorsFile::open(data("outputs.safetensors")).unwrap();
    let expected = file.read("text").unwrap();
    let rows = expected.as_slice::<f32>().unwrap().chunks(expected.shape()[1]);
    rows.enumerate().map(|(i, row)| (file.metadata(&format!("text.{i}")).unwrap().to_owned(), row.to_vec())).collect()
}

/// The pictures' features and logits, by the weights in `folder`.
fn see(rig: &mut Rig, weights: &Path) -> [Vec<f32>; 2] {
    let model = load(rig, weights);
    let encoder = find(rig, model, VisionEncoder::find);
    let mut file = SafetensorsFile::open(data("outputs.safetensors")).unwrap();
    let pixels = file.read("pixels").unwrap();
    let settings = VisionEncoder::input();
    let (mean, deviation) = (settings.mean[0], settings.deviation[0]);
    let pixels = rig.spawn(Tensor::from(pixels));
    let both = rig
        .compute(move |ops| {
            let x = ops.cast(pixels, DType::F32)?;
            let x = ops.permute(x, &[0, 3, 1, 2])?;
            let x = ops.div(x * (1.0 / 255.0) - mean, deviation)?;
            let features = encoder.encode(ops, x)?;
            let logits = encoder.classify(ops, features)?;
            ops.concat([features, logits], 1)
        })
        .unwrap()
        .to_f32();
    let rows = || both.chunks(2280);
    [rows().flat_map(|row| &row[..1280]).copied().collect(), rows().flat_map(|row| &row[1280..]).copied().collect()]
}

fn vision_references() -> [Vec<f32>; 2] {
    let mut file = SafetensorsFile::open(data("outputs.safetensors")).unwrap();
    ["features", "logits"].map(|name| file.read(name).unwrap().to_f32())
}

/// Where `tools/convert.py --f32` has put the unrounded weights.
fn unrounded(file: &str) -> PathBuf {
    let folder =
        std::env::var_os("TENSOR_F32_MODELS").expect("TENSOR_F32_MODELS names the folder of tools/convert.py --f32");
    Path::new(&folder).join(file)
}

#[test]
fn the_shipped_text_encoder_is_close_to_the_original() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = load(&mut rig, &models().join("minilm.safetensors"));
        let (encoder, tokens) = (find(&mut rig, model, TextEncoder::find), tokens());
        for (text, expected) in text_references() {
            let cosine = cosine(&embed(&mut rig, &encoder, &tokens, &text).to_f32(), &expected);
            assert!(cosine >= 0.999, "\"{text}\" on the {backend}: {cosine}");
        }
    }
}

#[test]
fn the_shipped_vision_encoder_is_close_to_the_original() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let actual = see(&mut rig, &models().join("efficientnet.safetensors"));
        for (actual, expected) in actual.iter().zip(&vision_references()) {
            let size = expected.len() / 2;
            for (actual, expected) in actual.chunks(size).zip(expected.chunks(size)) {
                let cosine = cosine(actual, expected);
                assert!(cosine >= 0.999, "{size} numbers on the {backend}: {cosine}");
            }
        }
    }
}

#[test]
#[ignore = "needs the unrounded weights: scripts/test makes them with tools/convert.py --f32"]
fn unrounded_encoders_are_the_originals() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = load(&mut rig, &unrounded("minilm.safetensors"));
        let (encoder, tokens) = (find(&mut rig, model, TextEncoder::find), tokens());
        for (text, expected) in text_references() {
            let actual = embed(&mut rig, &encoder, &tokens, &text).to_f32();
            assert_close(&actual, &expected, 1e-4, 0.0, &format!("\"{text}\" on the {backend}"));
        }
        let [_, logits] = see(&mut rig, &unrounded("efficientnet.safetensors"));
        let [_, expected] = vision_references();
        assert_close(&logits, &expected, 1e-3, 0.0, &format!("logits on the {backend}"));
    }
}

#[test]
fn texts_are_split_as_the_reference_does() {
    let tokens = tokens();
    let text = std::fs::read_to_string(data("tokens.json")).unwrap();
    let lines: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(lines.len(), 200);
    let mut truncated = 0;
    for line in &lines {
        let text = line["text"].as_str().unwrap();
        let expected: Vec<u32> = line["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let actual = tokens.encode(text).unwrap();
        assert_eq!(actual.ids, expected, "{text:?}");
        assert_eq!(actual.truncated, text.split_whitespace().count() == 600 || text.chars().count() == 600, "{text:?}");
        truncated += usize::from(actual.truncated);
    }
    assert_eq!(truncated, 2, "600 words, and 600 signs without a space");
}

#[test]
fn everyday_queries_find_sensible_pictures() {
    let mut rig = Rig::new(Backend::Cpu);
    let library = Library::open_at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets")).unwrap();
    let (text, head) =
        (load(&mut rig, &models().join("minilm.safetensors")), load(&mut rig, &models().join("head.safetensors")));
    let (encoder, tokens) = (find(&mut rig, text, TextEncoder::find), tokens());
    let matcher = find(&mut rig, head, Matcher::find);
    let points = rig.compute(move |ops| matcher.place_pictures(ops, matcher.gallery)).unwrap();
    let index = rig.spawn(Tensor::from(points));
    let popularity = rig.compute(move |ops| matcher.popularity(ops, index, matcher.captions)).unwrap();
    let popularity = rig.spawn(Tensor::from(popularity));
    let mut right = 0;
    for (query, sensible) in QUERIES {
        let embedding = embed(&mut rig, &encoder, &tokens, query);
        let embedding = rig.spawn(Tensor::from(embedding));
        let scores = rig.compute(move |ops| {
            let point = matcher.place_texts(ops, embedding)?;
            matcher.score(ops, point, index, popularity)
        });
        let top: Vec<_> = best(&scores.unwrap().to_f32(), 3).iter().map(|&(i, _)| &library.gallery[i].name).collect();
        let found = top.iter().any(|name| sensible.contains(&name.as_str()));
        println!("{} \"{query}\": {top:?}", if found { "yes" } else { " no" });
        right += usize::from(found);
    }
    assert!(right >= 20, "{right} of 24");
}

#[test]
fn the_gallerys_stored_features_are_what_the_encoder_sees() {
    let mut rig = Rig::new(Backend::Cpu);
    let library = Library::open_at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets")).unwrap();
    let model = load(&mut rig, &models().join("efficientnet.safetensors"));
    let encoder = find(&mut rig, model, VisionEncoder::find);
    let stored = SafetensorsFile::open(models().join("head.safetensors")).unwrap().read("gallery").unwrap().to_f32();
    assert_eq!(stored.len(), library.gallery.len() * 1280);
    for i in [0, library.gallery.len() - 1] {
        let pixels = read_pixels(&library.picture(&library.gallery[i])).unwrap();
        let (pixels, encoder) = (rig.spawn(Tensor::from(pixels)), encoder.clone());
        let features = rig.compute(move |ops| {
            let input = ops.image_input(pixels, &VisionEncoder::input())?;
            encoder.encode(ops, input)
        });
        let cosine = cosine(&features.unwrap().to_f32(), &stored[i * 1280..(i + 1) * 1280]);
        // Decoders of lossy pictures do not agree to the last bit.
        assert!(cosine >= 0.99, "{}: {cosine}", library.gallery[i].name);
    }
}
