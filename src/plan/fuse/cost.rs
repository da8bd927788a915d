//! When computing an input as it is read beats writing it to memory first.

use crate::ir::Operand;
use crate::kernel::{MapKernel, Reads};

/// What the way through memory costs, in additions an element: a write, a read and a share of a launch.
const MEMORY: usize = 16;
/// Lines that keep a device busy when each is shared by a workgroup; with fewer, costly work is better spread over all of it.
const BUSY_LINES: usize = 32;

/// Whether `map` is better computed inside a kernel, element by element as read, than by a launch of its own.
///
/// A kernel that reads each element once saves the memory for nothing, unless only few threads of the device take part. One that reads several
/// times repeats the work: scales, masks, casts and other cheap steps pay, exponentials and the like do not.
pub(super) fn prologue_pays(reads: Reads, map: &MapKernel, inputs: &[Operand]) -> bool {
    let cost = cost(map, inputs);
    let alone = if reads.lines < BUSY_LINES { cost } else { 0 };
    (reads.each - 1) * cost + alone <= MEMORY
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
