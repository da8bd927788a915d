//! The twin: the places of a point along each axis are found once for all channels.

use super::SampleKernel;
use crate::ir::{SampleCoordinates, SampleFilter, SamplePadding, Sampling};
use crate::kernel::host::CpuPool;
use crate::kernel::host::memory::Input;

/// Coordinates beyond this are all the same: far outside.
const FAR: f32 = 1e9;

/// Elements of one axis and their weights. Those outside have no place.
#[derive(Clone, Copy, Default)]
struct Taps {
    at: [Option<u32>; 4],
    weight: [f32; 4],
}

/// Mirrors a position at the edges until it is between them.
fn reflect(x: f32, low: f32, high: f32) -> f32 {
    let range = high - low;
    if range <= 0.0 {
        return low;
    }
    let (beyond, from, towards) = match x {
        x if x < low => (low - x, low, 1.0),
        x if x > high => (x - high, high, -1.0),
        x => return x,
    };
    let turns = (beyond / range).floor();
    let rest = beyond - turns * range;
    let is_even = turns - 2.0 * (turns * 0.5).floor() == 0.0;
    match is_even {
        true => from + towards * rest,
        false => low + high - from - towards * rest,
    }
}

/// The elements that a coordinate reads along an axis of `size` elements.
fn taps(sampling: &Sampling, coordinate: f32, size: usize) -> Taps {
    let n = size as f32;
    let centres = sampling.coordinates == SampleCoordinates::Centres;
    let mut x = match sampling.coordinates {
        SampleCoordinates::Edges => ((coordinate + 1.0) * n - 1.0) / 2.0,
        SampleCoordinates::Centres => (coordinate + 1.0) / 2.0 * (n - 1.0),
        SampleCoordinates::Pixels => coordinate,
    };
    x = if x.is_nan() { -FAR } else { x.clamp(-FAR, FAR) };
    if sampling.filter == SampleFilter::Nearest {
        x = x.round_ties_even();
    }
    let (low, high) = if centres { (0.0, n - 1.0) } else { (-0.5, n - 0.5) };
    if x < low || x > high {
        x = match sampling.padding {
            SamplePadding::Zeros => x,
            // A cubic filter sees past the edge, as in PyTorch and onnxruntime.
            SamplePadding::Border if sampling.filter == SampleFilter::Cubic => x,
            SamplePadding::Border => x.clamp(0.0, n - 1.0),
            SamplePadding::Reflection => reflect(x, low, high),
        };
    }
    let place = |at: f32| {
        let inside = match sampling.padding {
            SamplePadding::Zeros if at < 0.0 || at > n - 1.0 => return None,
            SamplePadding::Zeros | SamplePadding::Border => at,
            SamplePadding::Reflection => reflect(at, low, high).trunc(),
        };
        Some(inside.clamp(0.0, n - 1.0) as u32)
    };
    let mut taps = Taps::default();
    let first = x.floor();
    let rest = x - first;
    match sampling.filter {
        SampleFilter::Nearest => (taps.at[0], taps.weight[0]) = (place(x.trunc()), 1.0),
        SampleFilter::Linear => {
            for (i, weight) in [1.0 - rest, rest].into_iter().enumerate() {
                (taps.at[i], taps.weight[i]) = (place(first + i as f32), weight);
            }
        }
        SampleFilter::Cubic => {
            for (i, weight) in cubic(rest).into_iter().enumerate() {
                (taps.at[i], taps.weight[i]) = (place(first + i as f32 - 1.0), weight);
            }
        }
    }
    taps
}

/// Weights of the elements before, at, after and two after a position.
fn cubic(x: f32) -> [f32; 4] {
    const A: f32 = -0.75;
    let outer = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let inner = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    [outer(x + 1.0), inner(x), inner(1.0 - x), outer(2.0 - x)]
}

pub(super) fn sample(kernel: &SampleKernel, x: &Input, points: &Input, out: &mut [f32], pool: &CpuPool) {
    let SampleKernel { sampling, channels, input, points: count, axes, .. } = kernel;
    let [_, height, width] = *input;
    let plane = input.iter().product::<usize>();
    let (x, points) = (x.contiguous::<f32>(pool), points.contiguous::<f32>(pool));
    let tap_count = kernel.taps();
    let used = |taps: &Taps| (0..tap_count).filter_map(|i| Some((taps.at[i]? as usize, taps.weight[i]))).collect();
    for (n, out) in out.chunks_mut((channels * count).max(1)).enumerate() {
        // Outermost axis first. A picture has one place along its depth.
        type Used = smallvec::SmallVec<[(usize, f32); 4]>;
        let mut places: Vec<[Used; 3]> = Vec::with_capacity(*count);
        for point in points[n * count * axes..][..count * axes].chunks(*axes) {
            let along = |axis: usize| -> Used {
                match point.get(axis) {
                    Some(&coordinate) => used(&taps(sampling, coordinate, input[2 - axis])),
                    None => Used::from_elem((0, 1.0), 1),
                }
            };
            places.push([along(2), along(1), along(0)]);
        }
        let cost = count * tap_count.pow(*axes as u32);
        pool.each_unit(out, *count, cost, |first, out| {
            for (c, out) in out.chunks_mut(*count).enumerate() {
                let x = &x[(n * channels + first + c) * plane..][..plane];
                for (out, [depths, rows, columns]) in out.iter_mut().zip(&places) {
                    let mut sum = 0.0;
                    for (d, of_depth) in depths {
                        let mut of_plane = 0.0;
                        for (row, of_row) in rows {
                            let line = &x[(d * height + row) * width..][..width];
                            of_plane += of_row * columns.iter().map(|(at, weight)| weight * line[*at]).sum::<f32>();
                        }
                        sum += of_depth * of_plane;
                    }
                    *out = sum;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_mirrored_until_they_are_inside() {
        assert_eq!(reflect(-1.0, -0.5, 2.5), 0.0);
        assert_eq!(reflect(3.0, -0.5, 2.5), 2.0);
        assert_eq!(reflect(-4.0, -0.5, 2.5), 2.0);
        assert_eq!(reflect(7.0, 0.0, 3.0), 1.0);
        assert_eq!(reflect(5.0, 0.0, 0.0), 0.0, "a single element");
        assert_eq!(reflect(1.25, 0.0, 3.0), 1.25);
    }

    #[test]
    fn weights_of_a_filter_add_up_to_one() {
        for i in 0..=10 {
            let x = i as f32 / 10.0;
            assert!((cubic(x).iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        assert_eq!(cubic(0.0), [0.0, 1.0, 0.0, 0.0]);
    }
}
