//! The values of a tensor on the host: statistics, a histogram, and planes of any two axes.

use core::time::Duration;

use bevy::prelude::*;

use crate::ir::{DType, Shape};
use crate::tensor::TensorData;

/// Number of bars in a histogram.
const BARS: usize = 48;

/// Statistics of values. Minimum, maximum, mean and deviation cover finite values only.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ValueStatistics {
    /// Number of values.
    pub count: usize,
    /// Number of NaN values.
    pub nan: usize,
    /// Number of infinite values.
    pub infinite: usize,
    /// Number of zeros.
    pub zeros: usize,
    /// Smallest finite value. `None` if no value is finite.
    pub min: Option<f64>,
    /// Largest finite value.
    pub max: Option<f64>,
    /// Mean of the finite values.
    pub mean: Option<f64>,
    /// Standard deviation of the finite values.
    pub deviation: Option<f64>,
}

impl ValueStatistics {
    fn of(values: &[f64]) -> Self {
        let mut all = Self { count: values.len(), ..Self::default() };
        let (mut n, mut mean, mut squares) = (0.0, 0.0, 0.0);
        for &x in values {
            if !x.is_finite() {
                *if x.is_nan() { &mut all.nan } else { &mut all.infinite } += 1;
                continue;
            }
            all.zeros += usize::from(x == 0.0);
            all.min = Some(all.min.map_or(x, |min: f64| min.min(x)));
            all.max = Some(all.max.map_or(x, |max: f64| max.max(x)));
            // Welford's algorithm: one pass, and stable for a large mean.
            n += 1.0;
            let delta = x - mean;
            mean += delta / n;
            squares += delta * (x - mean);
        }
        if n > 0.0 {
            (all.mean, all.deviation) = (Some(mean), Some((squares / n).sqrt()));
        }
        all
    }
}

/// The values of one tensor at one point in time.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorValues {
    /// The tensor.
    pub tensor: Entity,
    /// Time at which they arrived, in the app's real time.
    pub at: Duration,
    /// Sizes of the axes.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
    /// Values in row-major order. Quantised values are dequantised.
    pub values: Vec<f64>,
    /// Their statistics.
    pub statistics: ValueStatistics,
    /// Number of finite values in equal intervals between the minimum and the maximum. Empty if no value is finite.
    pub histogram: Vec<u64>,
}

impl TensorValues {
    /// Computes statistics and the histogram of data.
    pub fn new(tensor: Entity, at: Duration, data: &TensorData) -> Self {
        let values: Vec<f64> = match data.dtype() {
            // `f64` is exact here, `f32` would round.
            DType::I32 => data.as_slice::<i32>().unwrap_or_default().iter().map(|&x| f64::from(x)).collect(),
            DType::U32 => data.as_slice::<u32>().unwrap_or_default().iter().map(|&x| f64::from(x)).collect(),
            _ => data.to_f32().into_iter().map(f64::from).collect(),
        };
        let statistics = ValueStatistics::of(&values);
        let histogram = histogram(&values, &statistics);
        Self { tensor, at, shape: data.shape().clone(), dtype: data.dtype(), values, statistics, histogram }
    }

    /// The plane of two axes, at an index on all other axes. `rows` is `None` for a single row. Axes and indices
    /// outside of the tensor are clamped.
    pub fn plane<'a>(&'a self, rows: Option<usize>, columns: usize, at: &'a [usize]) -> Plane<'a> {
        Plane { values: self, rows: rows.filter(|_| self.shape.rank() > 1), columns, at }
    }
}

/// A plane of two axes of a tensor, at an index on all other axes.
#[derive(Clone, Copy, Debug)]
pub struct Plane<'a> {
    values: &'a TensorValues,
    rows: Option<usize>,
    columns: usize,
    at: &'a [usize],
}

impl Plane<'_> {
    /// Number of rows and columns.
    pub fn size(&self) -> [usize; 2] {
        let shape = &self.values.shape;
        let columns = shape.get(self.columns).copied().unwrap_or(1);
        let rows = self.rows.map_or(1, |axis| shape.get(axis).copied().unwrap_or(1));
        if shape.contains(&0) { [0, 0] } else { [rows, columns] }
    }

    /// The tensor index of an element of the plane.
    pub fn index(&self, row: usize, column: usize) -> Vec<usize> {
        let place = |axis: usize| {
            if axis == self.columns {
                column
            } else if Some(axis) == self.rows {
                row
            } else {
                self.at.get(axis).copied().unwrap_or(0)
            }
        };
        let sizes = self.values.shape.iter().enumerate();
        sizes.map(|(axis, &size)| place(axis).min(size.saturating_sub(1))).collect()
    }

    /// The value of an element of the plane.
    pub fn get(&self, row: usize, column: usize) -> Option<f64> {
        let index = self.index(row, column);
        let flat = index.iter().zip(self.values.shape.iter()).fold(0, |flat, (&i, &size)| flat * size + i);
        self.values.values.get(flat).copied()
    }
}

fn histogram(values: &[f64], statistics: &ValueStatistics) -> Vec<u64> {
    let (Some(min), Some(max)) = (statistics.min, statistics.max) else { return Vec::new() };
    let scale = BARS as f64 / (max - min);
    let mut bars = vec![0; BARS];
    for x in values.iter().filter(|x| x.is_finite()) {
        // All values are equal: put them into the middle bar.
        let bar = if scale.is_finite() { ((x - min) * scale) as usize } else { BARS / 2 };
        bars[bar.min(BARS - 1)] += 1;
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(data: &TensorData) -> TensorValues {
        TensorValues::new(Entity::PLACEHOLDER, Duration::ZERO, data)
    }

    #[test]
    fn statistics_exclude_nan_and_infinity() {
        let data = TensorData::new(&[1.0f32, f32::NAN, 3.0, f32::INFINITY, 0.0, -4.0], [6]).unwrap();
        let seen = values(&data);
        let expected = ValueStatistics {
            count: 6,
            nan: 1,
            infinite: 1,
            zeros: 1,
            min: Some(-4.0),
            max: Some(3.0),
            mean: Some(0.0),
            deviation: seen.statistics.deviation,
        };
        assert_eq!(seen.statistics, expected);
        assert!((seen.statistics.deviation.unwrap() - 6.5f64.sqrt()).abs() < 1e-12);
        assert_eq!((seen.histogram.len(), seen.histogram.iter().sum::<u64>()), (BARS, 4));
        assert_eq!((seen.histogram[0], seen.histogram[BARS - 1]), (1, 1));
    }

    #[test]
    fn equal_values_and_none_at_all_have_a_histogram_too() {
        let equal = values(&TensorData::new(&[7u32; 5], [5]).unwrap());
        assert_eq!(equal.histogram[BARS / 2], 5);
        let none = values(&TensorData::new::<f32>(&[], [0, 4]).unwrap());
        assert_eq!((none.histogram.len(), none.statistics.min, none.plane(Some(0), 1, &[]).size()), (0, None, [0, 0]));
        let nan = values(&TensorData::new(&[f32::NAN], [1]).unwrap());
        assert_eq!((nan.histogram.len(), nan.statistics.mean), (0, None));
    }

    #[test]
    fn large_integers_are_exact() {
        let data = values(&TensorData::new(&[u32::MAX, 16_777_217], [2]).unwrap());
        assert_eq!(data.values, [4_294_967_295.0, 16_777_217.0]);
    }

    #[test]
    fn any_two_axes_make_a_plane() {
        let numbers: Vec<i32> = (0..24).collect();
        let data = values(&TensorData::new(&numbers, [2, 3, 4]).unwrap());
        let plane = data.plane(Some(2), 0, &[0, 1, 0]);
        assert_eq!(plane.size(), [4, 2]);
        assert_eq!((plane.get(3, 1), plane.index(3, 1)), (Some(19.0), vec![1, 1, 3]));
        let scalar = values(&TensorData::new(&[5.0f32], []).unwrap());
        assert_eq!((scalar.plane(None, 0, &[]).size(), scalar.plane(None, 0, &[]).get(0, 0)), ([1, 1], Some(5.0)));
        // Indices of an earlier shape are clamped.
        assert_eq!(data.plane(Some(0), 1, &[9, 9, 9]).get(0, 0), Some(3.0));
    }
}
