//! Pooling of regions of interest: each region of a picture becomes a picture of a fixed size.

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::{Node, RoiKind, RoiPooling};
use crate::kernel::host::memory::Input;
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, Step, Variants};

/// The most samples along an axis of a cell. Larger regions are sampled more coarsely, so that a hostile region cannot
/// keep a thread busy for long.
const MOST_SAMPLES: u32 = 128;

/// Inputs: `x [n, c, h, w]`, `regions [r, 4]` as left, top, right, bottom, and `pictures [r]`, which picture each region is
/// in. Output `[r, c, …size]`. A region of a picture that does not exist is counted as a fault and pools the nearest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RoiPoolKernel {
    pub pooling: RoiPooling,
    pub batch: usize,
    pub channels: usize,
    pub input: [usize; 2],
    pub regions: usize,
}

impl RoiPoolKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &pooling: &RoiPooling) -> Self {
        let (x, regions) = (&inputs[0].layout.shape, &inputs[1].layout.shape);
        Self { pooling, batch: x[0], channels: x[1], input: [x[2], x[3]], regions: regions[0] }
    }
}

impl KernelSpec for RoiPoolKernel {
    fn name(&self) -> &'static str {
        "roi_pool"
    }

    fn input_names(&self) -> InputNames {
        names(&["x", "regions", "pictures"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::AFTER
    }

    fn counts_faults(&self) -> bool {
        true
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        // Regions are data. A cell often has a handful of samples of four elements.
        let [height, width] = self.pooling.size;
        self.regions * self.channels * height * width * 32
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        let [out_height, out_width] = self.pooling.size;
        let mut builder = Builder::new(step);
        let [height, width] = self.input;
        builder.params.size("height", height).size("width", width).size("batch", self.batch);
        builder.params.size("channels", self.channels).size("scale", self.pooling.scale as usize);
        builder.params.size("out_height", out_height).size("out_width", out_width);
        builder.need("is_nan").need("min_max").need("to_integer");
        let text = match self.pooling.kind {
            RoiKind::Samples { max, samples, half_pixel } => {
                builder.constant("MAX", u32::from(max)).constant("HALF_PIXEL", u32::from(half_pixel));
                builder.constant("MOST_SAMPLES", MOST_SAMPLES);
                builder.params.size("samples", samples.min(MOST_SAMPLES) as usize);
                include_str!("../../assets/kernels/roi_pool_samples.wgsl")
            }
            RoiKind::Elements => include_str!("../../assets/kernels/roi_pool_elements.wgsl"),
        };
        let text = [text, "\n", include_str!("../../assets/kernels/roi_pool.wgsl")].concat();
        let threads = self.regions * self.channels * out_height * out_width;
        Some(builder.finish_threads(&text, threads, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        let [x, regions, pictures] = inputs else { return Ok(0) };
        Ok(roi_pool(self, x, regions, pictures, cast_slice_mut(out), pool))
    }
}

/// The twin. Gives the number of regions whose picture does not exist, once for each element.
fn roi_pool(
    kernel: &RoiPoolKernel,
    x: &Input,
    regions: &Input,
    pictures: &Input,
    out: &mut [f32],
    pool: &CpuPool,
) -> u32 {
    let [height, width] = kernel.input;
    let [out_height, out_width] = kernel.pooling.size;
    let (plane, cells) = (height * width, out_height * out_width);
    if plane == 0 || kernel.batch == 0 {
        out.fill(0.0);
        return 0;
    }
    let (x, regions) = (x.contiguous::<f32>(pool), regions.contiguous::<f32>(pool));
    let pictures = pictures.contiguous::<i32>(pool);
    let mut faults = 0u32;
    let chosen: Vec<usize> = pictures
        .iter()
        .map(|&picture| {
            let valid = (0..kernel.batch as i64).contains(&i64::from(picture));
            faults = faults.saturating_add(if valid { 0 } else { (kernel.channels * cells) as u32 });
            (picture.max(0) as usize).min(kernel.batch - 1)
        })
        .collect();
    let scale = f32::from_bits(kernel.pooling.scale);
    pool.each_unit(out, cells, cells * 32, |first, out| {
        for (i, out) in out.chunks_mut(cells).enumerate() {
            let (region, c) = ((first + i) / kernel.channels, (first + i) % kernel.channels);
            let x = &x[(chosen[region] * kernel.channels + c) * plane..][..plane];
            let region: [f32; 4] = core::array::from_fn(|k| regions[region * 4 + k] * scale);
            for (cell, out) in out.iter_mut().enumerate() {
                let cell = [cell / out_width, cell % out_width];
                *out = match kernel.pooling.kind {
                    RoiKind::Samples { max, samples, half_pixel } => {
                        pool_samples(kernel, x, region, cell, max, samples, half_pixel)
                    }
                    RoiKind::Elements => pool_elements(kernel, x, region, cell),
                };
            }
        }
    });
    faults
}

/// Start of a cell, distance of samples and their number, along one axis.
fn samples_of(start: f32, end: f32, cell: usize, cells: usize, samples: u32, half_pixel: bool) -> (f32, f32, u32) {
    let length = if half_pixel { end - start } else { (end - start).max(1.0) };
    let size = length / cells as f32;
    let count = if samples > 0 { samples.min(MOST_SAMPLES) } else { (size.ceil().max(0.0) as u32).min(MOST_SAMPLES) };
    (start + cell as f32 * size, size / count.max(1) as f32, count)
}

fn pool_samples(
    kernel: &RoiPoolKernel,
    x: &[f32],
    [left, top, right, bottom]: [f32; 4],
    [row, column]: [usize; 2],
    max: bool,
    samples: u32,
    half_pixel: bool,
) -> f32 {
    let [height, width] = kernel.input;
    let [out_height, out_width] = kernel.pooling.size;
    let shift = if half_pixel { 0.5 } else { 0.0 };
    let (top, step_y, count_y) = samples_of(top - shift, bottom - shift, row, out_height, samples, half_pixel);
    let (left, step_x, count_x) = samples_of(left - shift, right - shift, column, out_width, samples, half_pixel);
    let mut sum = 0.0;
    let mut best = None;
    for i in 0..count_y {
        let y = top + (i as f32 + 0.5) * step_y;
        for j in 0..count_x {
            let at = left + (j as f32 + 0.5) * step_x;
            let corners = corners(x, [height, width], y, at);
            if max {
                let largest = corners.iter().copied().fold(f32::NEG_INFINITY, larger);
                best = Some(best.map_or(largest, |best| larger(best, largest)));
            } else {
                sum += (corners[0] + corners[1]) + (corners[2] + corners[3]);
            }
        }
    }
    if max { best.unwrap_or(0.0) } else { sum / (count_x * count_y).max(1) as f32 }
}

/// The larger. NaN wins.
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The four elements around a position, times their weights. Zeros more than one element outside.
fn corners(x: &[f32], [height, width]: [usize; 2], row: f32, column: f32) -> [f32; 4] {
    let inside = |at: f32, n: usize| at >= -1.0 && at <= n as f32;
    if !(inside(row, height) && inside(column, width)) {
        return [0.0; 4];
    }
    let along = |at: f32, n: usize| {
        let at = at.max(0.0);
        let low = at as usize;
        if low + 1 >= n { (n - 1, n - 1, 0.0) } else { (low, low + 1, at - low as f32) }
    };
    let ((y0, y1, ly), (x0, x1, lx)) = (along(row, height), along(column, width));
    let (hy, hx) = (1.0 - ly, 1.0 - lx);
    [
        hy * hx * x[y0 * width + x0],
        hy * lx * x[y0 * width + x1],
        ly * hx * x[y1 * width + x0],
        ly * lx * x[y1 * width + x1],
    ]
}

/// The elements of one axis that a cell touches.
fn elements_of(start: f32, end: f32, cell: usize, cells: usize, n: usize) -> core::ops::Range<usize> {
    let (start, end) = (round_away(start), round_away(end));
    let size = (end - start + 1.0).max(1.0) / cells as f32;
    let first = (cell as f32 * size).floor() + start;
    let last = ((cell + 1) as f32 * size).ceil() + start;
    let place = |at: f32| at.clamp(0.0, n as f32) as usize;
    place(first)..place(last)
}

/// Halves away from zero.
fn round_away(x: f32) -> f32 {
    (x.abs() + 0.5).floor().copysign(x)
}

fn pool_elements(
    kernel: &RoiPoolKernel,
    x: &[f32],
    [left, top, right, bottom]: [f32; 4],
    [row, column]: [usize; 2],
) -> f32 {
    let [height, width] = kernel.input;
    let [out_height, out_width] = kernel.pooling.size;
    let columns = elements_of(left, right, column, out_width, width);
    let elements = elements_of(top, bottom, row, out_height, height)
        .flat_map(|row| x[row * width..][..width][columns.start.min(columns.end)..columns.end].iter().copied());
    elements.reduce(larger).unwrap_or(0.0)
}
