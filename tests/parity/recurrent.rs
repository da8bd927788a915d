//! Recurrent layers.

use bevy_tensor_compute::prelude::*;
use safetensors::SafeTensors;

use super::host::Array;
use super::table::{Case, Input, agree, layouts};
use crate::common::{BACKENDS, Rig, assert_close};

const UNIT: (f64, f64) = (-1.0, 1.0);

/// Hidden states of all steps, by the definition.
fn lstm(x: &[Array], reverse: bool) -> Array {
    let [x, w, r, bias, h, c] = x else { panic!("six operands") };
    let (steps, batch, input, hidden) = (x.shape[0], x.shape[1], x.shape[2], h.shape[1]);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut h, mut c) = (h.clone(), c.clone());
    let mut all = Array::new(&[steps, batch, hidden], vec![0.0; steps * batch * hidden]);
    for i in 0..steps {
        let t = if reverse { steps - 1 - i } else { i };
        let before = h.clone();
        for (b, j) in (0..batch).flat_map(|b| (0..hidden).map(move |j| (b, j))) {
            let gate = |gate: usize| {
                let row = gate * hidden + j;
                let of_input: f64 = (0..input).map(|k| x.at(&[t, b, k]) * w.at(&[row, k])).sum();
                let of_state: f64 = (0..hidden).map(|k| before.at(&[b, k]) * r.at(&[row, k])).sum();
                of_input + of_state + bias.at(&[row]) + bias.at(&[4 * hidden + row])
            };
            let at = b * hidden + j;
            c.values[at] = sigmoid(gate(2)) * c.values[at] + sigmoid(gate(0)) * gate(3).tanh();
            h.values[at] = sigmoid(gate(1)) * c.values[at].tanh();
            all.values[t * batch * hidden + at] = h.values[at];
        }
    }
    all
}

#[test]
fn lstm_layers_agree() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for (steps, batch, input, hidden) in [
            (1, 1, 1, 1),
            (2, 7, 3, 5),
            (7, 2, 63, 64),
            (3, 1, 5, 65),
            (5, 65, 2, 3),
            (65, 2, 4, 8),
            (2, 3, 1, 257),
            (1757, 1, 1, 2),
        ] {
            for reverse in [false, true] {
                let noise = |shape: &[usize], seed| Input::noise(dtype, shape, UNIT, seed);
                let small = |shape: &[usize], seed| Input::noise(dtype, shape, (-0.2, 0.2), seed);
                let inputs = [
                    noise(&[steps, batch, input], 1),
                    noise(&[4 * hidden, input], 2),
                    small(&[4 * hidden, hidden], 3),
                    noise(&[8 * hidden], 4),
                    noise(&[batch, hidden], 5),
                    noise(&[batch, hidden], 6),
                ];
                let name = format!("lstm {dtype} {steps} {batch} {input} {hidden}, reverse {reverse}");
                let case = Case::many(name, inputs, move |o, x| {
                    let given = [&x[3], &x[4], &x[5]].map(|x| Some(x.clone()));
                    let [bias, h, c] = given;
                    let layer = if reverse { TensorCommands::lstm_reverse } else { TensorCommands::lstm };
                    let (y, h, c) = layer(o, &x[0], &x[1], &x[2], bias, h, c)?;
                    Ok(vec![y, h, c])
                });
                cases.push(case.host(|x| lstm(x, reverse)).shaped(&[steps, batch, hidden]));
            }
        }
    }
    for ((layout, x), ((_, w), (_, r))) in layouts(DType::F32, &[4, 3, 5], UNIT, 1)
        .into_iter()
        .zip(layouts(DType::F32, &[8, 5], UNIT, 2).into_iter().rev().zip(layouts(DType::F32, &[8, 2], UNIT, 3)))
    {
        cases.push(Case::many(format!("lstm {layout}"), [x, w, r], |o, x| {
            let (y, h, c) = o.lstm(&x[0], &x[1], &x[2], None, None, None)?;
            Ok(vec![y, h, c])
        }));
    }
    agree(cases);
}

#[test]
fn a_layer_over_no_steps_gives_the_states_it_began_with() {
    let inputs = [([0, 2, 3].as_slice(), 1), (&[8, 3], 2), (&[8, 2], 3), (&[2, 2], 4), (&[2, 2], 5)];
    let inputs = inputs.map(|(shape, seed)| Input::noise(DType::F32, shape, UNIT, seed));
    let state = |at: usize| {
        let name = format!("state {at} after no steps");
        let case = Case::new(name, inputs.clone(), move |o, x| {
            let (_, h, c) = o.lstm(&x[0], &x[1], &x[2], None, Some(x[3].clone()), Some(x[4].clone()))?;
            Ok(if at == 3 { h } else { c })
        });
        case.host(|x| x[at].clone())
    };
    let none =
        Case::new("no hidden states", inputs.clone(), |o, x| Ok(o.lstm(&x[0], &x[1], &x[2], None, None, None)?.0));
    agree(vec![state(3), state(4), none.shaped(&[0, 2, 2])]);
}

/// `tools/lstm.py` made the numbers.
#[test]
fn lstm_layers_are_those_of_onnxruntime() {
    let bytes =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/lstm.safetensors")).expect("the numbers");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
    let directions = header.metadata().as_ref().and_then(|m| m.get("directions")).expect("directions");
    let directions: Vec<String> = serde_json::from_str(directions).expect("a list");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors");
    for (i, direction) in directions.iter().enumerate() {
        let read = |name: &str| {
            let view = tensors.tensor(&format!("{i}/{name}")).ok()?;
            let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            Some(Tensor::from_slice(&values.collect::<Vec<_>>(), view.shape()).expect("as many"))
        };
        for backend in BACKENDS {
            let mut rig = Rig::new(backend);
            let [x, w, r] = ["x", "w", "r"].map(|name| rig.spawn(read(name).expect("a weight")));
            let given = ["bias", "h", "c"].map(|name| read(name).map(|tensor| rig.spawn(tensor)));
            for (at, name) in ["y", "y_h", "y_c"].into_iter().enumerate() {
                let reverse = direction == "reverse";
                let got = rig.compute(move |ops| {
                    let [bias, h, c] = given.map(|entity| entity.map(TensorOperand::from));
                    let layer = if reverse { TensorCommands::lstm_reverse } else { TensorCommands::lstm };
                    let (y, h, c) = layer(ops, x, w, r, bias, h, c)?;
                    Ok([y, h, c][at])
                });
                let expected = tensors.tensor(&format!("{i}/{name}")).expect("a result");
                let values = expected.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                let got = got.expect("it fits");
                assert_eq!(&got.shape()[..], expected.shape(), "{name} of layer {i}");
                let name = format!("{name} of layer {i} on the {backend}");
                assert_close(&got.to_f32(), &values.collect::<Vec<_>>(), 1e-5, 1e-5, &name);
            }
        }
    }
}
