//! The asset loader of safetensors files: through Bevy's asset server it answers as the bytes do.

use std::path::Path;

use bevy::asset::io::memory::{Dir, MemoryAssetReader};
use bevy::asset::io::{AssetSourceBuilder, AssetSourceId};
use bevy::asset::{AssetPlugin, LoadState};
use bevy::prelude::*;
use bevy_tensor_compute::formats::TensorWeights;
use bevy_tensor_compute::prelude::*;

use super::{Answer, Target, safetensors};

pub const TARGET: Target = Target {
    name: "weights_asset",
    corpus: "safetensors",
    weight: 8,
    longest: 2048,
    words: safetensors::WORDS,
    guards: false,
    make: || {
        let files = Dir::default();
        let root = files.clone();
        let mut app = App::new();
        let source = AssetSourceBuilder::new(move || Box::new(MemoryAssetReader { root: root.clone() }));
        app.register_asset_source(AssetSourceId::Default, source);
        let plugin = TensorComputePlugin { backend: BackendChoice::Cpu, ..default() };
        app.add_plugins((MinimalPlugins, AssetPlugin::default(), plugin));
        app.finish();
        app.cleanup();
        let mut count = 0u64;
        Box::new(move |bytes| {
            count += 1;
            let name = format!("{count}.safetensors");
            let path = Path::new(&name);
            files.insert_asset(path, bytes.to_vec());
            let server = app.world().resource::<AssetServer>().clone();
            let handle: Handle<TensorWeights> = server.load(name.clone());
            let state = loop {
                app.update();
                match server.load_state(&handle) {
                    state @ (LoadState::Loaded | LoadState::Failed(_)) => break state,
                    _ => std::thread::yield_now(),
                }
            };
            files.remove_asset(path);
            let whole = TensorWeights::from_bytes(path, bytes);
            match (state, whole) {
                (LoadState::Loaded, Ok(whole)) => {
                    let loaded = app.world().resource::<Assets<TensorWeights>>().get(&handle).expect("it is loaded");
                    let same = loaded
                        .tensors()
                        .iter()
                        .zip(whole.tensors())
                        .all(|((a, x), (b, y))| a == b && x.bytes() == y.bytes() && x.shape() == y.shape());
                    assert!(same && loaded.tensors().len() == whole.tensors().len(), "the loader reads other tensors");
                    Answer::accepted(whole.tensors().iter().map(|(_, data)| data.dtype()).collect::<Vec<_>>())
                }
                (LoadState::Failed(error), Err(_)) => Answer::refused(error.to_string().replace(&name, "")),
                (state, whole) => panic!("the loader says {state:?}, the bytes {:?}", whole.map(|_| ())),
            }
        })
    },
};
