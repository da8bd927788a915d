//! Scatters on the CPU. Updates are applied sequentially in order, so the result does not depend on threads.

use bytemuck::cast_slice_mut;

use crate::ir::ScatterReduce;
use crate::kernel::gather::cpu::{each_position, index, resolve, resolve_tuple};
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::{ScatterElementsKernel, ScatterNdKernel};

/// Combines an element with an update.
#[inline(always)]
pub(super) fn combine<T: Number>(reduce: ScatterReduce, old: T, new: T) -> T {
    match reduce {
        ScatterReduce::Replace => new,
        ScatterReduce::Add => old.add(new),
        ScatterReduce::Mul => old.mul(new),
        ScatterReduce::Min => old.smaller(new),
        ScatterReduce::Max => old.larger(new),
    }
}

/// The CPU twin. Inputs: data, indices, updates.
pub(crate) fn scatter_elements(kernel: &ScatterElementsKernel, inputs: &[Input], out: &mut [u32]) -> u32 {
    let [data, indices, updates] = inputs else { return 0 };
    data.range(0, out);
    let n = kernel.data[kernel.axis];
    let mut faults = 0;
    with_class!(kernel.class, T => {
        let out: &mut [T] = cast_slice_mut(out);
        let mut update = [T::ZERO];
        each_position(&kernel.data, &kernel.indices, kernel.axis, 0..kernel.indices.elements(), |position, base, stride| {
            let (place, clamped) = resolve(index(indices, position), n);
            faults += u32::from(clamped);
            updates.range(position, &mut update);
            if let Some(o) = out.get_mut(base + place * stride) {
                *o = combine(kernel.reduce, *o, update[0]);
            }
        });
    });
    faults
}

/// The CPU twin. Inputs: data, indices, updates.
pub(crate) fn scatter_nd(kernel: &ScatterNdKernel, inputs: &[Input], out: &mut [u32]) -> u32 {
    let [data, indices, updates] = inputs else { return 0 };
    data.range(0, out);
    let inner = kernel.inner;
    let mut faults = 0;
    with_class!(kernel.class, T => {
        let out: &mut [T] = cast_slice_mut(out);
        let mut update = vec![T::ZERO; inner];
        for tuple in 0..kernel.tuples {
            let (place, clamped) = resolve_tuple(indices, tuple * kernel.dims.rank(), &kernel.dims);
            faults += clamped;
            updates.range(tuple * inner, &mut update);
            if let Some(out) = out.get_mut(place * inner..(place + 1) * inner) {
                out.iter_mut().zip(&update).for_each(|(o, &v)| *o = combine(kernel.reduce, *o, v));
            }
        }
    });
    faults
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
    fn elements_are_combined_in_order() {
        let (data, at, new) = ([10i8, 20, 30, 40, 50, 60], [0, -1, 2, 2, 9, 1], [1, 2, 3, 4, 5, 6]);
        let inputs =
            [input(Elements::I8(&data), [2, 3]), input(Elements::I32(&at), [2, 3]), input(Elements::I32(&new), [2, 3])];
        for (reduce, expected) in [
            (ScatterReduce::Replace, [1, 20, 3, 40, 6, 5]),
            (ScatterReduce::Add, [11, 20, 35, 40, 56, 69]),
            (ScatterReduce::Mul, [10, 20, 180, 40, 300, 1200]),
            (ScatterReduce::Min, [1, 20, 2, 40, 6, 4]),
            (ScatterReduce::Max, [10, 20, 30, 40, 50, 60]),
        ] {
            let (data, indices) = ([2, 3].into(), [2, 3].into());
            let kernel = ScatterElementsKernel { class: Class::Int, reduce, axis: 1, data, indices };
            let mut out = vec![0; 6];
            assert_eq!(scatter_elements(&kernel, &inputs, &mut out), 1);
            assert_eq!(out.iter().map(|&v| v as i32).collect::<Vec<_>>(), expected, "{reduce:?}");
        }
    }

    #[test]
    fn blocks_are_combined_in_order() {
        let data: Vec<f32> = vec![0.0; 2 * 3 * 2];
        let at = [1, 2, 0, -3, 1, 2];
        let new: Vec<f32> = (1..7).map(|v| v as f32).collect();
        let inputs = [
            input(Elements::F32(&data), [2, 3, 2]),
            input(Elements::I32(&at), [3, 2]),
            input(Elements::F32(&new), [3, 2]),
        ];
        for (reduce, last) in [(ScatterReduce::Replace, [5.0, 6.0]), (ScatterReduce::Add, [6.0, 8.0])] {
            let kernel = ScatterNdKernel { class: Class::Float, reduce, tuples: 3, dims: [2, 3].into(), inner: 2 };
            let mut out = vec![0; 12];
            assert_eq!(scatter_nd(&kernel, &inputs, &mut out), 0);
            let out: Vec<f32> = out.into_iter().map(f32::from_bits).collect();
            assert_eq!((&out[..2], &out[2..10], &out[10..]), (&[3.0, 4.0][..], &[0.0; 8][..], &last[..]));
        }
    }
}
