//! Gathers and scatters.

use super::loops::{Input, at, check, indices};
use crate::ir::{Class, DType, ScatterReduce, Shape};
use crate::kernel::*;

/// Indices for an axis of `n`. Some count from the end and some are out of range, if the type allows it. Also returns
/// the resolved positions and the number out of range.
fn some_indices(dtype: DType, shape: impl Into<Shape>, n: usize, seed: u32) -> (Input, Vec<usize>, u32) {
    let (shape, n) = (shape.into(), n as f64);
    let raw: Vec<f64> = super::loops::noise(DType::U32, shape.elements(), seed)
        .iter()
        .map(|v| match dtype.class() {
            Class::Int => v % (2.0 * n + 2.0) - n - 1.0,
            _ => v % (n + 1.0),
        })
        .collect();
    let faults = raw.iter().filter(|&&v| v < -n || v >= n).count() as u32;
    let resolved = raw.iter().map(|&v| (if v < 0.0 { v + n } else { v }).clamp(0.0, n - 1.0) as usize).collect();
    (Input::new(dtype, shape, &raw), resolved, faults)
}

const INDEX_TYPES: [DType; 4] = [DType::I32, DType::U32, DType::I8, DType::U8];

#[test]
fn gather_matches_loops_and_counts_faults() {
    for (turn, dtype) in DType::ALL.into_iter().enumerate() {
        for (outer, n, inner, count) in [(1, 7, 1, 1), (3, 5, 7, 13), (2, 1, 65, 3)] {
            let data = Input::random(dtype, [outer, n, inner], 1);
            let (index, at, faults) = some_indices(INDEX_TYPES[turn % 4], [count], n, 2);
            let values = data.values();
            let expected: Vec<f64> =
                indices(&[outer, count, inner]).iter().map(|p| values[(p[0] * n + at[p[1]]) * inner + p[2]]).collect();
            let kernel = GatherKernel { class: dtype.class(), outer, n, inner, indices: count, first: 0, rows: n };
            let shape = [outer, count, inner];
            let counted = check(Kernel::Gather(kernel), &[data, index], dtype.wide(), shape, &[], &expected);
            assert_eq!(counted, faults);
        }
    }
}

/// Shapes of data and indices, and the axis.
fn element_cases() -> Vec<(Vec<usize>, Vec<usize>, usize)> {
    vec![
        (vec![7], vec![11], 0),
        (vec![3, 5, 4], vec![3, 2, 4], 1),
        (vec![3, 5, 4], vec![2, 7, 3], 1),
        (vec![2, 3, 4, 5, 2, 3], vec![2, 2, 4, 6, 1, 3], 3),
        (vec![4, 3, 5], vec![4, 3, 9], 2),
        (vec![4, 3, 5], vec![6, 3, 2], 0),
    ]
}

#[test]
fn gather_elements_matches_loops_and_counts_faults() {
    for (turn, dtype) in DType::ALL.into_iter().enumerate() {
        for (data_shape, index_shape, axis) in element_cases() {
            let data = Input::random(dtype, data_shape.clone(), 1);
            let (index, resolved, faults) =
                some_indices(INDEX_TYPES[turn % 4], index_shape.clone(), data_shape[axis], 2);
            let values = data.values();
            let expected: Vec<f64> = indices(&index_shape)
                .iter()
                .zip(resolved)
                .map(|(p, i)| {
                    let mut p = p.clone();
                    p[axis] = i;
                    values[at(&data_shape, &p)]
                })
                .collect();
            let kernel = GatherElementsKernel {
                class: dtype.class(),
                axis,
                data: data_shape.into(),
                indices: index_shape.clone().into(),
            };
            let counted =
                check(Kernel::GatherElements(kernel), &[data, index], dtype.wide(), index_shape, &[], &expected);
            assert_eq!(counted, faults);
        }
    }
}

#[test]
fn gather_nd_matches_loops_and_counts_faults() {
    for (batch, tuples, n, depth, inner) in [(1, 9, 4, 1, 3), (2, 5, 3, 2, 7), (3, 65, 2, 3, 1), (2, 3, 1, 0, 2)] {
        let dims = vec![n; depth];
        let data = Input::random(DType::F16, [&[batch][..], &dims, &[inner]].concat(), 1);
        let (index, resolved, faults) = some_indices(DType::I32, [batch, tuples, depth], n, 2);
        let values = data.values();
        let expected: Vec<f64> = indices(&[batch, tuples, inner])
            .iter()
            .map(|p| {
                let first = (p[0] * tuples + p[1]) * depth;
                let slice = at(&dims, &resolved[first..first + depth]);
                values[(p[0] * n.pow(depth as u32) + slice) * inner + p[2]]
            })
            .collect();
        let kernel = GatherNdKernel { class: Class::Float, batch, tuples, dims: dims.into(), inner };
        let shape = [batch, tuples, inner];
        let counted = check(Kernel::GatherNd(kernel), &[data, index], DType::F32, shape, &[], &expected);
        assert_eq!(counted, faults);
    }
}

const REDUCES: [ScatterReduce; 5] =
    [ScatterReduce::Replace, ScatterReduce::Add, ScatterReduce::Mul, ScatterReduce::Min, ScatterReduce::Max];

fn combine(reduce: ScatterReduce, class: Class, a: f64, b: f64) -> f64 {
    match (reduce, class) {
        (ScatterReduce::Replace, _) => b,
        (ScatterReduce::Add, _) => a + b,
        // Integer products wrap.
        (ScatterReduce::Mul, Class::Float) => a * b,
        (ScatterReduce::Mul, Class::Int) => f64::from((a as i32).wrapping_mul(b as i32)),
        (ScatterReduce::Mul, Class::Uint) => f64::from((a as u32).wrapping_mul(b as u32)),
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        (ScatterReduce::Min, _) => a.min(b),
        (ScatterReduce::Max, _) => a.max(b),
    }
}

#[test]
fn scatter_elements_matches_loops_and_counts_faults() {
    for (turn, dtype) in DType::ALL.into_iter().enumerate() {
        for (reduce, (data_shape, index_shape, axis)) in REDUCES.into_iter().zip(element_cases().into_iter().skip(1)) {
            let data = Input::random(dtype, data_shape.clone(), 1);
            let (index, resolved, faults) =
                some_indices(INDEX_TYPES[turn % 4], index_shape.clone(), data_shape[axis], 2);
            let mut updates = Input::random(dtype, index_shape.clone(), 3);
            if dtype.is_float() && reduce != ScatterReduce::Replace {
                updates.storage[super::loops::OFFSET + 1] = f64::NAN;
            }
            let mut expected = data.values();
            for ((p, i), update) in indices(&index_shape).iter().zip(resolved).zip(updates.values()) {
                let mut p = p.clone();
                p[axis] = i;
                let value = &mut expected[at(&data_shape, &p)];
                *value = combine(reduce, dtype.class(), *value, update);
            }
            let kernel = ScatterElementsKernel {
                class: dtype.class(),
                reduce,
                axis,
                data: data_shape.clone().into(),
                indices: index_shape.into(),
            };
            let inputs = [data, index, updates];
            let counted = check(Kernel::ScatterElements(kernel), &inputs, dtype.wide(), data_shape, &[], &expected);
            assert_eq!(counted, faults);
        }
    }
}

#[test]
fn scatter_nd_matches_loops_and_counts_faults() {
    let cases = [(9, 4, 1, 3), (5, 3, 2, 7), (65, 2, 3, 1), (2, 5, 2, 33), (3, 1, 0, 4), (70, 66, 1, 1001)];
    // The last case is large enough for several elements per thread.
    for (reduce, (tuples, n, depth, inner)) in REDUCES.into_iter().cycle().zip(cases) {
        for dtype in [DType::F32, DType::I8, DType::U32] {
            let dims = vec![n; depth];
            let shape = [&dims[..], &[inner]].concat();
            let data = Input::random(dtype, shape.clone(), 1);
            let (index, resolved, faults) = some_indices(DType::I32, [tuples, depth], n, 2);
            let updates = Input::random(dtype, [tuples, inner], 3);
            let mut expected = data.values();
            let values = updates.values();
            for tuple in 0..tuples {
                let slice = at(&dims, &resolved[tuple * depth..(tuple + 1) * depth]);
                for i in 0..inner {
                    let value = &mut expected[slice * inner + i];
                    *value = combine(reduce, dtype.class(), *value, values[tuple * inner + i]);
                }
            }
            let kernel = ScatterNdKernel { class: dtype.class(), reduce, tuples, dims: dims.into(), inner };
            let inputs = [data, index, updates];
            let counted = check(Kernel::ScatterNd(kernel), &inputs, dtype.wide(), shape, &[], &expected);
            assert_eq!(counted, faults);
        }
    }
}
