//! Cumulative sums, top-k and interpolation.

use super::loops::{Input, OFFSET, check, indices};
use crate::ir::DType;
use crate::kernel::*;

#[test]
fn cumsum_matches_loops() {
    for dtype in DType::ALL {
        for exclusive in [false, true] {
            for (outer, n, inner) in [(1, 1, 1), (3, 65, 5), (2, 1757, 1), (2, 257, 3)] {
                let x = Input::random(dtype, [outer, n, inner], 1);
                let values = x.values();
                let mut expected = vec![0.0; values.len()];
                for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                    let mut sum = 0.0;
                    for j in 0..n {
                        let at = (o * n + j) * inner + i;
                        expected[at] = if exclusive { sum } else { sum + values[at] };
                        sum += values[at];
                    }
                }
                let kernel = CumSumKernel { class: dtype.class(), exclusive, outer, n, inner };
                let shape = [outer, n, inner];
                check(Kernel::CumSum(kernel), &[x], dtype.wide(), shape, &[], &expected);
            }
        }
    }
}

#[test]
fn top_k_orders_values_then_positions() {
    for dtype in DType::ALL {
        for largest in [true, false] {
            let cases =
                [(1, 1, 1), (3, 63, 63), (20, 65, 3), (2, 1757, 5), (17, 300, 2), (1, 1757, 1757), (1, 4096, 1100)];
            // Long rows are slow here and behave the same for every type.
            let cases = if dtype == DType::F32 { &cases[..] } else { &cases[..5] };
            for &(rows, n, k) in cases {
                let mut x = Input::random(dtype, [rows, n], 1);
                if dtype.is_float() && n > 4 {
                    x.storage[OFFSET + 1] = f64::NAN;
                    x.storage[OFFSET + 2] = -0.0;
                    x.storage[OFFSET + 3] = f64::INFINITY;
                    x.storage[OFFSET + 4] = f64::NAN;
                    x.storage[OFFSET] = f64::NEG_INFINITY;
                }
                let values = x.values();
                let expected: Vec<f64> = values
                    .chunks(n)
                    .flat_map(|row| {
                        let mut order: Vec<usize> = (0..n).collect();
                        order.sort_by(|&a, &b| {
                            let up = match (row[a].is_nan(), row[b].is_nan()) {
                                (false, false) => row[a].partial_cmp(&row[b]).expect("numbers"),
                                (a, b) => a.cmp(&b),
                            };
                            if largest { up.reverse() } else { up }
                        });
                        order.truncate(k);
                        order
                    })
                    .map(|i| i as f64)
                    .collect();
                let kernel = TopKKernel { class: dtype.class(), largest, rows, n, k };
                check(Kernel::TopK(kernel), &[x], DType::I32, [rows, k], &[], &expected);
            }
        }
    }
}

#[test]
fn taps_match_loops() {
    for (outer, n, inner, out, taps) in [(1, 1, 1, 1, 1), (3, 7, 5, 13, 2), (2, 33, 65, 3, 4)] {
        let x = Input::random(DType::F16, [outer, n, inner], 1);
        let positions: Vec<f64> = super::loops::noise(DType::U32, out * taps, 2).iter().map(|v| v % n as f64).collect();
        let position = Input::new(DType::I32, [out, taps], &positions);
        let weight = Input::random(DType::F32, [out, taps], 3);
        let (xs, ws) = (x.values(), weight.values());
        let expected: Vec<f64> = indices(&[outer, out, inner])
            .iter()
            .map(|p| {
                let sum = |t: usize| ws[t] * xs[(p[0] * n + positions[t] as usize) * inner + p[2]];
                (p[1] * taps..(p[1] + 1) * taps).map(sum).sum()
            })
            .collect();
        let kernel = TapsKernel { outer, n, inner, out, taps };
        check(Kernel::Taps(kernel), &[x, position, weight], DType::F32, [outer, out, inner], &[], &expected);
    }
}
