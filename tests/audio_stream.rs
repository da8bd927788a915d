//! Streams of samples: chunks of any size give the frames of the whole signal, and nothing is lost or seen twice.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};
use crate::fourier::noise;

fn input(rig: &mut Rig, capacity: usize) -> Entity {
    let input = AudioInput::new(16_000, capacity).expect("a ring");
    let entity = rig.app.world_mut().spawn(input).id();
    rig.app.update();
    entity
}

/// Writes a chunk, and the spectra of the frames that are complete then.
fn step(rig: &mut Rig, entity: Entity, chunk: &[f32], frame: usize, hop: usize) -> Option<TensorReceiver> {
    let mut input = rig.app.world_mut().entity_mut(entity).take::<AudioInput>().expect("an input");
    input.write(chunk).expect("room");
    let mut receiver = None;
    rig.with_ops(|ops| {
        if let Some(samples) = input.frames(ops, frame, hop).expect("frames") {
            let settings = StftSettings { frame, hop, center: None, ..default() };
            let power = ops.spectrogram(samples, settings).expect("spectra");
            receiver = Some(ops.read(power).expect("readable"));
        }
    });
    rig.app.world_mut().entity_mut(entity).insert(input);
    rig.app.update();
    receiver
}

/// Sizes of chunks, from 1 to `most`.
fn sizes(total: usize, most: usize, seed: u32) -> Vec<usize> {
    let (mut sizes, mut sum) = (Vec::new(), 0);
    for x in noise(100_000, seed) {
        let size = (1 + ((x + 1.0) * 0.5 * most as f32) as usize).min(most).min(total - sum);
        if size == 0 {
            break;
        }
        sizes.push(size);
        sum += size;
    }
    sizes
}

#[test]
fn chunks_of_any_size_give_the_frames_of_the_whole_signal_bit_by_bit() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (frame, hop, most) in [(400, 160, 5000), (256, 256, 3000), (64, 100, 900), (400, 160, 40), (1000, 7, 600)] {
            let total = if most < 100 { 4_000 } else { 60_000 };
            let signal = noise(total, 17);
            let entity = input(&mut rig, 8_000);
            let (mut receivers, mut rest) = (Vec::new(), &signal[..]);
            for size in sizes(total, most, frame as u32) {
                let (chunk, later) = rest.split_at(size);
                receivers.extend(step(&mut rig, entity, chunk, frame, hop));
                rest = later;
            }
            let streamed: Vec<f32> =
                receivers.iter().flat_map(|receiver| rig.wait(receiver).expect("spectra").to_f32()).collect();
            let whole = rig.spawn(Tensor::from_slice(&signal, [total]).expect("a tensor"));
            let settings = move || StftSettings { frame, hop, center: None, ..default() };
            let whole = rig.compute(move |ops| ops.spectrogram(whole, settings())).expect("spectra").to_f32();
            assert_eq!(streamed.len(), whole.len(), "{backend:?}: {frame} {hop} {most}");
            assert!(streamed.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{backend:?}: {frame} {hop}");
            let figures = rig.app.world().get::<AudioInput>(entity).expect("an input").figures();
            assert_eq!((figures.written, figures.refused, figures.skipped), (total as u64, 0, 0));
            assert!(figures.waiting < frame.max(hop), "{figures:?}");
        }
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn ten_minutes_of_sound_take_no_more_memory_than_ten_seconds() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let entity = input(&mut rig, 16_000);
        // A second at a time, so that ten minutes are 600 updates.
        let chunk = noise(16_000, 4);
        let mut frames = 0;
        let mut after = Vec::new();
        for second in 0..600 {
            let receiver = step(&mut rig, entity, &chunk[..15_000 + second % 1000], 400, 160).expect("frames");
            frames += rig.wait(&receiver).expect("spectra").shape()[0];
            if second == 299 || second == 599 {
                rig.settle();
                let figures = rig.figures();
                after.push((figures.device_bytes, figures.plan_bytes, figures.scratch_bytes));
            }
        }
        let figures = rig.app.world().get::<AudioInput>(entity).expect("an input").figures();
        let total: u64 = (0..600).map(|second| 15_000 + second % 1000).sum();
        assert_eq!(figures.written, total);
        assert_eq!(frames as u64, (total - 400) / 160 + 1);
        assert_eq!(figures.taken, frames as u64 * 160);
        assert_eq!(after[0].0, after[1].0, "{backend:?}: {after:?}");
        assert!(after[1].1 + after[1].2 <= (after[0].1 + after[0].2).max(1 << 20) * 2, "{backend:?}: {after:?}");
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn a_steady_stream_builds_no_plans() {
    let mut rig = Rig::new(Backend::Gpu);
    let entity = input(&mut rig, 16_000);
    let signal = noise(100_000, 8);
    let mut last = (0, 0);
    for (i, chunk) in signal.chunks(800).enumerate() {
        if let Some(receiver) = step(&mut rig, entity, chunk, 400, 160) {
            rig.wait(&receiver).expect("spectra");
        }
        if i == 60 {
            let figures = rig.figures();
            last = (figures.plans_built, figures.pipelines_built);
        }
    }
    let figures = rig.figures();
    assert_eq!((figures.plans_built, figures.pipelines_built), last);
}

#[test]
fn the_latest_samples_come_in_order_with_zeros_before_the_first() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let entity = input(&mut rig, 10_000);
        let overflow = rig.app.world_mut().entity_mut(entity).take::<AudioInput>().expect("an input");
        rig.app.world_mut().entity_mut(entity).insert(overflow.with_overflow(AudioOverflow::SkipOldest));
        let mut signal = vec![0.0; 3_000];
        for (i, size) in sizes(60_000, 4_000, 3).into_iter().enumerate() {
            let chunk = noise(size, i as u32);
            signal.extend_from_slice(&chunk);
            let mut input = rig.app.world_mut().entity_mut(entity).take::<AudioInput>().expect("an input");
            input.write(&chunk).expect("the oldest are skipped");
            let mut receiver = None;
            rig.with_ops(|ops| receiver = Some(ops.read(input.last(ops, 3_000).expect("samples")).expect("readable")));
            rig.app.world_mut().entity_mut(entity).insert(input);
            let got = rig.wait(&receiver.expect("recorded")).expect("samples").to_f32();
            assert!(got == signal[signal.len() - 3_000..], "{backend:?}: after chunk {i}");
        }
        let figures = rig.app.world().get::<AudioInput>(entity).expect("an input").figures();
        assert_eq!(figures.waiting, 10_000);
        assert_eq!(figures.skipped, 50_000);
    }
}

#[test]
fn a_full_ring_refuses_samples_and_says_how_many_fit() {
    let mut rig = Rig::new(Backend::Cpu);
    let entity = input(&mut rig, 1_000);
    let mut input = rig.app.world_mut().get_mut::<AudioInput>(entity).expect("an input");
    input.write(&[0.5; 900]).expect("room");
    assert_eq!(input.write(&[0.5; 101]), Err(AudioError::Full { given: 101, room: 100 }));
    assert_eq!(input.figures().refused, 101);
    assert_eq!(input.figures().written, 900);
    input.write(&[0.5; 100]).expect("room");
    assert_eq!(input.room(), 0);
    assert!(step(&mut rig, entity, &[], 1_000, 500).is_some());
    assert_eq!(rig.app.world().get::<AudioInput>(entity).expect("an input").room(), 500);
}

#[test]
fn bad_inputs_are_errors() {
    assert_eq!(AudioInput::new(0, 10).err(), Some(AudioError::SampleRate));
    assert!(matches!(AudioInput::new(1, 0), Err(AudioError::Capacity { capacity: 0, .. })));
    assert!(matches!(AudioInput::new(1, usize::MAX), Err(AudioError::Capacity { .. })));
    let mut rig = Rig::new(Backend::Cpu);
    let mut lost = AudioInput::new(16_000, 1_000).expect("a ring");
    lost.write(&[0.0; 500]).expect("room");
    rig.with_ops(|ops| {
        for (frame, hop) in [(400, 0), (0, 160), (1_001, 160)] {
            let result = lost.frames(ops, frame, hop);
            assert!(matches!(result, Err(AudioError::Op(OpError::Argument { op: "frames", .. }))), "{result:?}");
        }
        assert!(matches!(lost.last(ops, 1_001), Err(AudioError::Op(OpError::Argument { op: "last", .. }))));
        assert_eq!(lost.frames(ops, 400, 160).err(), Some(AudioError::NotSpawned));
    });
}

#[cfg(feature = "audio")]
mod clips {
    use std::path::Path;

    use super::*;

    /// A WAV file of 16-bit samples.
    fn wav(rate: u32, channels: u16, samples: &[i16]) -> Vec<u8> {
        let bytes = samples.len() as u32 * 2;
        let mut file = b"RIFF".to_vec();
        file.extend((36 + bytes).to_le_bytes());
        file.extend(b"WAVEfmt ");
        file.extend(16u32.to_le_bytes());
        file.extend(1u16.to_le_bytes());
        file.extend(channels.to_le_bytes());
        file.extend(rate.to_le_bytes());
        file.extend((rate * u32::from(channels) * 2).to_le_bytes());
        file.extend((channels * 2).to_le_bytes());
        file.extend(16u16.to_le_bytes());
        file.extend(b"data");
        file.extend(bytes.to_le_bytes());
        file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
        file
    }

    #[test]
    fn wav_files_are_decoded() {
        let file = wav(22_050, 2, &[16384, -16384, 32767, 0, -32768, -32768]);
        let clip = SoundClip::from_bytes(Path::new("a.wav"), &file).expect("a clip");
        assert_eq!((clip.sample_rate(), clip.channels()), (22_050, 2));
        assert_eq!(clip.mono(), [0.0, 32767.0 / 65536.0, -1.0]);
        assert_eq!(clip.tensor().expect("a tensor").shape()[..], [3, 2]);
    }

    #[test]
    fn the_sound_that_ships_with_the_repository_is_decoded() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/examples/spectrogram.ogg");
        let clip = SoundClip::from_bytes(&path, &std::fs::read(&path).expect("a file")).expect("a clip");
        assert_eq!((clip.sample_rate(), clip.channels()), (16_000, 1));
        assert!(clip.seconds() > 10.0 && clip.samples().iter().any(|x| x.abs() > 0.3));
    }

    #[test]
    fn broken_files_are_errors() {
        let file = wav(16_000, 1, &[1, 2, 3]);
        let whole = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/examples/spectrogram.ogg"))
            .expect("a file");
        let cut = [&b"OggS"[..], &[7; 500]].concat();
        for bytes in [&b""[..], b"RIFF", b"OggS", &file[..30], &file[..file.len() - 1], &cut, &whole[..100], b"ID3"] {
            let result = SoundClip::from_bytes(Path::new("broken"), bytes);
            assert!(matches!(result, Err(AudioError::File { .. })), "{} bytes", bytes.len());
        }
        let silent = wav(0, 1, &[1, 2]);
        assert!(matches!(SoundClip::from_bytes(Path::new("rate"), &silent), Err(AudioError::File { .. })));
        assert_eq!(SoundClip::new(0, 1, vec![0.0]), Err(AudioError::SampleRate));
    }
}
