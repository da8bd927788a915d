//! Compares layers with their definitions. Whole networks are tested in `encoders`.

use bevy::prelude::*;
use bevy_tensor_compute::nn::{Activation, BatchNorm, EncoderBlock, LayerNorm, Linear, SelfAttention, mean_rows};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::NameError;

use crate::common::{BACKENDS, Rig, assert_close};

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0).collect()
}

/// A model with tensors of these names and shapes.
fn model(rig: &mut Rig, tensors: &[(&'static str, &[usize])]) -> Entity {
    let model = rig.app.world_mut().spawn(TensorModel).id();
    for (seed, (name, shape)) in tensors.iter().enumerate() {
        let tensor =
            Tensor::from_slice(&numbers(shape.iter().product(), seed), Shape::new(shape.iter().copied())).unwrap();
        rig.app.world_mut().spawn((Name::new(*name), tensor, TensorOf(model)));
    }
    model
}

fn with_models<T: 'static>(rig: &mut Rig, look: impl Fn(TensorModels) -> T + Send + Sync + 'static) -> T {
    let id = rig.app.world_mut().register_system(look);
    rig.app.world_mut().run_system(id).unwrap()
}

#[test]
fn layers_find_their_weights_and_name_what_is_missing() {
    let mut rig = Rig::new(Backend::Cpu);
    let model = model(&mut rig, &[("a.b.weight", &[2, 3]), ("a.b.bias", &[2]), ("bare.weight", &[2, 3])]);
    let (both, bare, missing) = with_models(&mut rig, move |models: TensorModels| {
        let weights = models.weights(model);
        let part = weights.at("a");
        (Linear::find(&part.at("b")), Linear::find(&weights.at("bare")), LayerNorm::find(&part.at(7), 1e-5))
    });
    assert!(both.unwrap().bias.is_some());
    assert!(bare.unwrap().bias.is_none());
    assert_eq!(missing.unwrap_err(), NameError::NotFound { model, name: "a.7.weight".to_owned() });
}

#[test]
fn batch_norm_is_a_scale_and_a_shift_of_each_channel() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let model = model(&mut rig, &[("weight", &[3]), ("bias", &[3]), ("running_mean", &[3])]);
        let variance = Tensor::from_slice(&[0.5f32, 1.0, 4.0], [3]).unwrap();
        rig.app.world_mut().spawn((Name::new("running_var"), variance, TensorOf(model)));
        let layer =
            with_models(&mut rig, move |models: TensorModels| BatchNorm::find(&models.weights(model), 1e-3)).unwrap();
        let x = numbers(2 * 3 * 4, 9);
        let input = rig.spawn(Tensor::from_slice(&x, [2, 3, 2, 2]).unwrap());
        let actual = rig.compute(move |ops| layer.apply(ops, input)).unwrap().to_f32();
        let [weight, bias, mean] = [0, 1, 2].map(|seed| numbers(3, seed));
        let expected: Vec<f32> = (0..24)
            .map(|i| {
                let c = i / 4 % 3;
                (x[i] - mean[c]) / ([0.5f32, 1.0, 4.0][c] + 1e-3).sqrt() * weight[c] + bias[c]
            })
            .collect();
        assert_close(&actual, &expected, 1e-5, 1e-5, &format!("on the {backend}"));
    }
}

/// `x [n, in]` through `weight [out, in]` and a bias.
fn linear(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let (inputs, outputs) = (weight.len() / bias.len(), bias.len());
    let dot = |row: &[f32], o: usize| (0..inputs).map(|i| row[i] * weight[o * inputs + i]).sum::<f32>() + bias[o];
    x.chunks(inputs).flat_map(|row| (0..outputs).map(move |o| dot(row, o)).collect::<Vec<_>>()).collect()
}

fn layer_norm(x: &[f32], width: usize, weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    let norm = |row: &[f32]| -> Vec<f32> {
        let mean = row.iter().sum::<f32>() / width as f32;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / width as f32;
        (0..width).map(|i| (row[i] - mean) / (variance + eps).sqrt() * weight[i] + bias[i]).collect()
    };
    x.chunks(width).flat_map(norm).collect()
}

#[test]
fn an_encoder_block_is_attention_and_two_layers_each_normalised() {
    const WIDTH: usize = 8;
    const LENGTH: usize = 3;
    let names = [
        ("query", [WIDTH, WIDTH]),
        ("key", [WIDTH, WIDTH]),
        ("value", [WIDTH, WIDTH]),
        ("output", [WIDTH, WIDTH]),
        ("up", [16, WIDTH]),
        ("down", [WIDTH, 16]),
    ];
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let mut weights = Vec::new();
        let mut layer = |rig: &mut Rig, i: usize, [out, input]: [usize; 2]| {
            let (weight, bias) = (numbers(out * input, i), numbers(out, i + 20));
            let made = Linear {
                weight: rig.spawn(Tensor::from_slice(&weight, [out, input]).unwrap()),
                bias: Some(rig.spawn(Tensor::from_slice(&bias, [out]).unwrap())),
            };
            weights.push((weight, bias));
            made
        };
        let layers: Vec<Linear> = names.iter().enumerate().map(|(i, (_, shape))| layer(&mut rig, i, *shape)).collect();
        let norm = |rig: &mut Rig, seed| {
            let weight = rig.spawn(Tensor::from_slice(&numbers(WIDTH, seed), [WIDTH]).unwrap());
            let bias = rig.spawn(Tensor::from_slice(&numbers(WIDTH, seed + 1), [WIDTH]).unwrap());
            LayerNorm { weight, bias: Some(bias), eps: 1e-5 }
        };
        let block = EncoderBlock {
            attention: SelfAttention {
                query: layers[0],
                key: layers[1],
                value: layers[2],
                output: layers[3],
                heads: 2,
            },
            attention_norm: norm(&mut rig, 40),
            up: layers[4],
            down: layers[5],
            activation: Activation::Relu,
            norm: norm(&mut rig, 50),
        };
        let x = numbers(LENGTH * WIDTH, 60);
        let input = rig.spawn(Tensor::from_slice(&x, [1, LENGTH, WIDTH]).unwrap());
        // The last row is padding and is not compared.
        let settings = AttentionSettings { valid_keys: Some(LENGTH - 1), ..default() };
        let actual = rig.compute(move |ops| block.apply(ops, input, settings)).unwrap().to_f32();

        let [query, key, value] = [0, 1, 2].map(|i| linear(&x, &weights[i].0, &weights[i].1));
        let mut mixed = vec![0.0f32; LENGTH * WIDTH];
        for head in 0..2 {
            for row in 0..LENGTH {
                let at = |row: usize, i: usize| row * WIDTH + head * 4 + i;
                let score = |other: usize| (0..4).map(|i| query[at(row, i)] * key[at(other, i)]).sum::<f32>() / 2.0;
                let seen: Vec<f32> = (0..LENGTH - 1).map(|other| score(other).exp()).collect();
                for i in 0..4 {
                    let sum: f32 = seen.iter().enumerate().map(|(other, weight)| weight * value[at(other, i)]).sum();
                    mixed[at(row, i)] = sum / seen.iter().sum::<f32>();
                }
            }
        }
        let add = |a: Vec<f32>, b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        let y = add(linear(&mixed, &weights[3].0, &weights[3].1), &x);
        let y = layer_norm(&y, WIDTH, &numbers(WIDTH, 40), &numbers(WIDTH, 41), 1e-5);
        let wide: Vec<f32> = linear(&y, &weights[4].0, &weights[4].1).iter().map(|v| v.max(0.0)).collect();
        let z = add(linear(&wide, &weights[5].0, &weights[5].1), &y);
        let expected = layer_norm(&z, WIDTH, &numbers(WIDTH, 50), &numbers(WIDTH, 51), 1e-5);
        assert_close(&actual, &expected, 1e-4, 1e-4, &format!("on the {backend}"));
    }
}

#[test]
fn the_mean_of_rows_leaves_padding_out() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        let x = rig.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0, 9.0, 9.0], [1, 3, 2]).unwrap());
        let weights = rig.spawn(Tensor::from_slice(&[0.5f32, 0.5, 0.0], [1, 3]).unwrap());
        let mean = rig.compute(move |ops| mean_rows(ops, x, weights)).unwrap();
        assert_eq!(mean.shape()[..], [1, 2]);
        assert_close(&mean.to_f32(), &[2.0, 4.0], 1e-6, 0.0, &format!("on the {backend}"));
    }
}
