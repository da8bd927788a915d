//! How a length is transformed on a device, and the tables of roots that this takes.
//!
//! Shaders compute sines with few correct digits, so all roots come from tables, which are made in 64 bits.

use core::f64::consts::TAU;
use std::sync::{Arc, Mutex, PoisonError};

use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

use crate::tensor::pack;

/// The most points that a workgroup transforms: two copies of them are 16 KiB, which every device has.
pub(crate) const WHOLE: usize = 1 << 10;
/// The longest transform, and the longest one of a length without small factors.
pub(crate) const LONGEST: usize = 1 << 20;
/// Larger prime factors are not worth a stage of their own.
const LARGEST_FACTOR: usize = 61;
/// Roots of long transforms are products of a fine one, below this, and a coarse one.
pub(super) const FINE: usize = 1 << 10;

/// How a length is transformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By one workgroup.
    Whole,
    /// As a matrix of this many rows and columns: first the columns, then the rows.
    Matrix { rows: usize, columns: usize },
    /// As a convolution by transforms of this length (Bluestein).
    Convolution { length: usize },
}

/// How to transform `n` points, or `None` if there are too many.
pub(super) fn way(n: usize) -> Option<Way> {
    if n <= WHOLE && is_smooth(n) {
        return Some(Way::Whole);
    }
    if n <= LONGEST
        && is_smooth(n)
        && let Some(rows) = (n.div_ceil(WHOLE)..=n.isqrt()).rev().find(|rows| n.is_multiple_of(*rows))
    {
        return Some(Way::Matrix { rows, columns: n / rows });
    }
    let length = (2 * n - 1).next_power_of_two();
    (length <= LONGEST).then_some(Way::Convolution { length })
}

/// Whether a device can transform `n` points.
pub(crate) fn is_possible(n: usize) -> bool {
    n > 0 && n <= LONGEST && way(n).is_some()
}

fn is_smooth(mut n: usize) -> bool {
    for factor in 2..=LARGEST_FACTOR {
        while n.is_multiple_of(factor) {
            n /= factor;
        }
    }
    n == 1
}

/// The radices of the stages of `n` points, which are at most [`WHOLE`] and have small factors only.
pub(super) fn radices(mut n: usize) -> Vec<usize> {
    let twos = n.trailing_zeros() as usize;
    n >>= twos;
    let mut list = match twos % 3 {
        0 => vec![8; twos / 3],
        // Two fours rather than an eight and a two.
        1 if twos > 1 => [vec![8; twos / 3 - 1], vec![4, 4]].concat(),
        1 => vec![2],
        _ => [vec![8; twos / 3], vec![4]].concat(),
    };
    for factor in (3..=LARGEST_FACTOR).step_by(2) {
        while n.is_multiple_of(factor) {
            list.push(factor);
            n /= factor;
        }
    }
    list
}

/// `e^(−2πi · turn / n)`. The turn is reduced exactly.
fn root(turn: u64, n: u64) -> Complex<f64> {
    let angle = -TAU * (turn % n) as f64 / n as f64;
    Complex::new(angle.cos(), angle.sin())
}

/// Factor `j` of a convolution: `e^(−πi · j² / n)`.
fn chirp(j: usize, n: usize) -> Complex<f64> {
    let (j, n) = (j as u64, n as u64);
    root(j * j, 2 * n)
}

/// Complex numbers of the table of a transform.
#[cfg(test)]
fn table_length(n: usize) -> usize {
    match way(n) {
        Some(Way::Whole) | None => n,
        Some(Way::Matrix { rows, columns }) => rows + columns + FINE + n.div_ceil(FINE),
        Some(Way::Convolution { length }) => n + length + table_length(length),
    }
}

/// The table of a transform:
///
/// * whole: the roots of `n`;
/// * matrix: the roots of the rows' number, of the columns' number, and the fine and the coarse roots of `n`;
/// * convolution: its factors, the spectrum of their conjugates, and the table of its length.
fn push_table(n: usize, table: &mut Vec<Complex<f64>>) {
    let roots = |n: usize| (0..n as u64).map(move |turn| root(turn, n as u64));
    match way(n) {
        Some(Way::Whole) | None => table.extend(roots(n)),
        Some(Way::Matrix { rows, columns }) => {
            table.extend(roots(rows).chain(roots(columns)));
            table.extend((0..FINE as u64).map(|turn| root(turn, n as u64)));
            table.extend((0..n.div_ceil(FINE)).map(|turn| root((turn * FINE) as u64, n as u64)));
        }
        Some(Way::Convolution { length }) => {
            table.extend((0..n).map(|j| chirp(j, n)));
            let mut spectrum = vec![Complex::new(0.0, 0.0); length];
            for j in 0..n {
                let value = chirp(j, n).conj() / length as f64;
                spectrum[j] = value;
                spectrum[(length - j) % length] = value;
            }
            FftPlanner::new().plan_fft_forward(length).process(&mut spectrum);
            table.extend(spectrum);
            push_table(length, table);
        }
    }
}

/// Tables that are kept. The largest has about 50 MB, most have a few KB.
const KEPT: usize = 64;
/// Bytes of tables that are kept.
const KEPT_BYTES: usize = 64 << 20;

/// A table and its key.
type Kept = ((usize, bool), Arc<[u32]>);

/// The latest tables, the most recent one last.
static TABLES: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// The table of a transform of `n` points as pairs of `f32`. A packed one has the roots of `n / 2`, then those of `n`.
pub(crate) fn table(n: usize, packed: bool) -> Arc<[u32]> {
    let key = (n, packed);
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = tables.iter().position(|kept| kept.0 == key) {
        let kept = tables.remove(at);
        tables.push(kept.clone());
        return kept.1;
    }
    let mut roots = Vec::new();
    if packed {
        push_table(n / 2, &mut roots);
        roots.extend((0..=n as u64 / 2).map(|turn| root(turn, n as u64)));
    } else {
        push_table(n, &mut roots);
    }
    let words: Vec<f32> = roots.iter().flat_map(|root| [root.re as f32, root.im as f32]).collect();
    let table = pack(&words);
    tables.push((key, table.clone()));
    while tables.len() > KEPT || tables.iter().map(|kept| kept.1.len() * 4).sum::<usize>() > KEPT_BYTES {
        tables.remove(0);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_multiply_to_their_length() {
        for n in 1..=WHOLE {
            if way(n) == Some(Way::Whole) {
                let radices = radices(n);
                assert_eq!(radices.iter().product::<usize>(), n, "{radices:?}");
                assert!(radices.len() <= 8, "{n}: {radices:?}");
            }
        }
        assert!(radices(1).is_empty());
        assert_eq!(radices(1024), [8, 8, 4, 4]);
        assert_eq!(radices(400), [4, 4, 5, 5]);
    }

    #[test]
    fn every_length_up_to_half_a_million_has_a_way() {
        assert_eq!(way(1024), Some(Way::Whole));
        assert_eq!(way(LONGEST), Some(Way::Matrix { rows: 1024, columns: 1024 }));
        assert_eq!(way(1009), Some(Way::Convolution { length: 2048 }));
        for n in (1..=LONGEST / 2).step_by(97) {
            assert!(is_possible(n), "{n}");
        }
        assert!(!is_possible(0) && !is_possible(LONGEST + 1) && !is_possible(LONGEST - 3));
    }

    #[test]
    fn the_number_of_kept_tables_is_bounded() {
        for n in 1..200 {
            assert_eq!(table(n, false).len(), table_length(n) * 2);
        }
        assert!(TABLES.lock().unwrap().len() <= KEPT);
    }
}
