//! Results in an async task: `read` returns a receiver that can be awaited, polled, or dropped to cancel.

use bevy::prelude::*;
use bevy::tasks::{AsyncComputeTaskPool, Task, block_on, poll_once};
use bevy_tensor_compute::prelude::*;

fn main() -> AppExit {
    App::new()
        .add_plugins((AnywherePlugins::headless(), TensorComputePlugin::default()))
        .add_systems(Startup, (spawn_noise, ask).chain())
        .add_systems(Update, finish)
        .run()
}

#[derive(Component)]
struct Noise;

/// A task that will hold the summary text.
#[derive(Resource)]
struct Summary(Task<Result<String, BevyError>>);

fn spawn_noise(mut commands: Commands) -> Result {
    commands.spawn((Noise, Name::new("noise"), Tensor::random_normal([256, 256], 10.0, 2.0, 42, DType::F32)?));
    Ok(())
}

/// Requests two numbers and moves both receivers into a task.
fn ask(noise: Single<Entity, With<Noise>>, ops: TensorCommands, mut commands: Commands) -> Result {
    let mean = ops.read(ops.mean(*noise, Axes::ALL)?)?;
    let deviation = ops.read(ops.std(*noise, Axes::ALL, 0)?)?;
    let cancelled = ops.read(*noise)?;
    drop(cancelled); // cancels the read: the 65,536 values are not copied
    let task = AsyncComputeTaskPool::get().spawn(async move {
        let mean: f32 = mean.recv().await?.item()?;
        let deviation: f32 = deviation.recv().await?.item()?;
        Ok(format!("mean {mean:.2}, deviation {deviation:.2} (asked for 10 and 2)"))
    });
    commands.insert_resource(Summary(task));
    Ok(())
}

fn finish(mut summary: ResMut<Summary>, mut exit: MessageWriter<AppExit>) -> Result {
    if let Some(text) = block_on(poll_once(&mut summary.0)) {
        println!("{}", text?);
        exit.write(AppExit::Success);
    }
    Ok(())
}
