//! Gathers on the CPU. Negative indices count from the end. Out-of-range indices are clamped and counted once each.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use crate::kernel::host::CpuPool;
use crate::kernel::host::memory::Input;
use crate::kernel::{GatherElementsKernel, GatherKernel, GatherNdKernel};

/// The position that an index refers to on an axis of `n` elements, and whether it was clamped. An empty axis gives 0.
pub(crate) fn resolve(index: i64, n: usize) -> (usize, bool) {
    let size = n as i64;
    let place = if index < 0 { index + size } else { index };
    let clamped = place.clamp(0, (size - 1).max(0));
    (clamped as usize, clamped != place || n == 0)
}

/// Element `at` of contiguous integer indices.
pub(crate) fn index(input: &Input, at: usize) -> i64 {
    input.elements.get_index(input.layout.offset + at)
}

/// The CPU twin. Inputs: data, indices. Elements are copied as bits, so the class does not matter.
pub(crate) fn gather(kernel: &GatherKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) -> u32 {
    let [data, indices] = inputs else { return 0 };
    let (n, inner) = (kernel.n, kernel.inner);
    let faults = AtomicU32::new(0);
    pool.each_unit(out, inner, inner, |first, out| {
        for (i, out) in out.chunks_mut(inner).enumerate() {
            let (outer, j) = ((first + i) / kernel.indices, (first + i) % kernel.indices);
            let (place, clamped) = resolve(index(indices, j), n);
            if clamped && outer == 0 && kernel.first == 0 {
                faults.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(row) = place.checked_sub(kernel.first).filter(|&row| row < kernel.rows) {
                data.range(((outer * kernel.rows) + row) * inner, out);
            }
        }
    });
    faults.into_inner()
}

/// Visits some positions of `indices` in row-major order. Passes the matching position in `data` with its axis index
/// set to 0, and the stride of that axis.
pub(crate) fn each_position(
    data: &[usize],
    indices: &[usize],
    axis: usize,
    positions: Range<usize>,
    mut work: impl FnMut(usize, usize, usize),
) {
    let mut strides: SmallVec<[usize; 6]> = SmallVec::from_elem(1, data.len());
    for i in (1..data.len()).rev() {
        strides[i - 1] = strides[i] * data[i];
    }
    let axis_stride = strides[axis];
    strides[axis] = 0;
    let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, indices.len());
    let (mut base, mut rest) = (0, positions.start);
    for i in (0..indices.len()).rev() {
        index[i] = rest % indices[i].max(1);
        rest /= indices[i].max(1);
        base += index[i] * strides[i];
    }
    for position in positions {
        work(position, base, axis_stride);
        for i in (0..indices.len()).rev() {
            index[i] += 1;
            base += strides[i];
            if index[i] < indices[i] {
                break;
            }
            base -= strides[i] * indices[i];
            index[i] = 0;
        }
    }
}

/// The CPU twin. Inputs: data, indices.
pub(crate) fn gather_elements(kernel: &GatherElementsKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) -> u32 {
    let [data, indices] = inputs else { return 0 };
    let faults = AtomicU32::new(0);
    let n = kernel.data[kernel.axis];
    pool.each_unit(out, 1, 4, |first, out| {
        let range = first..first + out.len();
        let mut missed = 0;
        each_position(&kernel.data, &kernel.indices, kernel.axis, range, |position, base, stride| {
            let (place, clamped) = resolve(index(indices, position), n);
            missed += u32::from(clamped);
            let element = data.layout.offset + base + place * stride;
            out[position - first] = if n == 0 { 0 } else { data.elements.get(element) };
        });
        faults.fetch_add(missed, Ordering::Relaxed);
    });
    faults.into_inner()
}

/// The position, in units of `inner` elements, of the tuple of `dims.len()` indices that starts at `first`, and how
/// many of them were out of range.
pub(crate) fn resolve_tuple(indices: &Input, first: usize, dims: &[usize]) -> (usize, u32) {
    dims.iter().enumerate().fold((0, 0), |(place, faults), (i, &n)| {
        let (at, clamped) = resolve(index(indices, first + i), n);
        (place * n + at, faults + u32::from(clamped))
    })
}

/// The CPU twin. Inputs: data, indices.
pub(crate) fn gather_nd(kernel: &GatherNdKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) -> u32 {
    let [data, indices] = inputs else { return 0 };
    let (blocks, inner): (usize, _) = (kernel.dims.iter().product(), kernel.inner);
    let faults = AtomicU32::new(0);
    pool.each_unit(out, inner, inner + 4 * kernel.dims.rank(), |first, out| {
        let mut missed = 0;
        for (tuple, out) in (first..).zip(out.chunks_mut(inner)) {
            let (place, clamped) = resolve_tuple(indices, tuple * kernel.dims.rank(), &kernel.dims);
            missed += clamped;
            if blocks == 0 {
                out.fill(0);
            } else {
                data.range((tuple / kernel.tuples * blocks + place) * inner, out);
            }
        }
        faults.fetch_add(missed, Ordering::Relaxed);
    });
    faults.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Class, Layout, Shape};
    use crate::kernel::host::memory::Elements;

    fn input(elements: Elements<'_>, shape: impl Into<Shape>) -> Input<'_> {
        Input { elements, layout: Layout::contiguous(shape) }
    }

    #[test]
    fn gather_takes_rows_from_either_end_and_counts_misses_once() {
        let data: Vec<u8> = (0..2 * 7 * 3).collect();
        let at = [0, -1, 6, 7, -8, 3];
        let inputs = [input(Elements::U8(&data), [2, 7, 3]), input(Elements::I32(&at), [6])];
        let kernel = GatherKernel { class: Class::Uint, outer: 2, n: 7, inner: 3, indices: 6, first: 0, rows: 7 };
        let mut out = vec![0; 36];
        assert_eq!(gather(&kernel, &inputs, &mut out, &CpuPool::new(2)), 2);
        let rows = [0, 6, 6, 6, 0, 3];
        let expected: Vec<u32> =
            (0..2).flat_map(|o| rows.iter().flat_map(move |r| (0..3).map(move |i| (o * 7 + r) * 3 + i))).collect();
        assert_eq!(out, expected);
    }

    #[test]
    fn gather_elements_replaces_one_axis() {
        let data: Vec<i32> = (0..3 * 5).collect();
        let at = [4i8, -5, 9, 0];
        let inputs = [input(Elements::I32(&data), [3, 5]), input(Elements::I8(&at), [2, 2])];
        let (data, indices) = ([3, 5].into(), [2, 2].into());
        let mut out = vec![0; 4];
        let kernel = GatherElementsKernel { class: Class::Int, axis: 1, data, indices };
        assert_eq!(gather_elements(&kernel, &inputs, &mut out, &CpuPool::new(2)), 1);
        assert_eq!(out, [4, 0, 9, 5]);
        let kernel = GatherElementsKernel { axis: 0, ..kernel };
        assert_eq!(gather_elements(&kernel, &inputs, &mut out, &CpuPool::new(2)), 3);
        assert_eq!(out, [10, 1, 10, 1]);
    }

    #[test]
    fn gather_nd_reads_tuples_within_batches() {
        let data: Vec<f32> = (0..2 * 3 * 4 * 2).map(|v| v as f32).collect();
        let at = [0, 0, 2, -1, 1, 4, -3, 3];
        let inputs = [input(Elements::F32(&data), [2, 3, 4, 2]), input(Elements::I32(&at), [2, 2, 2])];
        let kernel = GatherNdKernel { class: Class::Float, batch: 2, tuples: 2, dims: [3, 4].into(), inner: 2 };
        let mut out = vec![0; 8];
        assert_eq!(gather_nd(&kernel, &inputs, &mut out, &CpuPool::new(2)), 1);
        let out: Vec<f32> = out.into_iter().map(f32::from_bits).collect();
        assert_eq!(out, [0.0, 1.0, 22.0, 23.0, 38.0, 39.0, 30.0, 31.0]);
    }
}
