//! Mel bands, decibels, and the features of speech over them.

use super::{Axes, LAST, StftSettings, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{DType, FourierOutput, Shape};
use crate::record::DctKind;
use crate::tensor::pack;

/// How frequencies become mels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MelScale {
    /// Linear below 1,000 Hz, logarithmic above (Slaney's Auditory Toolbox, librosa).
    #[default]
    Slaney,
    /// `2595 · log₁₀(1 + f / 700)` (HTK).
    Htk,
}

impl MelScale {
    const LINEAR: f64 = 200.0 / 3.0;
    const KNEE: f64 = 1000.0;

    fn step() -> f64 {
        6.4f64.ln() / 27.0
    }

    fn to_mel(self, hz: f64) -> f64 {
        match self {
            Self::Htk => 2595.0 * (1.0 + hz / 700.0).log10(),
            Self::Slaney if hz < Self::KNEE => hz / Self::LINEAR,
            Self::Slaney => Self::KNEE / Self::LINEAR + (hz / Self::KNEE).ln() / Self::step(),
        }
    }

    fn to_hz(self, mel: f64) -> f64 {
        let knee = Self::KNEE / Self::LINEAR;
        match self {
            Self::Htk => 700.0 * (10f64.powf(mel / 2595.0) - 1.0),
            Self::Slaney if mel < knee => mel * Self::LINEAR,
            Self::Slaney => Self::KNEE * ((mel - knee) * Self::step()).exp(),
        }
    }
}

/// Settings of [`mel_filterbank`](TensorCommands::mel_filterbank).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MelSettings {
    /// Samples per second. 16,000 by default.
    pub sample_rate: f32,
    /// Number of bands. 80 by default.
    pub bands: usize,
    /// The lower edge of the first band in Hz. 0 by default.
    pub low: f32,
    /// The upper edge of the last band in Hz. Half the sample rate by default.
    pub high: Option<f32>,
    /// How edges are spaced. Slaney's scale by default.
    pub scale: MelScale,
    /// Whether all bands have the same area, or else the same height of 1. True by default.
    pub normalize: bool,
}

impl Default for MelSettings {
    fn default() -> Self {
        Self { sample_rate: 16_000.0, bands: 80, low: 0.0, high: None, scale: MelScale::default(), normalize: true }
    }
}

impl MelSettings {
    /// The weights `[bands, points / 2 + 1]` of the frequencies of a transform in each band.
    fn weights(&self, op: &'static str, points: usize) -> OpResult<Vec<f32>> {
        let argument = |reason: String| Err(OpError::Argument { op, reason });
        let Self { sample_rate, bands, low, high, scale, normalize } = *self;
        if !(sample_rate > 0.0 && sample_rate.is_finite()) {
            return argument(format!("the sample rate is {sample_rate}; it must be positive"));
        }
        let high = high.unwrap_or(sample_rate / 2.0);
        if !(low >= 0.0 && high > low && high <= sample_rate / 2.0) {
            return argument(format!("{low} to {high} Hz is not a range below half the sample rate of {sample_rate}"));
        }
        let bins = points / 2 + 1;
        if bands == 0 || bands > 4096 {
            return argument(format!("{bands} bands; there must be 1 to 4096"));
        }
        let (low, high) = (scale.to_mel(f64::from(low)), scale.to_mel(f64::from(high)));
        let edge = |i: usize| scale.to_hz(low + (high - low) * i as f64 / (bands as f64 + 1.0));
        let mut weights = vec![0.0; bands * bins];
        for (band, weights) in weights.chunks_mut(bins).enumerate() {
            let [from, middle, to] = [edge(band), edge(band + 1), edge(band + 2)];
            let height = if normalize { 2.0 / (to - from) } else { 1.0 };
            for (bin, weight) in weights.iter_mut().enumerate() {
                let hz = bin as f64 * f64::from(sample_rate) / points as f64;
                let rise = (hz - from) / (middle - from);
                let fall = (to - hz) / (to - middle);
                *weight = (rise.min(fall).max(0.0) * height) as f32;
            }
        }
        Ok(weights)
    }
}

/// Settings of [`power_to_db`](TensorCommands::power_to_db).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DbSettings {
    /// The power that is 0 dB. 1 by default.
    pub reference: f32,
    /// Smaller powers count as this. 10⁻¹⁰ by default.
    pub floor: f32,
    /// Values further below the largest one are raised to this distance. 80 dB by default.
    pub range: Option<f32>,
}

impl Default for DbSettings {
    fn default() -> Self {
        Self { reference: 1.0, floor: 1e-10, range: Some(80.0) }
    }
}

impl DbSettings {
    fn check(&self, op: &'static str) -> OpResult<()> {
        let Self { reference, floor, range } = *self;
        let is_positive = |x: f32| x > 0.0 && x.is_finite();
        let fits = is_positive(reference) && is_positive(floor) && range.is_none_or(|range| range >= 0.0);
        let reason = || "reference and floor must be positive, and the range not negative".to_owned();
        if fits { Ok(()) } else { Err(OpError::Argument { op, reason: reason() }) }
    }
}

/// Settings of [`log_mel`](TensorCommands::log_mel) and [`mfcc`](TensorCommands::mfcc).
#[derive(Clone, Debug, Default)]
pub struct LogMelSettings<'a> {
    /// The frames.
    pub stft: StftSettings<'a>,
    /// The bands.
    pub mel: MelSettings,
    /// The decibels.
    pub db: DbSettings,
}

impl LogMelSettings<'_> {
    /// What most speech models take: frames of 25 ms every 10 ms at 16 kHz, in 80 bands.
    #[must_use]
    pub fn speech() -> Self {
        Self { stft: StftSettings { frame: 400, hop: 160, ..Default::default() }, ..Default::default() }
    }
}

/// Mel bands and decibels.
impl TensorCommands<'_, '_> {
    /// The weights of the `points / 2 + 1` frequencies of a transform in mel bands: `f32 [bands, points / 2 + 1]`.
    ///
    /// The bands are those of a spectrogram times the transposed weights: `ops.matmul_nt(spectrogram, weights)`.
    #[track_caller]
    pub fn mel_filterbank(&self, points: usize, settings: MelSettings) -> OpResult<TensorValue<'_>> {
        const OP: &str = "mel_filterbank";
        let rec = &mut self.recorder();
        rec.check_points(OP, points)?;
        let weights = settings.weights(OP, points)?;
        let shape = Shape::from([settings.bands, points / 2 + 1]);
        let backend = rec.ops.support.backend;
        let node = rec.begin(backend, OP).constant(pack(&weights), shape, DType::F32);
        rec.value(backend, node)
    }

    /// `10 · log₁₀(x / reference)`. NaN stays NaN.
    #[doc(alias = "amplitude_to_db")]
    #[track_caller]
    pub fn power_to_db<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        settings: DbSettings,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "power_to_db";
        let x = x.into();
        let (x, dtype) = self.wide(OP, x)?;
        settings.check(OP)?;
        let DbSettings { reference, floor, range } = settings;
        let scale = 10.0 / core::f64::consts::LN_10;
        let zero = scale * f64::from(reference.max(floor)).ln();
        let db = self.value(self.log(self.max(x, floor)?)? * scale - zero)?;
        match range {
            Some(range) if self.shape(db)?.elements() > 0 => {
                let lowest = self.max_of(db, Axes::ALL)? - range;
                self.cast(self.max(db, lowest)?, dtype)
            }
            _ => self.cast(db, dtype),
        }
    }

    /// A float operand as `f32`, because powers exceed the range of narrower types, and its type.
    #[track_caller]
    fn wide<'a>(&'a self, op: &'static str, x: TensorOperand<'a>) -> OpResult<(TensorValue<'a>, DType)> {
        let rec = &mut self.recorder();
        let x = rec.float_arg(op, x)?;
        let dtype = rec.dtype_of_arg(x);
        let node = rec.part(x).cast(x.node, DType::F32);
        Ok((rec.value(x.backend, node)?, dtype))
    }

    /// The decibels of `x […, samples]` in mel bands: `[…, frames, bands]`.
    ///
    /// This is [`spectrogram`](Self::spectrogram), [`mel_filterbank`](Self::mel_filterbank) and
    /// [`power_to_db`](Self::power_to_db) in a row, as librosa computes it.
    #[doc(alias = "melspectrogram")]
    #[track_caller]
    pub fn log_mel<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        settings: LogMelSettings<'a>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.log_mel_op("log_mel", x, settings)
    }

    /// The first `count` mel-frequency cepstral coefficients of `x […, samples]`: `[…, frames, count]`.
    ///
    /// This is [`log_mel`](Self::log_mel) and an orthonormal [`dct`](Self::dct) over the bands.
    #[track_caller]
    pub fn mfcc<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        count: usize,
        settings: LogMelSettings<'a>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "mfcc";
        let x = x.into();
        let bands = settings.mel.bands;
        if count > bands {
            let reason = format!("{count} coefficients; {bands} bands have at most {bands}");
            return Err(OpError::Argument { op: OP, reason });
        }
        let db = self.log_mel_op(OP, x, settings)?;
        let all = self.dct(db, DctKind::Two, true, LAST)?;
        self.slice(all, LAST, 0, count as isize)
    }

    #[track_caller]
    fn log_mel_op<'a>(
        &'a self,
        op: &'static str,
        x: TensorOperand<'a>,
        settings: LogMelSettings<'a>,
    ) -> OpResult<TensorValue<'a>> {
        let LogMelSettings { stft, mel, db } = settings;
        let points = stft.frame;
        let weights = {
            let rec = self.recorder();
            rec.check_points(op, points)?;
            db.check(op)?;
            mel.weights(op, points)?
        };
        let (x, dtype) = self.wide(op, x)?;
        let power = self.recorder().stft_op(op, x.into(), stft, FourierOutput::Power)?;
        let weights = self.constant_like(power, &weights, [mel.bands, points / 2 + 1])?;
        let bands = self.matmul_nt(power, weights)?;
        self.cast(self.power_to_db(bands, db)?, dtype)
    }
}
