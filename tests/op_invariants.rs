//! Properties that hold for all inputs: of rotary embeddings, attention and convolution, and of running the same work
//! twice.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig, assert_close};
use crate::parity::host::{Array, View};
use crate::parity::table::{difference, noise};

const LAYOUTS: [RopeLayout; 2] = [RopeLayout::Half, RopeLayout::Interleaved];

fn spawn(rig: &mut Rig, array: &Array) -> Entity {
    rig.spawn(Tensor::from(array.to_data(DType::F32)))
}

fn random(rig: &mut Rig, shape: &[usize], seed: u32) -> Entity {
    spawn(rig, &noise(shape, -1.0, 1.0, seed))
}

#[test]
fn rotary_positions_keep_lengths() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (i, layout) in LAYOUTS.into_iter().enumerate() {
            for (s, d, position) in [(1, 2, 0), (7, 8, 3), (65, 64, 0), (257, 32, 1000), (2, 128, 100_000)] {
                let x = random(&mut rig, &[2, s, d], i as u32 + 1);
                let (before, after) = (rig.compute(move |ops| ops.l2_norm(x, -1)), {
                    rig.compute(move |ops| {
                        let turned = ops.rope(x, RopeSettings { position, layout, ..default() })?;
                        ops.l2_norm(turned, -1)
                    })
                });
                let (before, after) = (before.expect("floats").to_f32(), after.expect("floats").to_f32());
                assert_close(
                    &after,
                    &before,
                    1e-5,
                    1e-5,
                    &format!("{layout:?} {s} {d} at {position} on the {backend}"),
                );
            }
        }
    }
}

#[test]
fn rotary_positions_start_with_no_turn() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for layout in LAYOUTS {
            let x = random(&mut rig, &[3, 1, 64], 1);
            let turned = rig.compute(move |ops| ops.rope(x, RopeSettings { layout, ..default() })).expect("floats");
            assert_eq!(turned, rig.read(x), "{layout:?} on the {backend}");
        }
    }
}

#[test]
fn rotary_positions_of_a_part_are_those_of_the_whole() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for layout in LAYOUTS {
            let x = random(&mut rig, &[2, 40, 16], 1);
            let whole = rig
                .compute(move |ops| {
                    let turned = ops.rope(x, RopeSettings { layout, rotary: Some(12), ..default() })?;
                    ops.slice(turned, 1, 13, 30)
                })
                .expect("floats");
            let part = rig
                .compute(move |ops| {
                    let part = ops.slice(x, 1, 13, 30)?;
                    ops.rope(part, RopeSettings { position: 13, layout, rotary: Some(12), ..default() })
                })
                .expect("floats");
            assert_close(&part.to_f32(), &whole.to_f32(), 1e-6, 1e-6, &format!("{layout:?} on the {backend}"));
        }
    }
}

/// Settings that hide keys and values, in every supported way.
fn hidden(name: &str) -> AttentionSettings<'static> {
    match name {
        "causal" => AttentionSettings { causal: true, ..default() },
        "not valid" => AttentionSettings { valid_keys: Some(65), ..default() },
        _ => AttentionSettings::default(),
    }
}

#[test]
fn hidden_keys_change_no_bit() {
    // Queries before key 65 see no key from 65 on.
    let (s, t, seen, d) = (65, 100, 65, 16);
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let q = random(&mut rig, &[1, 2, s, d], 1);
        let other = |seed: u32, odd: f64| {
            let (base, change) = (noise(&[1, 2, t, d], -1.0, 1.0, seed), noise(&[1, 2, t, d], -9.0, 9.0, seed + 10));
            let changed =
                Array::from_fn(&[1, 2, t, d], |at| if at[2] < seen { base.at(at) } else { change.at(at) * odd });
            (base, changed)
        };
        for name in ["causal", "not valid", "mask"] {
            let [(k, k2), (v, v2)] = [other(2, 1e6), other(3, 1e6)];
            let tensors = [k, v, k2, v2].map(|array| spawn(&mut rig, &array));
            let mask: Vec<Truth> = (0..t).map(|key| Truth::from(key < seen)).collect();
            let mask = rig.spawn(Tensor::from_slice(&mask, [1, t]).expect("as many"));
            let mut run = |k: Entity, v: Entity| {
                let mut settings = hidden(name);
                if name == "mask" {
                    settings.mask = Some(mask.into());
                }
                rig.compute(move |ops| ops.attention(q, k, v, settings)).expect("it fits")
            };
            let (a, b) = (run(tensors[0], tensors[1]), run(tensors[2], tensors[3]));
            assert_eq!(a.bytes(), b.bytes(), "{name} on the {backend}");
        }
    }
}

#[test]
fn one_key_returns_its_value() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (h, g, d, e) in [(1, 1, 1, 1), (3, 1, 7, 9), (12, 4, 64, 64), (2, 2, 256, 255)] {
            let (q, k) = (random(&mut rig, &[2, h, 1, d], 1), random(&mut rig, &[2, g, 1, d], 2));
            let values = noise(&[2, g, 1, e], -1.0, 1.0, 3);
            let v = spawn(&mut rig, &values);
            let out = rig.compute(move |ops| ops.attention(q, k, v, default())).expect("it fits");
            let expected =
                Array::from_fn(&[2, h, 1, e], |at| values.at(&[at[0], at[1] * g / h, 0, at[3]]) as f32 as f64);
            assert_eq!(Array::from_data(&out), expected, "{h}/{g} heads of {d} on the {backend}");
        }
    }
}

/// Attention composed of basic ops.
fn composed<'a>(ops: &'a TensorCommands, [q, k, v]: [Entity; 3], causal: bool) -> OpResult<TensorValue<'a>> {
    let (of_q, of_k) = (ops.shape(q)?, ops.shape(k)?);
    let (h, s, d, g, t) = (of_q[1], of_q[2], of_q[3], of_k[1], of_k[2]);
    let (k, v) = (ops.repeat(k, 1, h / g)?, ops.repeat(v, 1, h / g)?);
    let scores = ops.matmul_nt(q, k)?;
    let mut scores = ops.mul(scores, 1.0 / (d as f32).sqrt())?;
    if causal {
        let ones = ops.full([s, t], 1.0, DType::F32)?;
        let seen = ops.tril(ones, t as i32 - s as i32)?;
        let seen = ops.greater(seen, 0.5)?;
        scores = ops.select(seen, scores, f32::NEG_INFINITY)?;
    }
    let weights = ops.softmax(scores, -1)?;
    ops.matmul(weights, v)
}

#[test]
fn attention_is_softmax_of_products() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for (length, h, g, d) in [
            (1, 1, 1, 64),
            (7, 3, 3, 32),
            (64, 12, 12, 16),
            (64, 12, 4, 32),
            (65, 12, 4, 16),
            (65, 3, 1, 64),
            (300, 3, 3, 32),
            (300, 12, 4, 16),
            (1024, 1, 1, 32),
        ] {
            let q = random(&mut rig, &[1, h, length, d], 1);
            let (k, v) = (random(&mut rig, &[1, g, length, d], 2), random(&mut rig, &[1, g, length, d], 3));
            for causal in [false, true] {
                let settings = AttentionSettings { causal, ..default() };
                let (fused, plain) = rig
                    .record(move |ops| {
                        let fused = ops.attention(q, k, v, settings)?;
                        let plain = composed(ops, [q, k, v], causal)?;
                        Ok((ops.read(fused)?, ops.read(plain)?))
                    })
                    .expect("it fits");
                let (fused, plain) = (rig.wait(&fused).expect("values"), rig.wait(&plain).expect("values"));
                let what = format!("{length} × {h}/{g} heads of {d}, causal: {causal}, on the {backend}");
                assert_close(&fused.to_f32(), &plain.to_f32(), 1e-4, 1e-4, &what);
            }
            for entity in [q, k, v] {
                rig.app.world_mut().despawn(entity);
            }
        }
    }
}

#[test]
fn a_growing_cache_gives_what_the_whole_gives() {
    let (h, g, length, room, d) = (4, 2, 20, 32, 16);
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let [q, k, v] = [(h, 1), (g, 2), (g, 3)].map(|(heads, seed)| random(&mut rig, &[1, heads, length, d], seed));
        // Unwritten content must not matter, whatever it is.
        let [keys, values] = [1e9, f64::from(f32::NAN)]
            .map(|old| rig.spawn(Tensor::full([1, g, room, d], old, DType::F32).expect("small")));
        let whole = rig
            .compute(move |ops| ops.attention(q, k, v, AttentionSettings { causal: true, ..default() }))
            .expect("it fits");
        let whole = Array::from_data(&whole);
        // A prompt of seven tokens, then one at a time.
        let mut position = 0;
        for count in std::iter::once(7).chain(std::iter::repeat_n(1, length - 7)) {
            let (from, to) = (position as isize, (position + count) as isize);
            let at = position;
            let part = rig
                .compute(move |ops| {
                    let (new_k, new_v) = (ops.slice(k, 2, from, to)?, ops.slice(v, 2, from, to)?);
                    ops.append(keys, new_k, 2, at)?;
                    ops.append(values, new_v, 2, at)?;
                    let q = ops.slice(q, 2, from, to)?;
                    let settings = AttentionSettings {
                        causal: true,
                        valid_keys: Some(at + count),
                        position: Some(at),
                        ..default()
                    };
                    ops.attention(q, keys, values, settings)
                })
                .expect("it fits");
            let expected = whole.view(View::Slice { axis: 2, start: from, end: to, step: 1 });
            let far = difference(&Array::from_data(&part), &expected, (1e-5, 1e-4), "cache", "whole");
            assert_eq!(far, None, "at {position} on the {backend}");
            position += count;
        }
    }
}

#[test]
fn convolutions_are_what_a_loop_gives() {
    let rigs = BACKENDS.map(Rig::new);
    for mut rig in rigs {
        for (x, w, padding) in [
            ([4, 3, 32, 32], [16, 3, 3, 3], Padding::Valid),
            ([2, 3, 64, 64], [8, 3, 5, 5], Padding::Explicit([[2, 2], [2, 2]])),
            ([1, 32, 28, 28], [64, 32, 3, 3], Padding::Same),
        ] {
            let (image, weight) = (noise(&x, -1.0, 1.0, 1), noise(&w, -1.0, 1.0, 2));
            let round = |array: &Array| array.map(|v| f64::from(v as f32));
            let pads = if padding == Padding::Valid { [0, 0] } else { [w[2] / 2, w[3] / 2] };
            let expected = round(&image).conv2d(&round(&weight), pads);
            let (x, w) = (spawn(&mut rig, &image), spawn(&mut rig, &weight));
            let settings = ConvSettings { padding, ..default() };
            let out = rig.compute(move |ops| ops.conv2d(x, w, None, settings)).expect("it fits");
            let far = difference(&Array::from_data(&out), &expected, (1e-5, 1e-4), "backend", "loop");
            assert_eq!(far, None, "on the {}", rig.backend);
        }
    }
}

/// Work with every kernel whose summation order could vary.
fn mixture(ops: &TensorCommands, x: Entity) -> Result<Vec<TensorReceiver>, OpError> {
    let square = ops.matmul_nt(x, x)?;
    let rows = ops.softmax(square, -1)?;
    let normed = ops.layer_norm(rows, None, None, -1, 1e-5)?;
    let sums = ops.sum(normed, 0)?;
    let total = ops.mean(x, Axes::ALL)?;
    let running = ops.cumsum(x, 1)?;
    let heads = ops.reshape(x, &[1, 1, 130, 64])?;
    let attended = ops.attention(heads, heads, heads, default())?;
    let image = ops.reshape(x, &[1, 2, 65, 64])?;
    let window = ops.reshape(x, &[-1, 2, 2, 2])?;
    let window = ops.slice(window, 0, 0, 5)?;
    let convolved = ops.conv2d(image, window, None, default())?;
    let index = ops.arange(0.0, 0.0, 130, DType::I32)?;
    let index = ops.unsqueeze(index, &[1])?;
    let index = ops.broadcast_to(index, [130, 64])?;
    let zero = ops.full([1, 64], 0.0, DType::F32)?;
    let scattered = ops.scatter_elements(zero, index, x, 0, bevy_tensor_compute::ops::ScatterMode::Add)?;
    let wave = ops.gelu(x)?;
    [square, normed, sums, total, running, attended, convolved, scattered, wave]
        .into_iter()
        .map(|value| ops.read(value))
        .collect()
}

#[test]
fn the_same_work_gives_the_same_bits() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = random(&mut rig, &[130, 64], 1);
        let mut run = || -> Vec<TensorData> {
            let receivers = rig.record(move |ops| mixture(ops, x)).expect("it fits");
            receivers.iter().map(|receiver| rig.wait(receiver).expect("values")).collect()
        };
        let first = run();
        for _ in 0..3 {
            for (i, (a, b)) in first.iter().zip(&run()).enumerate() {
                assert_eq!(a.bytes(), b.bytes(), "result {i} on the {backend}");
            }
        }
        // Twice in one frame, by two systems.
        let receivers = [(); 2].map(|()| rig.record(move |ops| mixture(ops, x)).expect("it fits"));
        for receivers in receivers {
            for (i, (receiver, first)) in receivers.iter().zip(&first).enumerate() {
                let again = rig.wait(receiver).expect("values");
                assert_eq!(again.bytes(), first.bytes(), "result {i} on the {backend}");
            }
        }
    }
}
