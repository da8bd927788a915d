//! Convolution.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use crate::ir::Window;

/// Convolution of `x [batch, channels_in, in…]` with `weight [channels_out, channels_in / groups, window…]` (or, transposed,
/// `[channels_in, channels_out / groups, window…]`), bias `[channels_out]` if flagged, to `[batch, channels_out, out…]`. Floats.
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
