//! The recurrence of RNN, GRU and LSTM layers. The product with the input is an ordinary matrix product before it, over
//! all steps at once.

mod cpu;

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::{Cell, Node, Recurrence};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, Step, Variants};

/// One direction of a recurrent layer, in `f32`.
///
/// Inputs: `gates [steps, batch, gates · hidden]`, the products of the input plus the bias; `r [hidden, gates · hidden]`, the
/// transposed recurrent weights; `h [batch, hidden]`, the state before the first step; `c [batch, hidden]`, the cell state
/// (LSTM); `peepholes [3 · hidden]` or `bias [hidden]`, see [`Cell`]; `lengths [batch]`, how many steps each row has.
///
/// Output `[steps + states, batch, hidden]`: the hidden states after each step (0 beyond the length of a row), then the
/// hidden state after the last, then the cell state. With `reverse`, the last step of a row comes first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecurrentKernel {
    pub layer: Recurrence,
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
}

impl RecurrentKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &layer: &Recurrence) -> Self {
        let (gates, h) = (&inputs[0].layout.shape, &inputs[2].layout.shape);
        Self { layer, steps: gates[0], batch: h[0], hidden: h[1] }
    }

    /// Columns of the gates and of the recurrent weights.
    fn wide(&self) -> usize {
        self.layer.cell.gates() * self.hidden
    }
}

impl KernelSpec for RecurrentKernel {
    fn name(&self) -> &'static str {
        "recurrent"
    }

    fn input_names(&self) -> InputNames {
        let (is_lstm, peepholes, linear) = match self.layer.cell {
            Cell::Rnn => (false, false, false),
            Cell::Gru { linear } => (false, false, linear),
            Cell::Lstm { peepholes, .. } => (true, peepholes, false),
        };
        let lengths = self.layer.lengths;
        names(&["gates", "r", "h"], &[(is_lstm, "c"), (peepholes, "peepholes"), (linear, "bias"), (lengths, "lengths")])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        // Every step reads what the step before wrote.
        Fusing::NONE
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        // The product, and about twenty additions for each function of a gate.
        self.steps * self.batch * self.wide() * (2 * self.hidden + 25)
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        // Steps depend on each other, and the rows of a half of the batch lie all over the gates.
        Vec::new()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        let Recurrence { cell, reverse, activations, clip, lengths } = self.layer;
        let mut builder = Builder::new(step);
        builder.need("exp_f32").need("log_f32").need("tanh_f32").constant("REVERSE", u32::from(reverse));
        builder.params.size("steps", self.steps).size("batch", self.batch).size("hidden", self.hidden);
        for (i, activation) in activations.iter().enumerate() {
            builder.constant(&format!("FUNCTION_{i}"), activation.function as u32);
            builder.params.size(&format!("alpha_{i}"), activation.alpha as usize);
            builder.params.size(&format!("beta_{i}"), activation.beta as usize);
        }
        builder.constant("CLIP", u32::from(clip.is_some()));
        builder.params.size("bound", clip.unwrap_or(0) as usize);
        let length = match lengths {
            true => "u32(clamp(load_lengths(params.lengths_offset + row), 0, i32(params.steps)))",
            false => "params.steps",
        };
        builder.code(&format!("fn length(row: u32) -> u32 {{ return {length}; }}"));
        let text = match cell {
            Cell::Rnn => include_str!("../../../assets/kernels/recurrent_rnn.wgsl"),
            Cell::Gru { linear } => {
                let bias = if linear { "load_bias(params.bias_offset + j)" } else { "0.0" };
                builder.constant("LINEAR", u32::from(linear));
                builder.code(&format!("fn state_bias(j: u32) -> f32 {{ return {bias}; }}"));
                include_str!("../../../assets/kernels/recurrent_gru.wgsl")
            }
            Cell::Lstm { peepholes, coupled } => {
                let weight = match peepholes {
                    true => "load_peepholes(params.peepholes_offset + gate * params.hidden + j)",
                    false => "0.0",
                };
                builder.constant("PEEPHOLES", u32::from(peepholes)).constant("COUPLED", u32::from(coupled));
                builder.code(&format!("fn peephole(gate: u32, j: u32) -> f32 {{ return {weight}; }}"));
                include_str!("../../../assets/kernels/recurrent_lstm.wgsl")
            }
        };
        let parts = include_str!("../../../assets/kernels/recurrent_parts.wgsl");
        let text = [parts, "\n", text, "\n", include_str!("../../../assets/kernels/recurrent.wgsl")].concat();
        let lanes = if self.hidden > 64 && caps.invocations >= 256 { 256 } else { 64 };
        Some(builder.finish_workgroups(&text, lanes, self.batch, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        cpu::recurrent(self, inputs, cast_slice_mut(out), pool);
        Ok(0)
    }
}
