//! Splits an iteration space into boxes that write disjoint, ordered parts of every output.

use core::ops::Range;

use smallvec::SmallVec;

use super::{MapInput, MapOutput};
use crate::kernel::host::memory::ElementsMut;

/// A box of the iteration space: a range of one axis, at fixed indices of the axes before it, covering all axes after
/// it.
pub(crate) struct Chunk<'a> {
    /// The first axis that is iterated.
    pub axis: usize,
    /// Sizes of the axes from `axis` on.
    pub shape: SmallVec<[usize; 6]>,
    pub input_offsets: SmallVec<[isize; 4]>,
    /// Offsets within the chunk's own memories.
    pub output_offsets: SmallVec<[isize; 1]>,
    pub memories: Vec<ElementsMut<'a>>,
}

/// Number of leading axes along which the output only advances, past all elements of the inner axes.
fn ordered_axes(shape: &[usize], output: &MapOutput) -> usize {
    // Whether a step of axis `i` goes past everything that the inner axes reach.
    let steps_over = |i: usize| {
        let inside: isize =
            shape[i + 1..].iter().zip(&output.strides[i + 1..]).map(|(&n, &s)| (n as isize - 1) * s.abs()).sum();
        shape[i] == 1 || output.strides[i] > inside
    };
    (0..shape.len()).take_while(|&i| steps_over(i)).count()
}

/// A box: fixed leading indices, then a range.
type Cut = (SmallVec<[usize; 6]>, Range<usize>);

/// Splits axis `fixed.len()` into `parts`, or recurses into it if it is too short.
fn cut(shape: &[usize], axes: usize, parts: usize, fixed: &mut SmallVec<[usize; 6]>, cuts: &mut Vec<Cut>) {
    let n = shape[fixed.len()];
    if n >= parts || fixed.len() + 1 >= axes {
        let parts = parts.clamp(1, n);
        cuts.extend((0..parts).map(|p| (fixed.clone(), p * n / parts..(p + 1) * n / parts)));
        return;
    }
    for i in 0..n {
        fixed.push(i);
        cut(shape, axes, parts.div_ceil(n), fixed, cuts);
        fixed.pop();
    }
}

/// Splits into about `parts` boxes, or one if the outputs cannot be split.
pub(crate) fn chunks<'a>(
    shape: &[usize],
    inputs: &[MapInput],
    outputs: &[MapOutput],
    memories: Vec<ElementsMut<'a>>,
    parts: usize,
) -> Vec<Chunk<'a>> {
    let axes = outputs.iter().map(|o| ordered_axes(shape, o)).min().unwrap_or(0);
    if parts < 2 || axes == 0 || memories.len() != outputs.len() {
        return vec![Chunk {
            axis: 0,
            shape: SmallVec::from_slice(shape),
            input_offsets: inputs.iter().map(|i| i.offset).collect(),
            output_offsets: outputs.iter().map(|o| o.offset).collect(),
            memories,
        }];
    }
    let mut cuts = Vec::new();
    cut(shape, axes, parts, &mut SmallVec::new(), &mut cuts);
    // The rest of each memory, and the position of its first element.
    let mut rest: Vec<(usize, Option<ElementsMut>)> = memories.into_iter().map(|m| (0, Some(m))).collect();
    cuts.into_iter()
        .map(|(fixed, range)| {
            let axis = fixed.len();
            let shift = |strides: &[isize]| {
                let outside: isize = fixed.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum();
                outside + range.start as isize * strides[axis]
            };
            let mut shape: SmallVec<[usize; 6]> = SmallVec::from_slice(&shape[axis..]);
            shape[0] = range.len();
            let mut parts: Vec<Option<ElementsMut>> = outputs.iter().map(|_| None).collect();
            let mut output_offsets = SmallVec::new();
            for output in outputs {
                let first = output.offset + shift(output.strides);
                let reach = shape.iter().zip(&output.strides[axis..]);
                let end = first + reach.map(|(&n, &s)| ((n as isize - 1) * s).max(0)).sum::<isize>() + 1;
                let (start, left) = &mut rest[output.memory];
                output_offsets.push(first - *start as isize);
                if let Some(memory) = left.take() {
                    let (mine, others) = memory.split_at(end as usize - *start);
                    parts[output.memory] = Some(mine);
                    *left = Some(others);
                    *start = end as usize;
                }
            }
            Chunk {
                axis,
                shape,
                input_offsets: inputs.iter().map(|i| i.offset + shift(i.strides)).collect(),
                output_offsets,
                memories: parts.into_iter().flatten().collect(),
            }
        })
        .collect()
}
