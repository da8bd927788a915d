//! Resizing and padding.

use bevy_tensor_compute::ops::{PadMode, ResizeCoordinates, ResizeMode, ResizeRounding, ResizeSettings, ResizeTo};

use super::call::{Call, Outputs, index, one, signed, unsupported};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "Resize" => resize(call, [1, 2, 3]),
        // Its scales are input 1, and there is no region of interest.
        "Upsample" => resize(call, [usize::MAX, 1, usize::MAX]),
        "Pad" => pad(call),
        _ => return None,
    })
}

fn resize<'a>(call: &Call<'a>, [roi, scales, sizes]: [usize; 3]) -> Outputs<'a> {
    let case = call.case;
    // In version 10 the scales are input 1. All versions before 11 are asymmetric.
    let old = case.opset < 11;
    let scales = if old && case.op == "Resize" { 1 } else { scales };
    let coordinates = match case.text("coordinate_transformation_mode", if old { "asymmetric" } else { "half_pixel" }) {
        "half_pixel" => ResizeCoordinates::HalfPixel,
        "half_pixel_symmetric" => ResizeCoordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => ResizeCoordinates::PytorchHalfPixel,
        "align_corners" => ResizeCoordinates::AlignCorners,
        "asymmetric" => ResizeCoordinates::Asymmetric,
        "tf_crop_and_resize" => return crop_and_resize(call, roi, scales, sizes),
        other => return unsupported(format!("{other} coordinates")),
    };
    let settings = ResizeSettings { coordinates, ..settings(call) };
    let shape = call.shape_of(0);
    let axes = case.ints("axes").unwrap_or_else(|| (0..shape.len() as i64).collect());
    let x = call.x(0)?;
    let by_scale = call.host(scales).map(|host| host.floats()).filter(|scales| !scales.is_empty());
    let by_scale = by_scale.or_else(|| case.floats("scales"));
    if let Some(factors) = by_scale {
        let factors: Vec<f32> = factors.iter().map(|&factor| factor as f32).collect();
        return one(call.ops.resize(x, &signed(&axes), ResizeTo::Scales(&factors), settings));
    }
    let mut sizes = super::call::sizes(&call.host_ints(sizes).unwrap_or_default());
    let policy = case.text("keep_aspect_ratio_policy", "stretch");
    if policy != "stretch" {
        // One factor for all axes: the smallest or the largest requested.
        let inputs: Vec<f64> = axes.iter().map(|&axis| shape[index(axis, shape.len())] as f64).collect();
        let factors = sizes.iter().zip(&inputs).map(|(&size, &input)| size as f64 / input);
        let factor =
            if policy == "not_larger" { factors.fold(f64::MAX, f64::min) } else { factors.fold(0.0, f64::max) };
        sizes = inputs.iter().map(|&input| (input * factor + 0.5).floor() as usize).collect();
    }
    one(call.ops.resize(x, &signed(&axes), ResizeTo::Sizes(&sizes), settings))
}

fn settings(call: &Call) -> ResizeSettings {
    let case = call.case;
    let mode = match case.text("mode", "nearest") {
        "linear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic { a: case.float("cubic_coeff_a", -0.75) },
        _ => ResizeMode::Nearest(match case.text("nearest_mode", "round_prefer_floor") {
            _ if case.opset < 11 => ResizeRounding::Floor,
            "round_prefer_ceil" => ResizeRounding::HalfUp,
            "floor" => ResizeRounding::Floor,
            "ceil" => ResizeRounding::Ceil,
            _ => ResizeRounding::HalfDown,
        }),
    };
    let (antialias, exclude_outside) = (case.flag("antialias", false), case.flag("exclude_outside", false));
    ResizeSettings { mode, antialias, exclude_outside, ..ResizeSettings::default() }
}

fn crop_and_resize<'a>(call: &Call<'a>, roi: usize, scales: usize, sizes: usize) -> Outputs<'a> {
    let case = call.case;
    let shape = call.shape_of(0);
    let axes = case.ints("axes").unwrap_or_else(|| (0..shape.len() as i64).collect());
    let roi = call.host(roi).map(|host| host.floats()).unwrap_or_default();
    let regions: Vec<[f32; 2]> = (0..axes.len()).map(|i| [roi[i] as f32, roi[axes.len() + i] as f32]).collect();
    let mut to = super::call::sizes(&call.host_ints(sizes).unwrap_or_default());
    if to.is_empty() {
        let factors = call.host(scales).map(|host| host.floats()).unwrap_or_default();
        let size = |i: usize| {
            let part = f64::from(regions[i][1]) - f64::from(regions[i][0]);
            (shape[index(axes[i], shape.len())] as f64 * part * factors[i]).floor().max(0.0) as usize
        };
        to = (0..axes.len()).map(size).collect();
    }
    let (settings, outside) = (settings(call), f64::from(case.float("extrapolation_value", 0.0)));
    let x = call.x(0)?;
    let to = ResizeTo::Region { sizes: &to, regions: &regions, outside };
    one(call.ops.resize(x, &signed(&axes), to, settings))
}

fn pad<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let (x, rank) = (call.x(0)?, call.shape_of(0).len());
    let mode = match case.text("mode", "constant") {
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        _ => PadMode::Constant(call.host_number(2).unwrap_or(f64::from(case.float("value", 0.0)))),
    };
    let axes = call.host_ints(3).unwrap_or_else(|| (0..rank as i64).collect());
    let amounts = call.ints_of("pads", 1).or_else(|| case.ints("paddings")).unwrap_or_default();
    let mut pads = vec![(0, 0); rank];
    for (i, &axis) in axes.iter().enumerate() {
        pads[index(axis, rank)] = (amounts[i] as isize, amounts[axes.len() + i] as isize);
    }
    one(call.ops.pad(x, &pads, mode))
}
