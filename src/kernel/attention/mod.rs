//! Scaled dot-product attention.

pub(crate) mod cpu;
pub(crate) mod registers;
pub(crate) mod wgsl;

use core::ops::Range;

use bytemuck::cast_slice_mut;
use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::Node;
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part, sliced, two_ranges};
use crate::kernel::{Caps, Launch, Step, Variants};

/// Scaled dot-product attention with an online softmax. Inputs are strided: `q [batch, heads, queries, qk]`, `k [batch,
/// groups, keys, qk]`, `v [batch, groups, keys, value]`, and `mask [batch, heads, queries, keys]` if flagged. Output
/// `[batch, heads, queries, value]`, contiguous. Query head `h` uses key head `h · groups / heads`. Scalars: scale
/// (f32), softcap (f32, 0 = none), valid keys (u32; later ones are ignored), position of query 0 (i32; with `causal`,
/// query `i` sees keys `0 ..= i + position`). A query that sees no key gives 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionKernel {
    pub causal: bool,
    pub mask: bool,
    pub batch: usize,
    pub heads: usize,
    pub groups: usize,
    pub queries: usize,
    pub keys: usize,
    pub qk: usize,
    pub value: usize,
}

impl AttentionKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &causal: &bool, &mask: &bool) -> Self {
        let shape = |input: usize| &inputs[input].layout.shape;
        let (q, k) = (shape(0), shape(1));
        Self {
            causal,
            mask,
            batch: q[0],
            heads: q[1],
            groups: k[1],
            queries: q[2],
            keys: k[2],
            qk: q[3],
            value: shape(2)[3],
        }
    }
}

impl KernelSpec for AttentionKernel {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn input_names(&self) -> InputNames {
        names(&["q", "k", "v"], &[(self.mask, "mask")])
    }

    fn need(_input: usize) -> Need {
        Need::Strided
    }

    fn fusing(&self) -> Fusing {
        Fusing::AFTER
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        2 * self.batch * self.heads * self.queries * self.keys * (self.qk + self.value)
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let axes: SmallVec<[(usize, usize); 4]> = (0..step.inputs.len()).map(|input| (input, 0)).collect();
        let half = |range: Range<usize>| {
            let kernel = Self { batch: range.len(), ..self.clone() };
            sliced(step, kernel, &axes, &range, self.heads * self.queries * self.value)
        };
        two_ranges(self.batch).map(|ranges| ranges.map(half)).into_iter().collect()
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
        Some(wgsl::lower(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, scalars, pool } = call.values();
        cpu::attention(self, inputs, cast_slice_mut(out), scalars, pool);
        Ok(0)
    }
}
