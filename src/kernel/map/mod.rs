//! Fused chains of elementwise ops.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use core::ops::Range;

use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::{Layout, Program, Shape};
use crate::kernel::host::CpuCall;
use crate::kernel::host::fused::run_map;
use crate::kernel::host::memory::Elements;
use crate::kernel::map::cpu::MapSource;
use crate::kernel::spec::{Fusing, InputNames, KernelSpec, Need, Sizes, all_inputs};
use crate::kernel::split::{InParts, Levels, Part, PartOutput, two_ranges};
use crate::kernel::{Caps, Launch, Step, Variants};

/// A fused chain of elementwise ops, copies, fills, casts and generators over one iteration shape.
///
/// Inputs and outputs are strided, and their layouts all have the iteration shape ([`MapKernel::shape`]). An output may
/// use the same storage as an input only if both have the same layout and dtype, or share no elements. The numbers in
/// [`Expr::Scalar`](crate::ir::Expr) are indices into the step's scalars. With `dynamic_out`, the last scalar (u32)
/// times that stride is added to the offset of the only output.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MapKernel {
    /// The iteration space, with axes merged as far as all operands allow.
    pub shape: Shape,
    pub program: Program,
    pub dynamic_out: Option<isize>,
}

impl MapKernel {
    /// Arithmetic operations for all elements.
    pub(crate) fn flops(&self) -> usize {
        self.shape.elements() * self.program.exprs.iter().map(|expr| expr.cost()).sum::<usize>()
    }
}

impl KernelSpec for MapKernel {
    fn name(&self) -> &'static str {
        "map"
    }

    fn input_names(&self) -> InputNames {
        // Maps refer to their operands by number.
        InputNames::new()
    }

    fn need(_input: usize) -> Need {
        Need::Strided
    }

    fn fusing(&self) -> Fusing {
        // Maps are fused into other kernels. Joining two maps is handled separately.
        Fusing::NONE
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        MapKernel::flops(self)
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        // A store whose position is only known at run time may need all of its memory.
        if self.dynamic_out.is_some() {
            return Vec::new();
        }
        let along = |(axis, &n): (usize, &usize)| {
            let half = |range: Range<usize>| {
                let mut inputs = step.inputs.clone();
                let mut output = step.outputs[0].clone();
                for operand in inputs.iter_mut().chain([&mut output]) {
                    operand.layout = operand.layout.slice(axis, range.start, range.len(), 1);
                }
                let mut map = self.clone();
                map.shape.dims_mut()[axis] = range.len();
                Part { kernel: map.into(), inputs, output: PartOutput::Place(output) }
            };
            Some(two_ranges(n)?.map(half))
        };
        self.shape.iter().enumerate().filter_map(along).collect()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        SmallVec::from_slice(&[("elements", self.shape.elements()), ("exprs", self.program.exprs.len())])
    }

    fn forms(&self, caps: &Caps) -> Variants {
        wgsl::variants(caps)
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        wgsl::lower(step, self, caps)
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let places = call.take_places();
        // A map does not read a kernel's value.
        let none = MapSource::Elements(Elements::U32(&[]));
        run_map(self, (&call.step.inputs, call.inputs), none, places, call.scalars, call.pool);
        Ok(0)
    }
}

/// Rewrites layouts of one shape over as few axes as possible, preserving the order of all of them. Returns the new
/// shape.
pub(crate) fn merge_axes(shape: &Shape, layouts: &mut [&mut Layout]) -> Shape {
    // Each entry: the size, and the stride in every layout.
    let mut axes: Vec<(usize, SmallVec<[isize; 4]>)> = Vec::new();
    for (i, &n) in shape.iter().enumerate() {
        if n == 1 {
            continue;
        }
        let strides: SmallVec<[isize; 4]> = layouts.iter().map(|l| l.strides[i]).collect();
        match axes.last_mut() {
            Some((size, outer)) if outer.iter().zip(&strides).all(|(o, s)| *o == s * n as isize) => {
                *size *= n;
                *outer = strides;
            }
            _ => axes.push((n, strides)),
        }
    }
    let merged = Shape::new(axes.iter().map(|(n, _)| *n));
    for (i, layout) in layouts.iter_mut().enumerate() {
        layout.shape = merged.clone();
        layout.strides = axes.iter().map(|(_, strides)| strides[i]).collect();
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_operands_merge_to_one_axis_and_broadcasts_stay_apart() {
        let shape = Shape::from([2, 3, 1, 4]);
        let mut a = Layout::contiguous(shape.clone());
        let mut b = Layout::contiguous([4]).broadcast_to(&shape).expect("fits");
        assert_eq!(merge_axes(&shape, &mut [&mut a.clone()]), [24]);
        assert_eq!(merge_axes(&shape, &mut [&mut a, &mut b]), [6, 4]);
        assert_eq!((a.strides.as_slice(), b.strides.as_slice()), (&[4, 1][..], &[0, 1][..]));
    }
}
