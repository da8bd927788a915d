//! When computing an input as it is read beats writing it to memory first.

use crate::ir::Operand;
use crate::kernel::{Kernel, MapKernel};

/// What the way through memory costs, in additions an element: a write, a read and a share of a launch.
const MEMORY: usize = 16;
/// Lines that keep a device busy when each is shared by a workgroup; with fewer, costly work is better spread over all of it.
const BUSY_LINES: usize = 32;

/// Whether `map` is better computed inside `kernel`, element by element as read, than by a launch of its own.
///
/// A kernel that reads each element once saves the memory for nothing, unless only few threads of the device take part. One that reads several
/// times repeats the work: scales, masks, casts and other cheap steps pay, exponentials and the like do not.
pub(super) fn prologue_pays(kernel: &Kernel, map: &MapKernel, inputs: &[Operand]) -> bool {
    let (reads, lines) = reads_and_lines(kernel);
    let cost = cost(map, inputs);
    let alone = if lines < BUSY_LINES { cost } else { 0 };
    (reads - 1) * cost + alone <= MEMORY
}

/// How often a kernel reads an element of its main input, and the independent lines it works on.
fn reads_and_lines(kernel: &Kernel) -> (usize, usize) {
    match kernel {
        Kernel::Reduce(k) => (1, k.outer * k.inner),
        Kernel::CumSum(k) => (1, k.outer * k.inner),
        // Once for what is to know of the row, once for the result.
        Kernel::Softmax(k) => (2, k.outer * k.inner),
        Kernel::RowNorm(k) => (2, k.rows),
        // Each round looks at the whole row.
        Kernel::TopK(k) => (k.k.max(2), k.rows),
        Kernel::Pool(k) => {
            let window: usize = k.window.size.iter().product();
            let step: usize = k.window.stride.iter().product();
            (window.div_ceil(step).max(1), k.planes * k.output.iter().product::<usize>())
        }
        _ => (usize::MAX, 0),
    }
}

/// Additions that one element costs: the program, a load for each operand but the first, and the arithmetic of strided positions.
fn cost(map: &MapKernel, inputs: &[Operand]) -> usize {
    let program: usize = map.program.exprs.iter().map(|expr| expr.cost()).sum();
    let positions: usize = inputs
        .iter()
        .filter(|input| input.source.has_memory())
        .map(|input| {
            let walked = input.layout.strides.iter().filter(|&&stride| stride != 0).count();
            if input.layout.is_contiguous() { 0 } else { 2 * walked }
        })
        .sum();
    program + positions + inputs.len().saturating_sub(1)
}
