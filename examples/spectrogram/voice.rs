//! Voice activity by Silero's network, if its file is among the assets.

use bevy::prelude::*;
use bevy_tensor_compute::onnx::{HostTensor, OnnxInputs, OnnxModel};
use bevy_tensor_compute::prelude::*;

use super::listen::{Chunk, RATE};

/// The file below the assets.
const FILE: &str = "models/silero_vad.onnx";
/// The network sees 512 new samples and the 64 before them.
const NEW: usize = 512;
const BEFORE: usize = 64;

pub struct VoicePlugin;

/// The probability that somebody speaks. `None` without the network.
#[derive(Resource, Default)]
pub struct Voice(pub Option<f32>);

/// The tensors of the network.
#[derive(Resource)]
struct Tensors {
    input: Entity,
    state: Entity,
    probability: Entity,
}

impl Plugin for VoicePlugin {
    fn build(&self, app: &mut App) {
        app.init_resource::<Voice>()
            .add_systems(Startup, load)
            .add_systems(PostUpdate, hear.run_if(resource_exists::<Tensors>));
    }
}

fn load(mut commands: Commands, server: Res<AssetServer>) -> Result {
    let folder = std::env::var("BEVY_ASSET_ROOT").or_else(|_| std::env::var("CARGO_MANIFEST_DIR")).unwrap_or_default();
    if !std::path::Path::new(&folder).join("assets").join(FILE).exists() {
        return Ok(());
    }
    commands.spawn((Name::new("silero"), OnnxModel::new(server.load(FILE))));
    // It has a ring of its own, because its frames are others.
    let mut samples = AudioInput::new(RATE, 1 << 14)?;
    samples.write(&[0.0; BEFORE])?;
    let input = commands.spawn((Name::new("voice samples"), samples)).id();
    let state = commands.spawn((Name::new("voice state"), Tensor::zeros([2, 1, 128], DType::F32)?)).id();
    let probability = commands.spawn((Name::new("voice"), Tensor::zeros([1, 1], DType::F32)?)).observe(keep).id();
    commands.insert_resource(Tensors { input, state, probability });
    Ok(())
}

fn keep(ready: On<TensorReady>, mut voice: ResMut<Voice>) {
    if let Ok(data) = &ready.result {
        voice.0 = data.to_f32().first().copied();
    }
}

/// Runs the network on each frame that is complete, with the state of the one before.
fn hear(
    chunk: Res<Chunk>,
    tensors: Res<Tensors>,
    mut inputs: Query<&mut AudioInput>,
    model: Single<&OnnxModel>,
    ops: TensorCommands,
) -> Result {
    let mut input = inputs.get_mut(tensors.input)?;
    if chunk.0.len() <= input.room() {
        input.write(&chunk.0)?;
    }
    if !model.is_ready() {
        return Ok(());
    }
    let Some(samples) = input.frames(&ops, BEFORE + NEW, NEW)? else { return Ok(()) };
    let count = (ops.shape(samples)?[0] - BEFORE) / NEW;
    for i in 0..count as isize {
        let from = i * NEW as isize;
        let frame = ops.slice(samples, 0, from, from + (BEFORE + NEW) as isize)?;
        let inputs = OnnxInputs::new()
            .with("input", ops.unsqueeze(frame, &[0])?)
            .with("state", tensors.state)
            .with("sr", HostTensor::from_i64(&[i64::from(RATE)], [])?);
        let outputs = ops.run(&model, inputs)?;
        ops.store(outputs.value("stateN")?, tensors.state)?;
        ops.store(outputs.value("output")?, tensors.probability)?;
    }
    ops.notify(tensors.probability)?;
    Ok(())
}
