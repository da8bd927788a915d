//! Sampling of pictures and volumes at positions that are data.

mod cpu;

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::{Node, SampleCoordinates, SampleFilter, SamplePadding, Sampling};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, product, spatial};
use crate::kernel::split::{InParts, Levels, Part};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, Step, Variants};

/// Samples each plane of `x [n, c, d, h, w]` at `points [n, count, axes]`, whose last axis is x, y and, for volumes, z.
/// Output `[n, c, count]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SampleKernel {
    pub sampling: Sampling,
    pub batch: usize,
    pub channels: usize,
    /// Depth, height and width. Pictures have depth 1.
    pub input: [usize; 3],
    pub points: usize,
    /// Coordinates of a point: 2 or 3.
    pub axes: usize,
}

impl SampleKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &sampling: &Sampling) -> Self {
        let (x, points) = (&inputs[0].layout.shape, &inputs[1].layout.shape);
        Self { sampling, batch: x[0], channels: x[1], input: spatial(x), points: points[1], axes: points[2] }
    }

    /// Elements along each axis that a sample reads.
    fn taps(&self) -> usize {
        match self.sampling.filter {
            SampleFilter::Nearest => 1,
            SampleFilter::Linear => 2,
            SampleFilter::Cubic => 4,
        }
    }
}

impl KernelSpec for SampleKernel {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn input_names(&self) -> InputNames {
        names(&["x", "points"], &[])
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
        self.batch * self.channels * self.points * 2 * self.taps().pow(self.axes as u32)
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
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
        let Sampling { filter: _, padding, coordinates } = self.sampling;
        let mut builder = Builder::new(step);
        builder.need("is_nan").constant("TAPS", self.taps() as u32).constant("AXES", self.axes as u32);
        let padding = match padding {
            SamplePadding::Zeros => 0,
            SamplePadding::Border => 1,
            SamplePadding::Reflection => 2,
        };
        let coordinates = match coordinates {
            SampleCoordinates::Edges => 0,
            SampleCoordinates::Centres => 1,
            SampleCoordinates::Pixels => 2,
        };
        builder.constant("PADDING", padding).constant("COORDINATES", coordinates);
        let [depth, height, width] = self.input;
        builder.params.size("depth", depth).size("height", height).size("width", width);
        builder.params.size("channels", self.channels).size("points", self.points);
        let threads = self.batch * self.channels * self.points;
        Some(builder.finish_threads(include_str!("../../../assets/kernels/sample.wgsl"), threads, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        let empty = product(&self.input) == 0;
        match inputs {
            [x, points] if !empty => cpu::sample(self, x, points, cast_slice_mut(out), pool),
            _ => out.fill(0),
        }
        Ok(0)
    }
}
