//! A custom kernel: reaction and diffusion in WGSL on tensors, shown on a texture, with sliders and hot reload.
//!
//! With a display it opens a window. Edit `assets/examples/gray_scott.wgsl` while it runs. Without a display it runs
//! some hundred steps with two edits and prints a summary. `--frames N` exits after N frames, `--screenshot FILE.png`
//! saves a screenshot of the last one, `--gpu` also uses a software adapter.

mod edits;
mod twin;
mod window;

use bevy::asset::AssetPlugin;
use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

const SIZE: UVec2 = UVec2::new(480, 270);
const STEPS_PER_FRAME: usize = 12;

fn main() -> AppExit {
    let window = Window { title: "Gray-Scott".to_owned(), resolution: (1280, 720).into(), ..default() };
    // Bevy only watches asset files if this is enabled.
    let assets = AssetPlugin {
        file_path: concat!(env!("CARGO_MANIFEST_DIR"), "/assets").to_owned(),
        watch_for_changes_override: Some(true),
        ..default()
    };
    let backend = match std::env::args().any(|argument| argument == "--gpu") {
        true => BackendChoice::Gpu,
        false => BackendChoice::Auto,
    };
    let mut app = App::new();
    app.add_plugins((AnywherePlugins::windowed(window).set(assets), TensorComputePlugin { backend, ..default() }))
        .init_resource::<Params>()
        .init_resource::<Progress>()
        .add_systems(Startup, set_up)
        .add_systems(Update, react.run_if(ready));
    if bevy_tensor_compute::support::has_display() && bevy_tensor_compute::support::has_adapter() {
        app.add_plugins(window::plugin);
    } else {
        app.add_plugins(edits::plugin);
    }
    app.run()
}

/// The params of the kernels, with the members of the WGSL struct.
#[derive(Resource, Reflect, Clone, Copy)]
struct Params {
    feed: f32,
    kill: f32,
    size: UVec2,
}

impl Default for Params {
    fn default() -> Self {
        Self { feed: 0.0545, kill: 0.062, size: SIZE }
    }
}

/// The plane: two substances, and the kernels that update them.
#[derive(Resource)]
struct Plane {
    u: Entity,
    v: Entity,
    step: TensorKernel,
    paint: TensorKernel,
}

/// Steps recorded so far, and pictures in flight.
#[derive(Resource, Default)]
struct Progress {
    steps: usize,
    pictures: Vec<TensorReceiver>,
}

fn set_up(mut commands: Commands, assets: Res<AssetServer>, mut kernels: ResMut<TensorKernels>) -> Result {
    let shader = assets.load("examples/gray_scott.wgsl");
    // Two entry points of one shader.
    let step = kernels.register(
        CustomKernel::shader("gray_scott_step", shader.clone())
            .entry("step")
            .inputs(["u", "v"])
            .output("next_u", OutputShape::like("u"))
            .output("next_v", OutputShape::like("v"))
            .params::<Params>()
            .dispatch(Dispatch::Axes)
            .cpu(twin::step),
    )?;
    let paint = kernels.register(
        CustomKernel::shader("gray_scott_paint", shader)
            .entry("paint")
            .inputs(["u", "v"])
            .output("pixels", OutputShape::like("v"))
            .params::<Params>()
            .dispatch(Dispatch::Axes)
            .cpu(twin::paint),
    )?;
    let model = commands.spawn((TensorModel, Name::new("plane"))).id();
    let shape = [SIZE.y as usize, SIZE.x as usize];
    let u = commands.spawn_tensor(model, "u", Tensor::ones(shape, DType::F32)?);
    let v = commands.spawn_tensor(model, "v", Tensor::from_slice(&seeds(), shape)?);
    commands.insert_resource(Plane { u, v, step, paint });
    Ok(())
}

/// Drops of v at scattered positions.
fn seeds() -> Vec<f32> {
    let drops: Vec<(IVec2, i32)> = (1..40u32)
        .map(|i| {
            let mixed = (i.wrapping_mul(0x9E37_79B1) ^ (i << 13)).wrapping_mul(0x85EB_CA77);
            let mixed = mixed ^ mixed >> 15;
            (IVec2::new((mixed % SIZE.x) as i32, (mixed / SIZE.x % SIZE.y) as i32), 6 + (mixed >> 28) as i32 % 6)
        })
        .collect();
    let cells = (0..SIZE.y as i32).flat_map(|y| (0..SIZE.x as i32).map(move |x| IVec2::new(x, y)));
    cells.map(|cell| f32::from(drops.iter().any(|(at, r)| (cell - at).length_squared() < r * r))).collect()
}

/// The shader is loaded a few frames after the start.
fn ready(plane: Option<Res<Plane>>) -> bool {
    plane.is_some_and(|plane| plane.step.is_ready() && plane.paint.is_ready())
}

/// Records some time steps and a picture, as one plan. New slider values need neither a new plan nor a new pipeline.
fn react(plane: Res<Plane>, params: Res<Params>, mut progress: ResMut<Progress>, ops: TensorCommands) -> Result {
    // The work of at most two frames is in flight, so that a slow machine is not overloaded.
    if progress.pictures.len() >= 2 {
        return Ok(());
    }
    let (mut u, mut v) = (ops.value(plane.u)?, ops.value(plane.v)?);
    for _ in 0..STEPS_PER_FRAME {
        [u, v] = ops.custom_outputs(&plane.step, [u, v], &*params)?;
    }
    ops.store(u, plane.u)?;
    ops.store(v, plane.v)?;
    progress.pictures.push(ops.read(ops.custom(&plane.paint, [u, v], &*params)?)?);
    progress.steps += STEPS_PER_FRAME;
    Ok(())
}

/// The next picture that has arrived, as RGBA bytes.
fn next_picture(progress: &mut Progress) -> Result<Option<TensorData>> {
    let arrived = progress.pictures.first().and_then(TensorReceiver::try_recv);
    match arrived {
        Some(picture) => {
            progress.pictures.remove(0);
            Ok(Some(picture?))
        }
        None => Ok(None),
    }
}
