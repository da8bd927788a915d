//! Three models that share tensors, and the similarity example from command line to results.

#[path = "../examples/multimodal_similarity/options.rs"]
#[expect(dead_code, reason = "the example uses all of it")]
mod options;

use std::fs;
use std::path::Path;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use options::Options;

use crate::common::{BACKENDS, Faults, Rig, assert_close};
use crate::encoders::engine::library::{Library, read_pixels};
use crate::encoders::engine::models::{ModelsFailed, ModelsPlugin, Workspace, storage_bytes};
use crate::encoders::engine::search::{PictureRanked, PictureSearch, SearchPlugin, TextRanked, TextSearch, best};

/// Bytes of all tensors, each storage counted once.
fn bytes(rig: &mut Rig) -> u64 {
    let mut tensors = rig.app.world_mut().query::<&Tensor>();
    storage_bytes(tensors.iter(rig.app.world()))
}

#[test]
fn three_models_share_4144128_bytes_and_no_more() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let world = rig.app.world_mut();
        let [text, vision, matcher] =
            ["text", "vision", "matcher"].map(|name| world.spawn((TensorModel, Name::new(name))).id());
        let random = |shape: [usize; 2], seed| Tensor::random_normal(shape, 0.0, 1.0, seed, DType::F32).unwrap();
        let mut own = |name: &'static str, tensor, model| world.spawn((Name::new(name), tensor, TensorOf(model))).id();
        let words = own("words", random([128, 768], 1), text);
        let patches = own("patches", random([197, 768], 2), vision);
        let from_text = own("text projection", random([768, 512], 3), matcher);
        let from_vision = own("vision projection", random([768, 512], 4), matcher);
        assert_eq!(bytes(&mut rig), 4_144_128);

        // The matcher shares both tensors, and has a view of the first row of each.
        let share = move |mut models: TensorModels| {
            let shared = [models.share(text, "words", matcher), models.share(vision, "patches", matcher)];
            let first = |tensor: &Tensor| tensor.slice(0, 0, 1);
            let rows = [
                models.share_view(text, "words", matcher, "sentence", first),
                models.share_view(vision, "patches", matcher, "picture", first),
            ];
            (shared.map(Result::unwrap), rows.map(Result::unwrap))
        };
        let id = rig.app.world_mut().register_system(share);
        let (shared, [sentence, picture]) = rig.app.world_mut().run_system(id).unwrap();
        assert_eq!(bytes(&mut rig), 4_144_128, "shares and views add nothing");

        let cosine = rig.compute(move |ops| {
            let (a, b) = (ops.matmul(sentence, from_text)?, ops.matmul(picture, from_vision)?);
            ops.cosine_similarity(a, b, -1, 1e-8)
        });
        assert_eq!(bytes(&mut rig), 4_144_128, "nor does the work");

        // The expected result, in double precision.
        let [words, patches, from_text, from_vision] =
            [words, patches, from_text, from_vision].map(|tensor| rig.read(tensor).to_f32());
        let project = |row: &[f32], matrix: &[f32]| -> Vec<f64> {
            (0..512).map(|j| (0..768).map(|i| f64::from(row[i]) * f64::from(matrix[i * 512 + j])).sum()).collect()
        };
        let (a, b) = (project(&words[..768], &from_text), project(&patches[..768], &from_vision));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let expected = dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt();
        assert_close(&cosine.unwrap().to_f32(), &[expected as f32], 1e-5, 1e-4, &format!("on the {backend}"));

        // A write through the share is visible in the view.
        rig.record(move |ops| {
            let ones = ops.full([197, 768], 1.0, DType::F32)?;
            ops.store(ones, shared[1])
        })
        .unwrap();
        assert_eq!(rig.read(picture).to_f32(), [1.0; 768]);
    }
}

/// The models of the example in an app without a renderer, with the assets in `folder`.
fn example(folder: &Path) -> Rig {
    let mut app = App::new();
    let assets = AssetPlugin { file_path: folder.display().to_string(), ..default() };
    let library = Library::open_at(folder).unwrap();
    app.add_plugins((MinimalPlugins, assets, TensorComputePlugin { backend: BackendChoice::Cpu, ..default() }))
        .insert_resource(library)
        .init_resource::<Faults>()
        .add_plugins((ModelsPlugin, SearchPlugin));
    app.finish();
    app.cleanup();
    Rig { app, backend: Backend::Cpu }
}

fn assets() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets")
}

/// Updates until a message of this type arrives.
fn next<M: Message + Clone>(rig: &mut Rig) -> M {
    let mut found = None;
    rig.step_until(|app| {
        found = app.world_mut().resource_mut::<Messages<M>>().drain().next();
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn the_example_finds_pictures_by_words_and_words_by_pictures() {
    let mut rig = example(&assets());
    let library = rig.app.world().resource::<Library>().clone();
    rig.app.world_mut().resource_mut::<TextSearch>().wanted = Some("a cat".to_owned());
    let TextRanked { scores, kernel_difference, .. } = next(&mut rig);
    assert!(kernel_difference < 1e-5, "the built-in op and the example's own kernel differ by {kernel_difference}");
    let top = best(&scores.unwrap(), 3);
    assert!(top.iter().any(|&(i, _)| library.gallery[i].name == "cat face"), "{top:?}");

    let cat = library.gallery.iter().find(|picture| picture.name == "cat face").unwrap();
    let pixels = read_pixels(&library.picture(cat)).unwrap();
    rig.app.world_mut().resource_mut::<PictureSearch>().look_at(("cat".to_owned(), pixels));
    let PictureRanked { scores, .. } = next(&mut rig);
    let top = best(&scores.unwrap(), 5);
    let names: Vec<_> = top.iter().map(|&(i, _)| library.captions[i].as_str()).collect();
    assert!(names.iter().any(|name| name.contains("cat")), "{names:?}");

    let workspace = rig.app.world().resource::<Workspace>();
    assert_eq!((workspace.added_by_shares, workspace.added_by_views), (0, 0));
    let (embedding, query) = (workspace.embedding, workspace.query);
    let storage = |rig: &Rig, tensor| rig.app.world().get::<Tensor>(tensor).unwrap().storage_id();
    assert_eq!(storage(&rig, embedding), storage(&rig, query), "the query is a view of the text model's embedding");
}

#[test]
fn an_empty_query_is_answered_with_an_error() {
    let mut rig = example(&assets());
    rig.app.world_mut().resource_mut::<TextSearch>().wanted = Some("  \n".to_owned());
    let TextRanked { scores, .. } = next(&mut rig);
    assert!(scores.unwrap_err().contains("nothing to search for"));
}

#[test]
fn missing_and_broken_assets_are_named() {
    let folder = std::env::temp_dir().join(format!("tensor_multimodal_{}", std::process::id()));
    let message = Library::open_at(&folder).unwrap_err();
    assert!(message.contains("minilm.safetensors is missing"), "{message}");

    for part in ["models", "gallery"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    for file in [
        "models/efficientnet.safetensors",
        "models/head.safetensors",
        "models/captions.json",
        "models/tokenizer.json",
        "gallery/gallery.json",
    ] {
        fs::copy(assets().join(file), folder.join(file)).unwrap();
    }
    // An incomplete download.
    let whole = fs::read(assets().join("models/minilm.safetensors")).unwrap();
    fs::write(folder.join("models/minilm.safetensors"), &whole[..whole.len() / 2]).unwrap();
    let mut rig = example(&folder);
    let ModelsFailed(message) = next(&mut rig);
    fs::remove_dir_all(&folder).unwrap();
    assert!(message.contains("minilm.safetensors") && message.contains("bytes but its header declares"), "{message}");
}

#[test]
fn a_file_that_is_no_picture_is_an_error() {
    let path = assets().join("models/README.md");
    assert!(read_pixels(&path).unwrap_err().contains("README.md"));
    assert!(read_pixels(Path::new("nowhere.png")).unwrap_err().contains("nowhere.png"));
}

#[test]
fn the_command_line_is_checked() {
    let parse = |words: &[&str]| Options::parse(words.iter().map(|&word| word.to_owned()));
    let options = parse(&["--query", "a", "--query", "b", "--backend", "cpu", "--frames", "3", "--headless"]).unwrap();
    assert_eq!((options.queries.len(), options.frames, options.headless), (2, Some(3), true));
    assert_eq!(options.backend, BackendChoice::Cpu);
    let long = "x".repeat(10_000);
    for (words, part) in [
        (&["--query", ""][..], "empty"),
        (&["--query", &long], "10000 characters"),
        (&["--frames", "many"], "not a number"),
        (&["--backend", "tpu"], "must be gpu, cpu or auto"),
        (&["--query"], "needs a value"),
        (&["--colour"], "unknown option"),
    ] {
        let message = parse(words).unwrap_err();
        assert!(message.contains(part), "{message}");
    }
}
