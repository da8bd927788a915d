//! The tuner: variants agree, the fastest one is chosen, and the choice is used and stored.

use std::time::Duration;

use bevy::prelude::*;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::pipelines::{TensorPipelines, TuneOutcome, TuneSettings};
use bevy_tensor_compute::prelude::*;

use crate::common::{Rig, assert_close};

fn pipelines(rig: &Rig) -> TensorPipelines {
    rig.app.world().resource::<TensorPipelines>().clone()
}

fn random(rig: &mut Rig, shape: &[usize]) -> Entity {
    rig.spawn(Tensor::random_uniform(shape, -1.0, 1.0, 11, DType::F32).unwrap())
}

/// Tunes recorded work. Returns the result.
fn tune(
    rig: &mut Rig,
    settings: TuneSettings,
    record: impl FnOnce(&TensorCommands) -> OpResult<()>,
) -> Vec<TuneOutcome> {
    let shared = pipelines(rig);
    let before = shared.tuned().len();
    rig.with_ops(|ops| ops.tune(settings, record).unwrap());
    // It starts in the next frame.
    rig.app.update();
    rig.step_until(|_| shared.tuning_now() == 0);
    shared.tuned().split_off(before)
}

#[test]
fn the_tuner_finds_the_best_product_and_the_next_start_knows_it() {
    const SIZES: [usize; 4] = [64, 128, 256, 512];
    let folder = std::env::temp_dir().join(format!("tensor_tuning_{}", std::process::id()));
    let settings = || PipelineSettings { synchronous: true, cache: Some(folder.clone()), ..default() };
    let mut rig = Rig::with(Backend::Gpu, TensorComputePlugin { pipelines: settings(), ..default() });
    let tensors = SIZES.map(|n| random(&mut rig, &[n, n]));
    let record = move |ops: &TensorCommands| {
        tensors.iter().try_for_each(|&x| ops.matmul(x, x).and_then(|y| ops.read(y)).map(drop))
    };
    let found = tune(&mut rig, TuneSettings::at_once(), record);
    assert_eq!(found.len(), SIZES.len(), "{found:?}");
    // Measured again twice, in the same way but separately.
    let again = TuneSettings { again: true, ..TuneSettings::at_once() };
    let checks = [tune(&mut rig, again, record), tune(&mut rig, again, record)];
    for first in &found {
        assert!(first.forms.len() > 1, "{first:?}");
        assert!(first.forms.iter().all(|form| form.left_out.is_none()), "all agree: {first:?}");
        let times = |variant: &str| {
            let of = |outcomes: &Vec<TuneOutcome>| {
                let outcome = outcomes.iter().find(|outcome| outcome.bucket == first.bucket).unwrap();
                outcome.forms.iter().find(|form| form.variant == variant).and_then(|form| form.time).unwrap()
            };
            [of(&found), of(&checks[0]), of(&checks[1])]
        };
        let later = |variant: &str| times(variant)[1].min(times(variant)[2]);
        let (chosen, default) = (later(&first.chosen), later(&first.default));
        let best = first.forms.iter().map(|form| later(&form.variant)).min().unwrap();
        // The tolerance is 5 %, plus the variation between two measurements of the same variant, which is larger on
        // shared cores.
        let near = first.forms.iter().filter(|form| later(&form.variant) < best * 2);
        let blur = near.map(|form| times(&form.variant)).map(|times| {
            let (low, high) = (times.iter().min().unwrap(), times.iter().max().unwrap());
            high.as_secs_f64() / low.as_secs_f64()
        });
        let blur = blur.fold(1.0, f64::max);
        let text = format!(
            "{}: {} takes {chosen:?}, the best {best:?}, the default {default:?}, blur {blur:.2}",
            first.bucket, first.chosen
        );
        println!("{text}");
        assert!(chosen <= best.mul_f64(1.05 * blur), "{text}");
    }

    // The work uses the last choice and gives the same result.
    let table = pipelines(&rig).tuning();
    let x = tensors[1];
    let tuned = rig.compute(move |ops| ops.matmul(x, x)).unwrap();
    drop(rig);
    let mut rig = Rig::with(Backend::Gpu, TensorComputePlugin { pipelines: settings(), ..default() });
    assert_eq!(pipelines(&rig).tuning(), table, "the next start has the table");
    let x = random(&mut rig, &[128, 128]);
    let reloaded = rig.compute(move |ops| ops.matmul(x, x)).unwrap();
    assert_eq!(reloaded.bytes(), tuned.bytes());
    let bucket = &found[1].bucket;
    let report = pipelines(&rig).report();
    let used = report.pipelines.iter().find(|pipeline| &*pipeline.kernel == "matmul").unwrap();
    assert_eq!(*used.variant, *table.choices[bucket].variant, "and uses it");
    assert_eq!(pipelines(&rig).tuned(), [], "without measuring");
    drop(rig);
    let _ = std::fs::remove_dir_all(&folder);
    let mut plain = Rig::new(Backend::Gpu);
    let x = random(&mut plain, &[128, 128]);
    let expected = plain.compute(move |ops| ops.matmul(x, x)).unwrap().as_slice::<f32>().unwrap().to_vec();
    assert_close(reloaded.as_slice().unwrap(), &expected, 1e-4, 1e-4, "tuned and not");
}

#[test]
fn every_form_of_every_hot_kernel_agrees() {
    let mut rig = Rig::new(Backend::Gpu);
    let matrix = random(&mut rig, &[96, 260]);
    let row = random(&mut rig, &[1, 260]);
    let wide = random(&mut rig, &[260, 72]);
    let image = random(&mut rig, &[1, 16, 12, 12]);
    let filters = random(&mut rig, &[24, 16, 3, 3]);
    let found = tune(&mut rig, TuneSettings { rounds: 1, ..TuneSettings::at_once() }, |ops| {
        let settings = ConvSettings { padding: Padding::Same, ..default() };
        let values = [
            ops.matmul(matrix, wide)?,
            ops.matmul(row, wide)?,
            ops.softmax(matrix, -1)?,
            ops.layer_norm(matrix, None, None, -1, 1e-5)?,
            ops.sum(matrix, -1)?,
            ops.sum(matrix, 0)?,
            ops.conv2d(image, filters, None, settings)?,
            ops.tanh(matrix)?,
        ];
        values.into_iter().try_for_each(|value| ops.read(value).map(drop))
    });
    let mut kernels: Vec<&str> = found.iter().map(|outcome| outcome.kernel).collect();
    kernels.sort_unstable();
    assert_eq!(kernels, ["conv", "map", "matmul", "matmul", "reduce", "reduce", "row_norm", "softmax"]);
    for outcome in &found {
        assert!(outcome.forms.len() > 1, "{outcome:?}");
        assert!(outcome.forms.iter().all(|form| form.left_out.is_none() && form.time.is_some()), "{outcome:?}");
        assert_eq!(outcome.forms[0].variant, outcome.default);
        assert!(outcome.forms.iter().any(|form| form.variant == outcome.chosen));
    }
    assert_eq!(rig.faults(), []);
}

#[test]
fn a_kernel_beyond_the_budget_keeps_its_default_and_frames_their_pace() {
    let mut rig = Rig::new(Backend::Gpu);
    let x = random(&mut rig, &[128, 128]);
    let settings = TuneSettings { budget: Duration::from_nanos(1), ..default() };
    let record = move |ops: &TensorCommands| ops.matmul(x, x).and_then(|y| ops.read(y)).map(drop);
    let found = tune(&mut rig, settings, record);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].chosen, found[0].default);
    assert!(found[0].forms.iter().all(|form| form.time.is_none()), "{found:?}");
    assert!(pipelines(&rig).tuning().choices.is_empty());
}

#[test]
fn in_the_background_the_kernels_an_app_uses_are_tuned() {
    let tune = Some(TuneSettings { budget: Duration::from_secs(1), rounds: 3, ..default() });
    let pipelines_ = PipelineSettings { synchronous: true, tune, ..default() };
    let mut rig = Rig::with(Backend::Gpu, TensorComputePlugin { pipelines: pipelines_, ..default() });
    let x = random(&mut rig, &[64, 64]);
    let before = rig.compute(move |ops| ops.softmax(x, -1)).unwrap();
    let shared = pipelines(&rig);
    rig.step_until(|_| shared.tuned().iter().any(|outcome| outcome.kernel == "softmax") && shared.tuning_now() == 0);
    let after = rig.compute(move |ops| ops.softmax(x, -1)).unwrap();
    assert_close(after.as_slice().unwrap(), before.as_slice().unwrap(), 1e-6, 1e-5, "tuned meanwhile");
    assert_eq!(rig.faults(), []);
}
