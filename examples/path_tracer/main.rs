//! A path tracer as a custom kernel on tensors, and a neural denoiser that makes one sample per pixel presentable.
//!
//! Left of the bar is what was traced, right of it the same, denoised. Drag the bar, drag the scene to turn the camera,
//! scroll to move it. The picture converges while the camera rests. Without a display, or with `--headless`, one view is
//! traced, denoised, and compared with a converged image of the same view.
//!
//! ```text
//! path_tracer [--headless] [--gpu] [--frames N] [--size 640x360] [--view N] [--samples N] [--network small|base]
//!             [--reference N] [--screenshot FILE.png] [--report FILE.json]
//! ```

mod headless;
mod twin;
mod window;

use std::process::ExitCode;

use bevy::asset::AssetPlugin;
use bevy::prelude::*;
use bevy_tensor_compute::denoise::{DenoiseSettings, Denoiser};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::support::{has_adapter, has_display};

fn main() -> ExitCode {
    let result = Options::parse(std::env::args().skip(1)).and_then(|options| {
        match has_adapter() && has_display() && !options.headless {
            true => window::run(options),
            false => headless::run(&options),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("path_tracer: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The parsed command line.
#[derive(Resource, Clone, Debug)]
struct Options {
    headless: bool,
    backend: BackendChoice,
    frames: Option<u32>,
    size: UVec2,
    view: u32,
    samples: u32,
    network: &'static str,
    reference: u32,
    screenshot: Option<String>,
    report: Option<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            headless: false,
            backend: BackendChoice::Auto,
            frames: None,
            size: UVec2::new(640, 360),
            view: 0,
            samples: 1,
            network: "small",
            reference: 256,
            screenshot: None,
            report: None,
        };
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--headless" => options.headless = true,
                "--gpu" => options.backend = BackendChoice::Gpu,
                _ => {
                    let value = arguments.next().ok_or_else(|| format!("{name} needs a value, or is not an option"))?;
                    options.set(&name, value)?;
                }
            }
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        let number = || value.parse::<u32>().map_err(|_| format!("{name}: \"{value}\" is not a number"));
        match name {
            "--frames" => self.frames = Some(number()?.clamp(1, 100_000)),
            "--view" => self.view = number()?,
            "--samples" => self.samples = number()?.clamp(1, 64),
            "--reference" => self.reference = number()?.clamp(1, 100_000),
            "--size" => {
                let size = value.split_once('x').and_then(|(w, h)| Some(UVec2::new(w.parse().ok()?, h.parse().ok()?)));
                let fits = |size: &UVec2| size.min_element() > 0 && size.max_element() <= 4096;
                self.size = size.filter(fits).ok_or_else(|| format!("--size: \"{value}\" is not like 640x360"))?;
            }
            "--network" => {
                self.network = match value.as_str() {
                    "small" => "small",
                    "base" => "base",
                    _ => return Err(format!("--network: \"{value}\" is not small or base")),
                }
            }
            "--screenshot" => self.screenshot = Some(value),
            "--report" => self.report = Some(value),
            _ => return Err(format!("unknown option {name}")),
        }
        Ok(())
    }
}

/// The assets of the repository.
fn assets() -> AssetPlugin {
    AssetPlugin { file_path: concat!(env!("CARGO_MANIFEST_DIR"), "/assets").to_owned(), ..default() }
}

/// Where the camera is.
#[derive(Resource, Clone, Copy, PartialEq)]
struct View {
    yaw: f32,
    pitch: f32,
    distance: f32,
}

impl View {
    /// One of many views. View 0 is the one of the pictures in the documentation.
    fn number(view: u32) -> Self {
        let turn = |step: f32| (view as f32 * step).fract() - 0.5;
        match view {
            0 => Self { yaw: 0.0, pitch: 0.12, distance: 7.2 },
            _ => Self { yaw: turn(0.618) * 0.9, pitch: 0.25 + turn(0.755) * 0.3, distance: 6.5 + turn(0.57) * 2.0 },
        }
    }

    /// The camera stays inside the room.
    fn clamped(self) -> Self {
        Self {
            yaw: self.yaw.clamp(-0.5, 0.5),
            pitch: self.pitch.clamp(-0.1, 0.45),
            distance: self.distance.clamp(3.0, 7.6),
        }
    }
}

/// The params of the kernel, with the members of the WGSL struct.
#[derive(Reflect, Clone, Copy)]
struct Params {
    eye: Vec3,
    frame: u32,
    right: Vec3,
    samples: u32,
    up: Vec3,
    keep: f32,
    forward: Vec3,
    size: UVec2,
}

/// The kernel, the tensors and the network.
#[derive(Resource)]
struct Tracer {
    kernel: TensorKernel,
    /// Sums of colour, albedo and normal, `[height, width, 3]`.
    sums: [Entity; 3],
    /// Numbers of the columns, for the bar.
    columns: Entity,
    /// What is shown: `u8 [height, width, 4]`.
    pixels: Entity,
    model: Entity,
    denoiser: Option<Denoiser>,
    size: UVec2,
    frame: u32,
    /// Samples per pixel in the sums, and the view that they are of.
    count: u32,
    view: Option<View>,
}

/// Registers the kernel, and spawns tensors and weights.
fn set_up(
    mut commands: Commands,
    options: Res<Options>,
    server: Res<AssetServer>,
    mut kernels: ResMut<TensorKernels>,
) -> Result {
    let kernel = kernels.register(
        CustomKernel::wgsl("path_tracer", include_str!("../../assets/examples/path_tracer.wgsl"))
            .inputs(["color", "albedo", "normal"])
            .output("next_color", OutputShape::like("color"))
            .output("next_albedo", OutputShape::like("albedo"))
            .output("next_normal", OutputShape::like("normal"))
            .params::<Params>()
            .dispatch(Dispatch::by(|inputs, _| {
                let groups = |axis: usize| (inputs[0][axis] as u32).div_ceil(8);
                [groups(1), groups(0), 1]
            }))
            .cpu(twin::trace_pixels),
    )?;
    let (width, height) = (options.size.x as usize, options.size.y as usize);
    let scene = commands.spawn((TensorModel, Name::new("scene"))).id();
    let mut sums = Vec::new();
    for name in ["color", "albedo", "normal"] {
        sums.push(commands.spawn_tensor(scene, name, Tensor::zeros([height, width, 3], DType::F32)?));
    }
    let columns: Vec<f32> = (0..width).map(|column| column as f32).collect();
    let columns = commands.spawn_tensor(scene, "columns", Tensor::from_slice(&columns, [1, width, 1])?);
    let pixels = commands.spawn_tensor(scene, "pixels", Tensor::zeros([height, width, 4], DType::U8)?);
    let weights = LoadWeights::new(server.load(format!("models/denoise_{}.safetensors", options.network)));
    let model = commands.spawn((Name::new("denoiser"), weights)).observe(find_weights).id();
    commands.insert_resource(Tracer {
        kernel,
        sums: [sums[0], sums[1], sums[2]],
        columns,
        pixels,
        model,
        denoiser: None,
        size: options.size,
        frame: 0,
        count: 0,
        view: None,
    });
    Ok(())
}

fn find_weights(
    ready: On<WeightsReady>,
    models: TensorModels,
    mut tracer: ResMut<Tracer>,
    mut exit: MessageWriter<AppExit>,
) -> Result {
    match &ready.result {
        Ok(_) => tracer.denoiser = Some(Denoiser::find(&models.weights(ready.entity))?),
        Err(error) => {
            error!("{error}");
            exit.write(AppExit::error());
        }
    }
    Ok(())
}

impl Tracer {
    /// Records samples of a view. They are added to earlier ones of the same view.
    fn trace<'a>(&mut self, ops: &'a TensorCommands, view: View, samples: u32) -> OpResult<[TensorValue<'a>; 3]> {
        let keep = self.view == Some(view);
        self.count = if keep { self.count + samples } else { samples };
        self.view = Some(view);
        self.frame += 1;
        let target = Vec3::new(0.0, 1.35, 0.3);
        let turn = Quat::from_euler(EulerRot::YXZ, view.yaw, -view.pitch, 0.0);
        let eye = target + turn * Vec3::Z * view.distance;
        let field = 0.47;
        let params = Params {
            eye,
            frame: self.frame,
            right: turn * Vec3::X * field,
            samples,
            up: turn * Vec3::Y * field,
            keep: if keep { 1.0 } else { 0.0 },
            forward: turn * Vec3::NEG_Z,
            size: self.size,
        };
        let next: [TensorValue; 3] = ops.custom_outputs(&self.kernel, self.sums, &params)?;
        for (value, sum) in next.into_iter().zip(self.sums) {
            ops.store(value, sum)?;
        }
        let share = 1.0 / self.count as f32;
        Ok([ops.mul(next[0], share)?, ops.mul(next[1], share)?, ops.mul(next[2], share)?])
    }

    /// Records the denoiser. Returns the noisy image if the weights are not loaded yet.
    fn denoise<'a>(&self, ops: &'a TensorCommands, images: [TensorValue<'a>; 3]) -> OpResult<TensorValue<'a>> {
        let [color, albedo, normal] = images;
        match &self.denoiser {
            Some(denoiser) => ops.denoise(denoiser, color, albedo, normal, DenoiseSettings::default()),
            None => Ok(color),
        }
    }

    /// Pixels with one image left of a column and another one right of it.
    fn show<'a>(
        &self,
        ops: &'a TensorCommands,
        left: TensorValue<'a>,
        right: TensorValue<'a>,
        bar: f32,
    ) -> OpResult<TensorValue<'a>> {
        let shown = ops.select(ops.less(self.columns, bar)?, left, right)?;
        // A filmic curve, then the gamma of the screen.
        let x = ops.mul(shown, 0.8)?;
        let bright = ops.mul(x, x * 2.51 + 0.03)?;
        let curve = ops.div(bright, x * (x * 2.43 + 0.59) + 0.14)?;
        let screen = ops.pow(ops.clamp(curve, 0.0, 1.0)?, 1.0 / 2.2)?;
        let distance = ops.abs(ops.sub(self.columns, bar)?)?;
        let screen = ops.select(ops.less(distance, 0.6)?, 1.0, screen)?;
        let picture = ops.unsqueeze(ops.permute(screen, &[2, 0, 1])?, &[0])?;
        ops.image_pixels(picture, &ImageSettings::default())
    }
}
