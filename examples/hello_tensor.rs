//! Tensors as components: a model owns two tensors, a system records work on them, an observer gets the result.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

fn main() -> AppExit {
    App::new()
        .add_plugins((AnywherePlugins::headless(), TensorComputePlugin::default()))
        .add_systems(Startup, spawn_matcher)
        .add_systems(Update, compare)
        .run()
}

/// Four pictures and three captions, as tiny embeddings.
const IMAGES: [[f32; 3]; 4] = [[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.0, 0.2, 0.9], [0.5, 0.5, 0.0]];
const CAPTIONS: [[f32; 3]; 3] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];

#[derive(Component)]
struct Matcher {
    images: Entity,
    captions: Entity,
    scores: Entity,
}

fn spawn_matcher(mut commands: Commands, support: Res<TensorSupport>) -> Result {
    println!("running on the {}: {}", support.backend, support.reason);
    let model = commands.spawn((TensorModel, Name::new("matcher"))).observe(show_scores).id();
    let images = commands.spawn_tensor(model, "images", Tensor::from_rows(&IMAGES)?);
    let captions = commands.spawn_tensor(model, "captions", Tensor::from_rows(&CAPTIONS)?);
    let scores = commands.spawn_tensor(model, "scores", Tensor::zeros([4, 3], DType::F32)?);
    commands.entity(model).insert(Matcher { images, captions, scores });
    Ok(())
}

/// Which caption fits which picture: cosine similarity, then a softmax over the captions.
fn compare(matcher: Single<&Matcher>, ops: TensorCommands, mut done: Local<bool>) -> Result {
    if core::mem::replace(&mut *done, true) {
        return Ok(());
    }
    let images = ops.l2_normalize(matcher.images, LAST)?;
    let captions = ops.l2_normalize(matcher.captions, LAST)?;
    let scores = ops.softmax(ops.matmul_nt(images, captions)? * 5.0, LAST)?; // calls nest: A · Bᵀ, scaled, softmax
    ops.store(scores, matcher.scores)?; // write into a tensor that the model owns
    ops.notify(matcher.scores)?; // trigger TensorReady when the values have arrived
    Ok(())
}

fn show_scores(
    ready: On<TensorReady>,
    diagnostics: Res<TensorDiagnostics>,
    mut exit: MessageWriter<AppExit>,
) -> Result {
    let scores = ready.result.clone()?;
    for (image, row) in scores.as_slice::<f32>()?.chunks(3).enumerate() {
        println!("image {image}: {:.2} {:.2} {:.2}", row[0], row[1], row[2]);
    }
    let figures = diagnostics.figures();
    println!("{} kernel launches, {} plan", figures.dispatches + figures.cpu_steps, figures.plans_built);
    exit.write(AppExit::Success);
    Ok(())
}
