//! Convolution.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use bytemuck::cast_slice_mut;
use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::{Node, Window};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, product, spatial};
use crate::kernel::split::{InParts, Levels, Part, by_rows};
use crate::kernel::{Caps, Launch, Step, Variants};

/// Convolution of `x [batch, channels_in, in…]` with `weight [channels_out, channels_in / groups, window…]` (or,
/// transposed, `[channels_in, channels_out / groups, window…]`) and, if flagged, a bias `[channels_out]`. The output is
/// `[batch, channels_out, out…]`. All are floats.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConvKernel {
    pub window: Window,
    pub groups: usize,
    pub bias: bool,
    pub batch: usize,
    pub channels_in: usize,
    pub channels_out: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
}

impl ConvKernel {
    pub(crate) fn describe(node: &Node, inputs: &mut Inputs, &window: &Window, &groups: &usize, &bias: &bool) -> Self {
        let x = &inputs[0].layout.shape;
        Self {
            window,
            groups,
            bias,
            batch: x[0],
            channels_in: x[1],
            channels_out: node.shape[1],
            input: spatial(x),
            output: spatial(&node.shape),
        }
    }
}

impl KernelSpec for ConvKernel {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn input_names(&self) -> InputNames {
        names(&["x", "weight"], &[(self.bias, "bias")])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
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
        let taps = self.channels_in / self.groups.max(1) * product(&self.window.size);
        2 * self.batch * self.channels_out * product(&self.output) * taps
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let (from, to) = (self.channels_in * product(&self.input), self.channels_out * product(&self.output));
        by_rows(step, self.batch, from, to, |batch| Self { batch, ..self.clone() })
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        SmallVec::from_slice(&[
            ("b", self.batch),
            ("in", self.channels_in),
            ("out", self.channels_out),
            ("groups", self.groups),
            ("positions", product(&self.output)),
            ("taps", product(&self.window.size)),
        ])
    }

    fn forms(&self, caps: &Caps) -> Variants {
        wgsl::variants(self, caps)
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        Some(wgsl::lower(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let (weights, finish) = (call.storage(1), call.take_finish());
        let Values { inputs, out, pool, .. } = call.values();
        cpu::conv(self, inputs, weights, cast_slice_mut(out), pool, finish.as_ref());
        Ok(0)
    }
}
