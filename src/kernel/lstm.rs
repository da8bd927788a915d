//! The recurrence of an LSTM layer. The product with the input is a separate matrix product over all steps that runs
//! before it.

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::Node;
use crate::kernel::host::memory::Input;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::vectorised;
use crate::kernel::host::{CpuCall, CpuPool, Values, math};
use crate::kernel::matmul::gemm::{Matrix, PANEL, multiply, pack_panels, packed_len};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, Step, Variants};

/// One direction of an LSTM layer, in `f32`.
///
/// Inputs: `gates [steps, batch, 4·hidden]`, the products with the input plus the bias, in the order input, output,
/// forget, cell; `r [hidden, 4·hidden]`, the transposed recurrent weights; `h` and `c [batch, hidden]`, the states
/// before the first step. Output `[steps + 1, batch, hidden]`: the hidden states after each step, followed by the cell
/// states after the last one. With `reverse`, the steps of `gates` are processed last to first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LstmKernel {
    pub reverse: bool,
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
}

impl LstmKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &reverse: &bool) -> Self {
        let (gates, h) = (&inputs[0].layout.shape, &inputs[2].layout.shape);
        Self { reverse, steps: gates[0], batch: h[0], hidden: h[1] }
    }
}

impl KernelSpec for LstmKernel {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn input_names(&self) -> InputNames {
        names(&["gates", "r", "h", "c"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        // Every step reads what the previous step wrote.
        Fusing::NONE
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        // The product, then three sigmoids, two hyperbolic tangents and the new states.
        self.steps * self.batch * self.hidden * (8 * self.hidden + 100)
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        // Steps depend on each other, and the rows of half the batch are not contiguous in the gates.
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
        let mut builder = Builder::new(step);
        builder.need("exp_f32").need("tanh_f32").constant("REVERSE", u32::from(self.reverse));
        builder.params.size("steps", self.steps).size("batch", self.batch).size("hidden", self.hidden);
        let lanes = if self.hidden > 64 && caps.invocations >= 256 { 256 } else { 64 };
        Some(builder.finish_workgroups(include_str!("../../assets/kernels/lstm.wgsl"), lanes, self.batch, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        lstm(self, inputs, cast_slice_mut(out), pool);
        Ok(0)
    }
}

/// The CPU twin. Inputs: gates, r, h, c.
fn lstm(kernel: &LstmKernel, inputs: &[Input], out: &mut [f32], pool: &CpuPool) {
    let [gates, r, h, c] = inputs else { return };
    let LstmKernel { reverse, steps, batch, hidden } = *kernel;
    let [gates, r, h, c] = [gates, r, h, c].map(|input| input.contiguous::<f32>(pool));
    let (plane, wide) = (batch * hidden, 4 * hidden);
    if plane == 0 {
        return;
    }
    let (states, cells) = out.split_at_mut(steps * plane);
    cells.copy_from_slice(&c);
    let panels = packed_len(hidden, wide);
    with_scratch(panels + batch * wide, |scratch: &mut [f32]| {
        let (panels, sums) = scratch.split_at_mut(panels);
        // All steps multiply by the same weights.
        pack_panels(Matrix { data: &r, offset: 0, row: wide as isize, column: 1 }, hidden, wide, panels);
        let mut before = None;
        for i in 0..steps {
            let step = if reverse { steps - 1 - i } else { i };
            sums.copy_from_slice(&gates[step * batch * wide..][..batch * wide]);
            let data = before.map_or(&h[..], |before: usize| &states[before * plane..][..plane]);
            add_products(kernel, data, panels, sums, pool);
            vectorised(
                #[inline(always)]
                || next_states(hidden, sums, cells, &mut states[step * plane..][..plane]),
            );
            before = Some(step);
        }
    });
}

/// Adds the products of the hidden states `h [batch, hidden]` to the sums. Threads share the rows, or the columns of a
/// single row.
fn add_products(kernel: &LstmKernel, h: &[f32], panels: &[f32], sums: &mut [f32], pool: &CpuPool) {
    let (hidden, wide) = (kernel.hidden, 4 * kernel.hidden);
    let h = Matrix { data: h, offset: 0, row: hidden as isize, column: 1 };
    if kernel.batch == 1 {
        pool.each_unit(sums, PANEL, PANEL * hidden, |first, sums| {
            let columns = sums.len();
            multiply([1, columns, hidden], sums, columns, true, h, &panels[first * PANEL * hidden..]);
        });
    } else {
        pool.each_unit(sums, wide, wide * hidden, |first, sums| {
            multiply([sums.len() / wide, wide, hidden], sums, wide, true, h.at(first, 0), panels);
        });
    }
}

/// Computes cell and hidden states after a step from the sums of its gates.
#[inline(always)]
fn next_states(hidden: usize, sums: &[f32], cells: &mut [f32], states: &mut [f32]) {
    let sigmoid = |x: f32| 1.0 / (1.0 + math::exp(-x));
    let rows = states.chunks_mut(hidden).zip(cells.chunks_mut(hidden)).zip(sums.chunks(4 * hidden));
    for ((states, cells), sums) in rows {
        let (input, rest) = sums.split_at(hidden);
        let (output, rest) = rest.split_at(hidden);
        let (forget, cell) = rest.split_at(hidden);
        for (j, (state, kept)) in states.iter_mut().zip(cells).enumerate() {
            *kept = sigmoid(forget[j]) * *kept + sigmoid(input[j]) * math::tanh(cell[j]);
            *state = sigmoid(output[j]) * math::tanh(*kept);
        }
    }
}
