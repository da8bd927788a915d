//! Resizing, padding, and moving between pictures and columns.

use super::super::call::{Call, Outputs, Stop, axis_index, device_type, failed, one, signed, sizes};
use super::super::host::HostTensor;
use super::Operator;
use crate::ir::DType;
use crate::record::{PadMode, ResizeCoordinates, ResizeMode, ResizeRounding, ResizeSettings, ResizeTo, ScatterMode};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Resize")
        .record(|call| if call.version < 11 { resize(call, [9, 1, 9]) } else { resize(call, [1, 2, 3]) }),
    // Its scales are an attribute in version 7 and input 1 in version 9. There is no region.
    Operator::new("Upsample").since(7).record(|call| resize(call, [9, 1, 9])),
    Operator::new("Pad").record(pad),
    Operator::new("AffineGrid").record(affine_grid),
    Operator::new("Col2Im").record(col_to_im),
];

/// A resize whose region, scales and sizes are the inputs with these numbers.
fn resize<'a>(call: &Call<'a>, [roi, scales, sizes_at]: [usize; 3]) -> Outputs<'a> {
    let (shape, element) = (call.shape_of(0)?, call.type_of(0)?);
    let axes = call.ints("axes").map_or_else(|| (0..shape.rank() as i64).collect(), <[i64]>::to_vec);
    let inputs: Vec<usize> =
        axes.iter().map(|&axis| Ok::<_, Stop>(shape[axis_index(axis, shape.rank())?])).collect::<Result<_, _>>()?;
    // Versions before 11 are asymmetric.
    let default = if call.version < 11 { "asymmetric" } else { "half_pixel" };
    let coordinates = match call.text("coordinate_transformation_mode", default) {
        "half_pixel" => ResizeCoordinates::HalfPixel,
        "half_pixel_symmetric" => ResizeCoordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => ResizeCoordinates::PytorchHalfPixel,
        "align_corners" => ResizeCoordinates::AlignCorners,
        "asymmetric" => ResizeCoordinates::Asymmetric,
        "tf_crop_and_resize" => ResizeCoordinates::HalfPixel,
        other => return super::refuse(format!("{other} coordinates")),
    };
    let region = call.text("coordinate_transformation_mode", default) == "tf_crop_and_resize";
    let settings = ResizeSettings { coordinates, ..settings(call)? };
    let factors = match call.floats("scales") {
        Some(scales) => Some(scales.to_vec()),
        None => call.host_floats(scales)?.map(|list| list.iter().map(|&factor| factor as f32).collect()),
    }
    .filter(|list| !list.is_empty());
    let mut to = sizes(&call.host_ints(sizes_at)?.unwrap_or_default())?;
    if factors.as_ref().map_or(to.len(), Vec::len) != axes.len() {
        return failed(format!("{} scales or sizes for {} axes", factors.map_or(to.len(), |f| f.len()), axes.len()));
    }
    let x = call.x(0)?;
    let nearest = matches!(settings.mode, ResizeMode::Nearest(_));
    let x = if nearest || element.is_float() { x } else { call.ops.cast(x, DType::F32)? };
    let axes = signed(&axes);
    let value = if region {
        let roi = call.host_floats(roi)?.unwrap_or_default();
        if roi.len() != 2 * axes.len() {
            return failed(format!("a region of {} numbers for {} axes", roi.len(), axes.len()));
        }
        let regions: Vec<[f32; 2]> = (0..axes.len()).map(|i| [roi[i] as f32, roi[axes.len() + i] as f32]).collect();
        if let Some(factors) = factors {
            let size = |i: usize| {
                let part = f64::from(regions[i][1]) - f64::from(regions[i][0]);
                (inputs[i] as f64 * part * f64::from(factors[i])).floor().max(0.0) as usize
            };
            to = (0..axes.len()).map(size).collect();
        }
        let outside = f64::from(call.float("extrapolation_value", 0.0));
        call.ops.resize(x, &axes, ResizeTo::Region { sizes: &to, regions: &regions, outside }, settings)?
    } else if let Some(factors) = factors {
        call.ops.resize(x, &axes, ResizeTo::Scales(&factors), settings)?
    } else {
        let factors = to.iter().zip(&inputs).map(|(&size, &input)| size as f64 / input as f64);
        // One factor for all axes: the smallest or the largest asked for. Positions follow from it too.
        let factor = match call.text("keep_aspect_ratio_policy", "stretch") {
            "stretch" => None,
            "not_larger" => Some(factors.fold(f64::MAX, f64::min)),
            "not_smaller" => Some(factors.fold(0.0, f64::max)),
            other => return failed(format!("{other:?} is not a policy")),
        };
        match factor {
            None => call.ops.resize(x, &axes, ResizeTo::Sizes(&to), settings)?,
            Some(factor) => {
                to = inputs.iter().map(|&input| (input as f64 * factor + 0.5).floor() as usize).collect();
                let scales = vec![factor as f32; to.len()];
                call.ops.resize(x, &axes, ResizeTo::ScaledSizes { sizes: &to, scales: &scales }, settings)?
            }
        }
    };
    one(call.ops.cast(value, device_type(element)?)?, element)
}

fn settings(call: &Call) -> Result<ResizeSettings, Stop> {
    let mode = match call.text("mode", "nearest") {
        "nearest" => ResizeMode::Nearest(match call.text("nearest_mode", "round_prefer_floor") {
            _ if call.version < 11 => ResizeRounding::Floor,
            "round_prefer_floor" => ResizeRounding::HalfDown,
            "round_prefer_ceil" => ResizeRounding::HalfUp,
            "floor" => ResizeRounding::Floor,
            "ceil" => ResizeRounding::Ceil,
            other => return super::refuse(format!("the rounding {other:?}")),
        }),
        // Version 7 of Upsample also wrote it this way.
        "linear" | "bilinear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic { a: call.float("cubic_coeff_a", -0.75) },
        other => return super::refuse(format!("the mode {other:?}")),
    };
    let (antialias, exclude_outside) = (call.flag("antialias", false), call.flag("exclude_outside", false));
    Ok(ResizeSettings { mode, antialias, exclude_outside, ..ResizeSettings::default() })
}

/// Amounts are an attribute before version 11.
fn pad<'a>(call: &Call<'a>) -> Outputs<'a> {
    let rank = call.shape_of(0)?.rank();
    let mode = match call.text("mode", "constant") {
        "constant" => {
            let value = if call.version < 11 { None } else { call.host_number(2)? };
            PadMode::Constant(value.unwrap_or(call.float("value", 0.0).into()))
        }
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return failed(format!("{other:?} is not a mode")),
    };
    let axes = match call.host_ints(3)? {
        Some(axes) => axes,
        None => (0..rank as i64).collect(),
    };
    let amounts = match call.ints("paddings") {
        Some(amounts) => amounts.to_vec(),
        None => call.ints_of("pads", 1)?.unwrap_or_default(),
    };
    if amounts.len() != 2 * axes.len() {
        return failed(format!("{} amounts for {} axes", amounts.len(), axes.len()));
    }
    let amounts = signed(&amounts);
    let mut pads = vec![(0, 0); rank];
    for (i, &axis) in axes.iter().enumerate() {
        pads[axis_index(axis, rank)?] = (amounts[i], amounts[axes.len() + i]);
    }
    call.like(0, call.ops.pad(call.x(0)?, &pads, mode)?)
}

/// The grid is made on the host; the matrices move it.
fn affine_grid<'a>(call: &Call<'a>) -> Outputs<'a> {
    let size = sizes(&call.host_ints(1)?.unwrap_or_default())?;
    let corners = call.flag("align_corners", false);
    let [batch, _, spatial @ ..] = &size[..] else { return failed("a grid needs a batch, channels and sizes") };
    if !matches!(spatial.len(), 2 | 3) {
        return super::refuse(format!("a grid over {} axes", spatial.len()));
    }
    let step = |i: usize, n: usize| -> f64 {
        match corners {
            true if n == 1 => 0.0,
            true => 2.0 * i as f64 / (n as f64 - 1.0) - 1.0,
            false => (2.0 * i as f64 + 1.0) / n as f64 - 1.0,
        }
    };
    let count: usize = spatial.iter().product();
    if count > super::super::host_ops::MAX_ELEMENTS / 4 {
        return super::refuse(format!("a grid of {count} positions"));
    }
    let mut base = Vec::with_capacity(count * (spatial.len() + 1));
    for at in 0..count {
        // The last axis is x.
        let mut rest = at;
        for &n in spatial.iter().rev() {
            base.push(step(rest % n, n) as f32);
            rest /= n;
        }
        base.push(1.0);
    }
    let base = call.constant(HostTensor::from_f32(&base, [count, spatial.len() + 1])?)?;
    let element = call.type_of(0)?;
    let grid = call.ops.matmul_nt(base, call.x_as(0, DType::F32)?)?;
    let to: Vec<isize> = [*batch].iter().chain(spatial).chain(&[spatial.len()]).map(|&n| n as isize).collect();
    one(call.ops.cast(call.ops.reshape(grid, &to)?, device_type(element)?)?, element)
}

/// Every element of a column is added at its place, which the host knows. Places in the padding are dropped.
fn col_to_im<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (image, block) = (call.host_ints(1)?.unwrap_or_default(), call.host_ints(2)?.unwrap_or_default());
    let rank = image.len();
    let list = |name: &str, count: usize, value: i64| -> Result<Vec<i64>, Stop> {
        let list = call.ints(name).map_or_else(|| vec![value; count], <[i64]>::to_vec);
        if list.len() == count { Ok(list) } else { failed(format!("{name} has {} numbers", list.len())) }
    };
    let (strides, dilations, pads) =
        (list("strides", rank, 1)?, list("dilations", rank, 1)?, list("pads", 2 * rank, 0)?);
    let shape = call.shape_of(0)?;
    let [batch, columns, count] = shape[..] else { return failed(format!("{shape} is not [n, c · block, columns]")) };
    let cells: usize = sizes(&block)?.iter().product();
    let plane: usize = sizes(&image)?.iter().product();
    if block.len() != rank || cells == 0 || columns % cells != 0 || strides.contains(&0) {
        return failed(format!("{shape} has no blocks of {block:?}"));
    }
    // How many blocks fit along each axis.
    let fits: Vec<i64> = (0..rank)
        .map(|i| (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1).div_euclid(strides[i]) + 1)
        .collect();
    if sizes(&fits)?.iter().product::<usize>() != count {
        return failed(format!("{count} columns, but {fits:?} blocks fit"));
    }
    let mut places = Vec::with_capacity(cells * count);
    for cell in 0..cells as i64 {
        for column in 0..count as i64 {
            let (mut cell, mut column, mut place, mut inside, mut step) = (cell, column, 0i64, true, 1i64);
            for i in (0..rank).rev() {
                let at = (column % fits[i]) * strides[i] + (cell % block[i]) * dilations[i] - pads[i];
                inside &= (0..image[i]).contains(&at);
                place += at * step;
                (cell, column, step) = (cell / block[i], column / fits[i], step * image[i]);
            }
            places.push(if inside { place as i32 } else { plane as i32 });
        }
    }
    let rows = batch * (columns / cells);
    let places = call.constant(HostTensor::from_i32(&places, [1, cells * count])?)?;
    let places = call.ops.broadcast_to(places, [rows, cells * count])?;
    let x = call.ops.reshape(call.x(0)?, &[rows as isize, (cells * count) as isize])?;
    let zeros = call.full([rows, plane + 1], 0.0, call.dtype_of(0)?)?;
    let sums = call.ops.scatter_elements(zeros, places, x, 1, ScatterMode::Add)?;
    let inside = call.ops.slice(sums, 1, 0, plane as isize)?;
    let to: Vec<isize> = [batch as isize, (columns / cells) as isize].into_iter().chain(signed(&image)).collect();
    call.like(0, call.ops.reshape(inside, &to)?)
}
