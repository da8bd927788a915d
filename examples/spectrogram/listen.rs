//! From samples to bands and pixels. Nothing here knows whether there is a window.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use super::Options;

/// Samples per second of the analysis. Other files are resampled.
pub const RATE: u32 = 16_000;
/// Mel bands: the height of the picture.
pub const BANDS: usize = 128;
/// Frames in the picture: its width.
pub const COLUMNS: usize = 512;
/// Samples of a frame, and from one to the next.
const FRAME: usize = 1024;
pub const HOP: usize = 160;
/// The decibels that are black, and those that are brightest.
const DARK: f32 = -46.0;
const BRIGHT: f32 = 22.0;
/// The most samples that an update takes, so that a slow frame does not lead to a slower one.
const MOST: usize = 4096;

/// Loads a sound and analyses it as time passes.
pub struct ListenPlugin;

/// The sound that is played.
#[derive(Resource)]
pub struct Player {
    clip: Handle<SoundClip>,
    /// The samples, once they are at the right rate.
    pub samples: Option<Vec<f32>>,
    /// The samples of the file and their rate, while they wait to be resampled.
    whole: Option<(Entity, u32)>,
    resampled: Option<TensorReceiver>,
    /// The next sample.
    pub position: usize,
    /// Seconds of each update. `None` plays as time passes.
    pub step: Option<f64>,
    /// Plays nothing for now.
    pub is_paused: bool,
    /// Begins again after the end.
    pub repeats: bool,
    behind: f64,
}

impl Player {
    pub fn seconds(&self) -> f64 {
        self.position as f64 / f64::from(RATE)
    }

    pub fn is_over(&self) -> bool {
        self.samples.as_ref().is_some_and(|samples| self.position >= samples.len())
    }
}

/// The tensors of the picture.
#[derive(Resource)]
pub struct Picture {
    /// Decibels `[COLUMNS, BANDS]`, the latest last.
    history: Entity,
    /// `u8 [256, 4]`.
    pub palette: Entity,
    /// `u8 [BANDS, COLUMNS, 4]`, the highest band first.
    pub pixels: Entity,
    /// Brightness of the latest frame `[BANDS]`.
    pub latest: Entity,
}

/// The ring of the picture. The voice has another one.
#[derive(Component)]
pub struct Shown;

/// The samples that the last update has played.
#[derive(Resource, Default)]
pub struct Chunk(pub Vec<f32>);

impl Plugin for ListenPlugin {
    fn build(&self, app: &mut App) {
        app.init_resource::<Chunk>().add_systems(Startup, start).add_systems(Update, (play, analyse).chain());
    }
}

fn start(mut commands: Commands, server: Res<AssetServer>, options: Res<Options>) -> Result {
    let clip = server.load(&options.file);
    commands.insert_resource(Player {
        clip,
        samples: None,
        whole: None,
        resampled: None,
        position: 0,
        step: None,
        is_paused: false,
        repeats: false,
        behind: 0.0,
    });
    commands.spawn((Name::new("samples"), Shown, AudioInput::new(RATE, 1 << 15)?));
    let mut tensor = |name: &'static str, tensor: Tensor| commands.spawn((Name::new(name), tensor)).id();
    let palette: Vec<u8> = (0..256).flat_map(|i| colour(i as f32 / 255.0)).collect();
    let picture = Picture {
        history: tensor("history", Tensor::full([COLUMNS, BANDS], f64::from(DARK), DType::F32)?),
        palette: tensor("palette", Tensor::from_slice(&palette, [256, 4])?),
        pixels: tensor("pixels", Tensor::zeros([BANDS, COLUMNS, 4], DType::U8)?),
        latest: tensor("latest", Tensor::zeros([BANDS], DType::F32)?),
    };
    commands.insert_resource(picture);
    Ok(())
}

/// A colour from black over purple and orange to light yellow, as bytes.
pub fn colour(x: f32) -> [u8; 4] {
    const STOPS: [[f32; 3]; 7] = [
        [0.004, 0.004, 0.016],
        [0.14, 0.05, 0.32],
        [0.43, 0.10, 0.43],
        [0.73, 0.21, 0.33],
        [0.93, 0.41, 0.15],
        [0.99, 0.69, 0.22],
        [0.99, 0.99, 0.75],
    ];
    let at = x.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let (i, t) =
        ((at as usize).min(STOPS.len() - 2), at.fract() + if at as usize == STOPS.len() - 1 { 1.0 } else { 0.0 });
    let [r, g, b] = core::array::from_fn(|c| ((STOPS[i][c] * (1.0 - t) + STOPS[i + 1][c] * t) * 255.0) as u8);
    [r, g, b, 255]
}

/// Writes the samples of this update into the ring.
fn play(
    mut player: ResMut<Player>,
    clips: Res<Assets<SoundClip>>,
    mut input: Single<&mut AudioInput, With<Shown>>,
    mut chunk: ResMut<Chunk>,
    time: Res<Time>,
    ops: TensorCommands,
    mut commands: Commands,
) -> Result {
    chunk.0.clear();
    let player = &mut *player;
    if player.samples.is_none() {
        let Some(clip) = clips.get(&player.clip) else { return Ok(()) };
        match &player.resampled {
            _ if clip.sample_rate() == RATE => player.samples = Some(clip.mono()),
            Some(receiver) => {
                let Some(samples) = receiver.try_recv() else { return Ok(()) };
                player.samples = Some(samples?.to_f32());
            }
            None if player.whole.is_some() => {
                let Some((whole, rate)) = player.whole.take() else { return Ok(()) };
                player.resampled = Some(ops.read(ops.resample(whole, rate, RATE, LAST)?)?);
                commands.entity(whole).despawn();
            }
            None => {
                // The file goes to the device once, and comes back at the right rate.
                let mono = clip.mono();
                let whole = commands.spawn(Tensor::from_slice(&mono, [mono.len()])?).id();
                player.whole = Some((whole, clip.sample_rate()));
            }
        }
    }
    let Some(samples) = player.samples.as_ref().filter(|_| !player.is_paused) else { return Ok(()) };
    player.behind += player.step.unwrap_or(time.delta_secs_f64()) * f64::from(RATE);
    let due = (player.behind as usize).min(MOST).min(input.room());
    player.behind = (player.behind - due as f64).min(MOST as f64);
    if player.repeats && player.position >= samples.len() {
        player.position = 0;
    }
    let end = (player.position + due).min(samples.len());
    chunk.0.extend_from_slice(&samples[player.position..end]);
    player.position = end;
    input.write(&chunk.0)?;
    Ok(())
}

/// Bands of the frames that are complete, the picture of the latest of them, and the heights of the bars.
fn analyse(mut input: Single<&mut AudioInput, With<Shown>>, picture: Res<Picture>, ops: TensorCommands) -> Result {
    let Some(samples) = input.frames(&ops, FRAME, HOP)? else { return Ok(()) };
    let new = ops.log_mel(samples, settings(None))?;
    let count = ops.shape(new)?[0].min(COLUMNS);
    let new = ops.slice(new, 0, -(count as isize), isize::MAX)?;
    let history = ops.concat([ops.slice(picture.history, 0, count as isize, isize::MAX)?, new], 0)?;
    ops.store(history, picture.history)?;
    let brightness = brightness(&ops, history)?;
    ops.store(pixels(&ops, brightness, picture.palette)?, picture.pixels)?;
    ops.store(ops.squeeze(ops.slice(brightness, 0, -1, isize::MAX)?, 0)?, picture.latest)?;
    ops.notify(picture.latest)?;
    Ok(())
}

/// How a signal becomes bands. Streams are not continued; whole files are.
pub fn settings<'a>(center: Option<PadMode>) -> LogMelSettings<'a> {
    LogMelSettings {
        stft: StftSettings { frame: FRAME, hop: HOP, center, ..default() },
        mel: MelSettings { sample_rate: RATE as f32, bands: BANDS, low: 40.0, ..default() },
        db: DbSettings { range: None, ..default() },
    }
}

/// Decibels as 0 to 1.
pub fn brightness<'a>(ops: &'a TensorCommands, db: TensorValue<'a>) -> OpResult<TensorValue<'a>> {
    ops.clamp((db - DARK) / (BRIGHT - DARK), 0.0, 1.0)
}

/// Brightness `[columns, BANDS]` as the pixels of a picture `[BANDS, columns, 4]`.
pub fn pixels<'a>(ops: &'a TensorCommands, brightness: TensorValue<'a>, palette: Entity) -> OpResult<TensorValue<'a>> {
    let upright = ops.flip(ops.transpose(brightness)?, 0)?;
    ops.gather(palette, ops.cast(upright * 255.0, DType::I32)?, 0)
}

/// The frequency at the centre of a band, in Hz.
pub fn band_hz(band: usize) -> f32 {
    // Slaney's scale, as the settings use it.
    let mel = |hz: f32| if hz < 1000.0 { hz * 3.0 / 200.0 } else { 15.0 + (hz / 1000.0).ln() * 27.0 / 6.4f32.ln() };
    let hz = |mel: f32| if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4f32.ln() / 27.0).exp() };
    let (low, high) = (mel(40.0), mel(RATE as f32 / 2.0));
    hz(low + (high - low) * (band + 1) as f32 / (BANDS + 1) as f32)
}
