//! The twin: products of all rows of a step at once, then the cells row by row.

use std::borrow::Cow;

use super::RecurrentKernel;
use crate::ir::{Activation, ActivationFunction, Cell, Recurrence};
use crate::kernel::host::memory::Input;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::contracted;
use crate::kernel::host::{CpuPool, math};
use crate::kernel::matmul::gemm::{Matrix, PANEL, multiply, pack_panels, packed_len};

/// The inputs of a kernel. Those that it does not have are empty.
struct Operands<'a> {
    gates: Cow<'a, [f32]>,
    r: Cow<'a, [f32]>,
    h: Cow<'a, [f32]>,
    c: Cow<'a, [f32]>,
    /// Peepholes of an LSTM, the bias of a GRU's state.
    extra: Cow<'a, [f32]>,
    lengths: Option<Cow<'a, [i32]>>,
}

impl<'a> Operands<'a> {
    fn new(layer: &Recurrence, inputs: &[Input<'a>], pool: &CpuPool) -> Self {
        let mut next = 0;
        let mut take = |given: bool| {
            next += usize::from(given);
            if given { inputs[next - 1].contiguous::<f32>(pool) } else { Cow::Borrowed(&[][..]) }
        };
        let (is_lstm, has_extra) = match layer.cell {
            Cell::Rnn => (false, false),
            Cell::Gru { linear } => (false, linear),
            Cell::Lstm { peepholes, .. } => (true, peepholes),
        };
        let (gates, r, h, c, extra) = (take(true), take(true), take(true), take(is_lstm), take(has_extra));
        let lengths = layer.lengths.then(|| inputs[next].contiguous::<i32>(pool));
        Self { gates, r, h, c, extra, lengths }
    }
}

/// Runs a layer. `out` is `[steps + states, batch, hidden]`.
pub(super) fn recurrent(kernel: &RecurrentKernel, inputs: &[Input], out: &mut [f32], pool: &CpuPool) {
    let RecurrentKernel { layer, steps, batch, hidden } = *kernel;
    let (plane, wide) = (batch * hidden, kernel.wide());
    if plane == 0 {
        return;
    }
    let of = Operands::new(&layer, inputs, pool);
    let (states, rest) = out.split_at_mut(steps * plane);
    let (h, c) = rest.split_at_mut(plane);
    h.copy_from_slice(&of.h);
    c.copy_from_slice(&of.c);
    // The candidate of a GRU that is not linear multiplies another state than its gates do.
    let apart = matches!(layer.cell, Cell::Gru { linear: false });
    let first = if apart { 2 * hidden } else { wide };
    let second = wide - first;
    let (panels, more) = (packed_len(hidden, first), if second > 0 { packed_len(hidden, second) } else { 0 });
    with_scratch(panels + more + batch * (wide + hidden), |scratch: &mut [f32]| {
        let (panels, scratch) = scratch.split_at_mut(panels);
        let (more, scratch) = scratch.split_at_mut(more);
        let (sums, scratch) = scratch.split_at_mut(batch * first);
        let (candidates, reset) = scratch.split_at_mut(batch * second);
        // All steps multiply by the same weights.
        let weights = |column: usize| Matrix { data: &of.r, offset: column as isize, row: wide as isize, column: 1 };
        pack_panels(weights(0), hidden, first, panels);
        if second > 0 {
            pack_panels(weights(first), hidden, second, more);
        }
        for i in 0..steps {
            // The step that each row is at, if it has one left.
            let step = |row: usize| {
                let length = of.lengths.as_ref().map_or(steps, |lengths| (lengths[row].max(0) as usize).min(steps));
                let step = if layer.reverse { length.wrapping_sub(1 + i) } else { i };
                (i < length).then_some(step)
            };
            let gates = |row: usize, step: usize| &of.gates[(step * batch + row) * wide..][..wide];
            for (row, sums) in sums.chunks_mut(first).enumerate() {
                let Some(step) = step(row) else {
                    sums.fill(0.0);
                    continue;
                };
                sums.copy_from_slice(&gates(row, step)[..first]);
                if let Cell::Gru { linear: true } = layer.cell {
                    sums[2 * hidden..].copy_from_slice(&of.extra);
                }
            }
            add_products([batch, first, hidden], h, panels, sums, pool);
            if apart {
                for (row, sums) in sums.chunks_mut(first).enumerate() {
                    let (reset, h) = (&mut reset[row * hidden..][..hidden], &h[row * hidden..][..hidden]);
                    activate(&layer, 0, sums);
                    for ((reset, open), h) in reset.iter_mut().zip(&sums[hidden..]).zip(h) {
                        *reset = open * h;
                    }
                    let candidates = &mut candidates[row * hidden..][..hidden];
                    match step(row) {
                        Some(step) => candidates.copy_from_slice(&gates(row, step)[first..]),
                        None => candidates.fill(0.0),
                    }
                }
                add_products([batch, second, hidden], reset, more, candidates, pool);
            }
            for (row, sums) in sums.chunks_mut(first).enumerate() {
                let Some(step) = step(row) else {
                    states[i * plane + row * hidden..][..hidden].fill(0.0);
                    continue;
                };
                let place = row * hidden..(row + 1) * hidden;
                let h = &mut h[place.clone()];
                match layer.cell {
                    Cell::Rnn => {
                        activate(&layer, 0, sums);
                        h.copy_from_slice(sums);
                    }
                    Cell::Gru { linear: false } => gru(&layer, &sums[..hidden], &mut candidates[place.clone()], h),
                    Cell::Gru { linear: true } => {
                        let (open, candidate) = sums.split_at_mut(2 * hidden);
                        activate(&layer, 0, open);
                        let of_input = &gates(row, step)[2 * hidden..];
                        for ((candidate, reset), of_input) in candidate.iter_mut().zip(&open[hidden..]).zip(of_input) {
                            *candidate = of_input + reset * *candidate;
                        }
                        gru(&layer, &open[..hidden], candidate, h);
                    }
                    Cell::Lstm { coupled, .. } => lstm(&layer, coupled, sums, &of.extra, &mut c[place.clone()], h),
                }
                states[step * plane..][place].copy_from_slice(h);
            }
        }
    });
}

/// Adds the products of the states `[batch, hidden]` to the sums `[batch, columns]`. Threads share rows, or the columns of
/// a single row.
fn add_products([batch, columns, hidden]: [usize; 3], state: &[f32], panels: &[f32], sums: &mut [f32], pool: &CpuPool) {
    let state = Matrix { data: state, offset: 0, row: hidden as isize, column: 1 };
    if batch == 1 {
        pool.each_unit(sums, PANEL, PANEL * hidden, |first, sums| {
            let columns = sums.len();
            multiply([1, columns, hidden], sums, columns, true, state, &panels[first * PANEL * hidden..]);
        });
    } else {
        pool.each_unit(sums, columns, columns * hidden, |first, sums| {
            multiply([sums.len() / columns, columns, hidden], sums, columns, true, state.at(first, 0), panels);
        });
    }
}

/// The new state of a row of a GRU, from its open update gate and the sums of its candidate.
fn gru(layer: &Recurrence, update: &[f32], candidate: &mut [f32], h: &mut [f32]) {
    activate(layer, 1, candidate);
    for ((h, candidate), update) in h.iter_mut().zip(candidate).zip(update) {
        *h = (1.0 - update) * *candidate + update * *h;
    }
}

/// The new states of a row of an LSTM, from the sums of its gates.
fn lstm(layer: &Recurrence, coupled: bool, sums: &mut [f32], peepholes: &[f32], c: &mut [f32], h: &mut [f32]) {
    let hidden = h.len();
    let (input, rest) = sums.split_at_mut(hidden);
    let (output, rest) = rest.split_at_mut(hidden);
    let (forget, cell) = rest.split_at_mut(hidden);
    let see = |gate: &mut [f32], weights: &[f32], c: &[f32]| {
        for ((gate, weight), c) in gate.iter_mut().zip(weights).zip(c) {
            *gate += weight * c;
        }
    };
    let (of_input, rest) = peepholes.split_at(hidden.min(peepholes.len()));
    let (of_output, of_forget) = rest.split_at(hidden.min(rest.len()));
    see(input, of_input, c);
    see(forget, of_forget, c);
    activate(layer, 0, input);
    activate(layer, 0, forget);
    activate(layer, 1, cell);
    if coupled {
        for (forget, input) in forget.iter_mut().zip(&*input) {
            *forget = 1.0 - input;
        }
    }
    for (((c, forget), input), cell) in c.iter_mut().zip(forget).zip(input).zip(cell) {
        *c = *forget * *c + *input * *cell;
    }
    see(output, of_output, c);
    activate(layer, 0, output);
    h.copy_from_slice(c);
    apply(&layer.activations[2], h);
    for (h, output) in h.iter_mut().zip(output) {
        *h *= *output;
    }
}

/// Bounds sums and applies activation `i` to them.
fn activate(layer: &Recurrence, i: usize, sums: &mut [f32]) {
    if let Some(bound) = layer.clip.map(f32::from_bits) {
        for sum in &mut *sums {
            // NaN stays.
            *sum = if *sum > bound { bound } else { *sum };
            *sum = if *sum < -bound { -bound } else { *sum };
        }
    }
    apply(&layer.activations[i], sums);
}

fn apply(activation: &Activation, values: &mut [f32]) {
    let (a, b) = (f32::from_bits(activation.alpha), f32::from_bits(activation.beta));
    macro_rules! each {
        (|$c:ident, $x:ident| $y:expr) => {
            contracted(
                #[inline(always)]
                |$c| {
                    for value in &mut *values {
                        let $x = *value;
                        *value = $y;
                    }
                },
            )
        };
    }
    match activation.function {
        ActivationFunction::Sigmoid => each!(|c, x| 1.0 / (1.0 + math::exp(c, -x))),
        ActivationFunction::Tanh => each!(|c, x| math::tanh(c, x)),
        ActivationFunction::Relu => each!(|_c, x| if x < 0.0 { 0.0 } else { x }),
        ActivationFunction::Affine => each!(|_c, x| a * x + b),
        ActivationFunction::LeakyRelu => each!(|_c, x| if x < 0.0 { a * x } else { x }),
        ActivationFunction::ThresholdedRelu => each!(|_c, x| if x < a { 0.0 } else { x }),
        ActivationFunction::ScaledTanh => each!(|c, x| a * math::tanh(c, b * x)),
        ActivationFunction::HardSigmoid => each!(|_c, x| {
            let line = a * x + b;
            let line = if line > 1.0 { 1.0 } else { line };
            if line < 0.0 { 0.0 } else { line }
        }),
        ActivationFunction::Elu => each!(|c, x| if x < 0.0 { a * (math::exp(c, x) - 1.0) } else { x }),
        ActivationFunction::Softsign => each!(|_c, x| x / (1.0 + x.abs())),
        ActivationFunction::Softplus => each!(|c, x| {
            let positive = if x < 0.0 { 0.0 } else { x };
            positive + math::log(c, 1.0 + math::exp(c, -x.abs()))
        }),
    }
}
