//! Spectra of frames, mel bands, cosine transforms and other sample rates, against SciPy and librosa.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig, assert_close};
use crate::fourier::{noise, reference};

fn speech<'a>(bands: usize) -> LogMelSettings<'a> {
    let mel = MelSettings { bands, ..default() };
    LogMelSettings { mel, ..LogMelSettings::speech() }
}

/// The stored signal, as a tensor of `count` samples.
fn signal(rig: &mut Rig, count: usize) -> Entity {
    rig.spawn(Tensor::from_slice(&reference("signal")[..count], [count]).expect("a tensor"))
}

#[test]
fn windows_are_scipys() {
    let kinds = [
        ("hann", FrameWindow::Hann),
        ("hamming", FrameWindow::Hamming),
        ("blackman", FrameWindow::Blackman),
        ("kaiser", FrameWindow::Kaiser { beta: 8.6 }),
    ];
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (name, kind) in kinds {
            for n in [1, 2, 33, 64] {
                for (symmetry, periodic) in [("periodic", true), ("symmetric", false)] {
                    let got = rig.compute(move |ops| ops.window(kind, n, periodic)).expect("a window").to_f32();
                    let name = format!("window/{name}/{symmetry}/{n}");
                    assert_close(&got, &reference(&name), 1e-7, 1e-6, &name);
                }
            }
        }
    }
}

#[test]
fn mel_bands_are_librosas() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (scale, name) in [(MelScale::Htk, "htk"), (MelScale::Slaney, "slaney")] {
            for (normalize, height) in [(true, "area"), (false, "height")] {
                let settings =
                    MelSettings { sample_rate: 16000.0, bands: 20, low: 50.0, high: Some(7000.0), scale, normalize };
                let got = rig.compute(move |ops| ops.mel_filterbank(256, settings)).expect("weights");
                assert_eq!(got.shape()[..], [20, 129]);
                let name = format!("mel/{name}/{height}");
                assert_close(&got.to_f32(), &reference(&name), 1e-6, 1e-5, &name);
            }
        }
    }
}

#[test]
fn spectra_of_frames_are_librosas() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = signal(&mut rig, 1500);
        let reflected = || StftSettings {
            frame: 256,
            hop: 100,
            window_length: Some(200),
            center: Some(PadMode::Reflect),
            ..default()
        };
        let got = rig.compute(move |ops| ops.stft(x, reflected())).expect("spectra");
        assert_eq!(got.shape()[..], [16, 129, 2]);
        assert_close(&got.to_f32(), &reference("stft"), 2e-4, 1e-5, "stft");
        let power = rig.compute(move |ops| ops.spectrogram(x, reflected())).expect("spectra").to_f32();
        let expected: Vec<f32> = reference("stft").chunks(2).map(|z| z[0] * z[0] + z[1] * z[1]).collect();
        assert_close(&power, &expected, 1e-3, 1e-4, "spectrogram");
        let got = rig.compute(move |ops| {
            let window = FrameWindow::Hamming;
            ops.stft(x, StftSettings { frame: 250, hop: 77, window, center: None, ..default() })
        });
        assert_close(&got.expect("spectra").to_f32(), &reference("stft_uncentered"), 2e-4, 1e-5, "uncentered");
        // The same window as a tensor, and a batch of two.
        let got = rig.compute(move |ops| {
            let window = ops.window(FrameWindow::Hamming, 250, true)?;
            let both = ops.stack([x, x], 0)?;
            let settings =
                StftSettings { frame: 250, hop: 77, center: None, custom_window: Some(window.into()), ..default() };
            ops.stft(both, settings)
        });
        let got = got.expect("spectra");
        let expected = reference("stft_uncentered");
        assert_eq!(got.shape()[..2], [2, 17]);
        assert_close(&got.to_f32(), &[expected.clone(), expected].concat(), 2e-4, 1e-5, "a window of one's own");
    }
}

#[test]
fn spectra_become_their_signal_again() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&noise(2 * 3000, 5), [2, 3000]).expect("a tensor"));
        for (frame, hop, window) in [
            (512, 128, FrameWindow::Hann),
            (400, 160, FrameWindow::Hann),
            (256, 100, FrameWindow::Hamming),
            (255, 64, FrameWindow::Blackman),
            (64, 64, FrameWindow::Rectangular),
        ] {
            let back = rig.compute(move |ops| {
                let settings = StftSettings { frame, hop, window, ..default() };
                ops.istft(ops.stft(x, settings.clone())?, settings, 3000)
            });
            let back = back.expect("a signal");
            assert_eq!(back.shape()[..], [2, 3000]);
            assert_close(&back.to_f32()[..2900], &noise(2 * 3000, 5)[..2900], 1e-5, 1e-5, &format!("{frame} {hop}"));
        }
        // Spectra that were changed: librosa divides by the same windows.
        let x = signal(&mut rig, 1500);
        let back = rig.compute(move |ops| {
            let settings = StftSettings { frame: 256, hop: 100, ..default() };
            let z = ops.stft(x, settings.clone())?;
            let (re, im) = (ops.slice(z, 2, 0, 1)?, ops.slice(z, 2, 1, 2)?);
            // Times 1 + 0.5i.
            let z = ops.concat([ops.value(re - im * 0.5)?, ops.value(im + re * 0.5)?], 2)?;
            ops.istft(z, settings, None)
        });
        assert_close(&back.expect("a signal").to_f32(), &reference("istft"), 1e-5, 1e-5, "istft");
    }
}

#[test]
fn log_mel_and_mfcc_are_librosas() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = signal(&mut rig, 16000);
        let got = rig.compute(move |ops| ops.log_mel(x, speech(80))).expect("bands");
        assert_eq!(got.shape()[..], [101, 80]);
        assert_close(&got.to_f32(), &reference("log_mel"), 1e-4, 1e-4, "log_mel");
        let got = rig.compute(move |ops| ops.mfcc(x, 13, speech(40))).expect("coefficients");
        assert_eq!(got.shape()[..], [101, 13]);
        assert_close(&got.to_f32(), &reference("mfcc"), 1e-4 * 13.0, 1e-4, "mfcc");
    }
}

#[test]
fn half_precision_gives_bands_too() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = signal(&mut rig, 16000);
        let got = rig.compute(move |ops| ops.log_mel(ops.cast(x, DType::F16)?, speech(80))).expect("bands");
        assert_eq!(got.dtype(), DType::F16);
        assert_close(&got.to_f32(), &reference("log_mel"), 0.1, 1e-2, "log_mel");
    }
}

#[test]
fn cosine_transforms_are_scipys() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for n in [1usize, 2, 13, 512, 513, 600, 601] {
            let x = rig.spawn(Tensor::from_slice(&noise(2 * n, 100 + n as u32), [2, n]).expect("a tensor"));
            for (kind, number) in [(DctKind::Two, 2), (DctKind::Three, 3)] {
                for (orthonormal, norm) in [(false, "backward"), (true, "ortho")] {
                    let name = format!("dct/{number}/{norm}/{n}");
                    let got =
                        rig.compute(move |ops| ops.dct(x, kind, orthonormal, LAST)).expect("a transform").to_f32();
                    // Relative to the energy of the results.
                    let expected = reference(&name);
                    let size = expected.iter().map(|x| x * x).sum::<f32>().sqrt() / (expected.len() as f32).sqrt();
                    assert_close(&got, &expected, size * 1e-5, 1e-5, &format!("{backend:?} {name}"));
                    let turned =
                        rig.compute(move |ops| ops.transpose(ops.dct(ops.transpose(x)?, kind, orthonormal, 0)?));
                    assert_close(&turned.expect("a transform").to_f32(), &got, size * 1e-5, 1e-5, "the other axis");
                }
            }
        }
    }
}

#[test]
fn other_sample_rates_are_scipys() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&noise(500, 200), [500]).expect("a tensor"));
        for (up, down) in [(3, 2), (2, 3), (1, 3), (5, 1), (160, 441), (441, 160)] {
            let name = format!("resample/{up}/{down}");
            let got = rig.compute(move |ops| ops.resample(x, down, up, LAST)).expect("samples").to_f32();
            assert_close(&got, &reference(&name), 1e-5, 1e-4, &format!("{backend:?} {name}"));
            // Rates with the same ratio, along another axis.
            let column = rig.compute(move |ops| {
                let column = ops.reshape(x, &[500, 1])?;
                ops.resample(column, down * 100, up * 100, 0)
            });
            let column = column.expect("samples");
            assert_eq!(column.shape()[..], [got.len(), 1]);
            assert_close(&column.to_f32(), &got, 1e-6, 1e-6, "a column");
        }
    }
}

#[test]
fn decibels_are_bounded_and_keep_nan() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&[1.0f32, 100.0, 1e-12, 0.0], [4]).expect("a tensor"));
        let db = |range| DbSettings { range, ..default() };
        let got = rig.compute(move |ops| ops.power_to_db(x, db(None))).expect("decibels").to_f32();
        assert_close(&got, &[0.0, 20.0, -100.0, -100.0], 1e-4, 1e-5, "floor");
        let got = rig.compute(move |ops| ops.power_to_db(x, db(Some(30.0)))).expect("decibels").to_f32();
        assert_close(&got, &[0.0, 20.0, -10.0, -10.0], 1e-4, 1e-5, "range");
        let nan = rig.spawn(Tensor::from_slice(&[f32::NAN, 1.0], [2]).expect("a tensor"));
        let got = rig.compute(move |ops| ops.power_to_db(nan, db(None))).expect("decibels").to_f32();
        assert!(got[0].is_nan() && got[1] == 0.0, "{got:?}");
    }
}

#[test]
fn bad_settings_are_errors() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::zeros([300], DType::F32).expect("small"));
        rig.with_ops(|ops| {
            let argument = |result: OpResult<TensorValue<'_>>, what: &str| match result {
                Err(OpError::Argument { reason, .. }) => assert!(!reason.is_empty()),
                other => panic!("{what}: {other:?}"),
            };
            let small = || StftSettings { frame: 64, hop: 16, ..default() };
            argument(ops.stft(x, StftSettings { hop: 0, ..small() }), "hop 0");
            argument(ops.stft(x, StftSettings { frame: 0, ..small() }), "frame 0");
            argument(
                ops.stft(x, StftSettings { window_length: Some(65), ..small() }),
                "a window longer than the frame",
            );
            argument(ops.stft(x, StftSettings { window_length: Some(0), ..small() }), "window of nothing");
            let long = StftSettings { frame: 512, center: None, ..default() };
            assert!(
                matches!(ops.stft(x, long), Err(OpError::Shape { op: "stft", .. })),
                "a frame longer than the signal"
            );
            argument(ops.window(FrameWindow::Kaiser { beta: f32::NAN }, 4, true), "beta");
            let mel = MelSettings::default();
            argument(ops.mel_filterbank(64, MelSettings { sample_rate: 0.0, ..mel }), "sample rate 0");
            argument(ops.mel_filterbank(64, MelSettings { sample_rate: f32::NAN, ..mel }), "sample rate NaN");
            argument(ops.mel_filterbank(64, MelSettings { bands: 0, ..mel }), "no bands");
            argument(ops.mel_filterbank(64, MelSettings { high: Some(9000.0), ..mel }), "above half the rate");
            argument(ops.mel_filterbank(0, mel), "no points");
            argument(
                ops.log_mel(x, LogMelSettings { mel: MelSettings { sample_rate: 0.0, ..mel }, ..default() }),
                "rate",
            );
            argument(ops.power_to_db(x, DbSettings { floor: 0.0, ..default() }), "floor 0");
            argument(ops.mfcc(x, 81, LogMelSettings::speech()), "more coefficients than bands");
            argument(ops.resample(x, 0, 1, LAST), "from 0");
            argument(ops.resample(x, 1, 0, LAST), "to 0");
            argument(ops.resample(x, 44_100, 44_101, LAST), "an odd ratio");
            let z = ops.full([5, 33, 2], 0.0, DType::F32).expect("small");
            argument(ops.istft(z, StftSettings { hop: 0, ..small() }, None), "hop 0");
            assert!(ops.istft(z, StftSettings { hop: 1, ..small() }, None).is_ok());
            let other = StftSettings { frame: 66, ..small() };
            assert!(matches!(ops.istft(z, other, None), Err(OpError::Shape { op: "istft", .. })), "other bins");
        });
        // NaN goes through, only where it is.
        let mut samples = vec![0.5f32; 300];
        samples[10] = f32::NAN;
        let x = rig.spawn(Tensor::from_slice(&samples, [300]).expect("a tensor"));
        let got = rig
            .compute(move |ops| ops.spectrogram(x, StftSettings { frame: 64, hop: 64, center: None, ..default() }))
            .expect("spectra")
            .to_f32();
        assert!(got[..33].iter().any(|x| x.is_nan()) && got[33..].iter().all(|x| x.is_finite()));
    }
}
