//! Decides when computing an input while reading it is cheaper than writing it to memory first.

use crate::ir::Operand;
use crate::kernel::{MapKernel, Reads};

/// Cost of a round trip through memory per element, in additions: a write, a read and a share of a launch.
const MEMORY: usize = 16;
/// Number of rows that keep a device busy when each is processed by one workgroup. With fewer rows, expensive work is
/// better spread over the whole device.
const BUSY_LINES: usize = 32;

/// Whether computing `map` inside a kernel, as elements are read, is cheaper than a separate launch.
///
/// For a kernel that reads each element once, fusing saves memory traffic at no cost, unless only a few threads of the
/// device take part. A kernel that reads elements several times repeats the work: this pays for scales, masks, casts
/// and other cheap expressions, but not for exponentials.
pub(super) fn prologue_pays(reads: Reads, map: &MapKernel, inputs: &[Operand]) -> bool {
    let cost = cost(map, inputs);
    let alone = if reads.lines < BUSY_LINES { cost } else { 0 };
    (reads.each - 1) * cost + alone <= MEMORY
}

/// Cost of one element in additions: the program, a load for each operand after the first, and the index arithmetic of
/// strided operands.
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
