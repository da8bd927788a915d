//! Convolution and pooling.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, one, unsupported};
use super::case::Case;

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "Conv" | "ConvInteger" => conv(call),
        "ConvTranspose" => conv_transpose(call),
        "MaxPool" => max_pool(call),
        "AveragePool" => average_pool(call),
        "LpPool" => lp_pool(call),
        "GlobalAveragePool" => call.x(0).and_then(|x| one(call.ops.global_avg_pool(x))),
        "GlobalMaxPool" => call.x(0).and_then(|x| one(call.ops.global_max_pool(x))),
        "GlobalLpPool" => global_lp_pool(call),
        "MaxUnpool" => max_unpool(call),
        _ => return None,
    })
}

/// An attribute with one number per spatial axis.
fn spatial<const N: usize>(case: &Case, attr: &str, default: usize) -> [usize; N] {
    let list = case.ints(attr).unwrap_or_default();
    // Some lists include all axes. The spatial ones come last.
    let skip = list.len().saturating_sub(N);
    std::array::from_fn(|i| list.get(skip + i).map_or(default, |&n| n as usize))
}

fn padding<const N: usize>(case: &Case) -> Padding<N> {
    match case.text("auto_pad", "NOTSET") {
        "SAME_UPPER" => Padding::Same,
        "SAME_LOWER" => Padding::SameLower,
        "VALID" => Padding::Valid,
        _ => {
            let pads = case.ints("pads").unwrap_or_else(|| vec![0; 2 * N]);
            Padding::Explicit(std::array::from_fn(|i| [pads[i] as usize, pads[N + i] as usize]))
        }
    }
}

fn conv_settings<const N: usize>(case: &Case) -> ConvSettings<N> {
    ConvSettings {
        stride: spatial(case, "strides", 1),
        padding: padding(case),
        dilation: spatial(case, "dilations", 1),
        groups: case.int("group", 1) as usize,
    }
}

fn pool_settings<const N: usize>(case: &Case) -> PoolSettings<N> {
    PoolSettings {
        size: spatial(case, "kernel_shape", 1),
        stride: Some(spatial(case, "strides", 1)),
        padding: padding(case),
        dilation: spatial(case, "dilations", 1),
        ceil_mode: case.flag("ceil_mode", false),
        include_pad: case.flag("count_include_pad", false),
    }
}

/// Calls the op for the number of spatial axes of the first input.
macro_rules! by_rank {
    ($call:ident, $one:expr, $two:expr, $three:expr) => {
        match $call.shape_of(0).len() {
            3 => $one,
            4 => $two,
            5 => $three,
            rank => return unsupported(format!("windows over {rank} axes")),
        }
    };
}

fn conv<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let (mut x, mut weight) = (call.x(0)?, call.x(1)?);
    if case.op == "ConvInteger" {
        // Products of bytes are exact in floats up to 2²⁴.
        for (operand, zero) in [(&mut x, 2), (&mut weight, 3)] {
            let mut wide = call.ops.cast(operand.clone(), DType::F32)?;
            if let Some(zero) = call.host_number(zero) {
                wide = call.ops.sub(wide, zero)?;
            }
            *operand = wide.into();
        }
        let product = run_conv(call, x, weight, None)?;
        return one(call.ops.cast(product, DType::I32));
    }
    let bias = call.maybe(2)?;
    one(Ok(run_conv(call, x, weight, bias)?))
}

fn run_conv<'a>(
    call: &Call<'a>,
    x: TensorOperand<'a>,
    weight: TensorOperand<'a>,
    bias: Option<TensorOperand<'a>>,
) -> Result<TensorValue<'a>, super::call::Stop> {
    let case = call.case;
    Ok(by_rank!(
        call,
        call.ops.conv1d(x, weight, bias, conv_settings(case)),
        call.ops.conv2d(x, weight, bias, conv_settings(case)),
        call.ops.conv3d(x, weight, bias, conv_settings(case))
    )?)
}

fn transpose_settings<const N: usize>(case: &Case) -> ConvTransposeSettings<N> {
    let ConvSettings { stride, padding, dilation, groups } = conv_settings(case);
    ConvTransposeSettings {
        stride,
        padding,
        dilation,
        groups,
        output_padding: spatial(case, "output_padding", 0),
        output_shape: case.attrs.contains_key("output_shape").then(|| spatial(case, "output_shape", 1)),
    }
}

fn conv_transpose<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let (x, weight, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    one(by_rank!(
        call,
        call.ops.conv_transpose1d(x, weight, bias, transpose_settings(case)),
        call.ops.conv_transpose2d(x, weight, bias, transpose_settings(case)),
        call.ops.conv_transpose3d(x, weight, bias, transpose_settings(case))
    ))
}

fn max_pool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let x = call.x(0)?;
    let largest = by_rank!(
        call,
        call.ops.max_pool1d(x.clone(), pool_settings(case)),
        call.ops.max_pool2d(x.clone(), pool_settings(case)),
        call.ops.max_pool3d(x.clone(), pool_settings(case))
    )?;
    if !call.wants(1) {
        return one(Ok(largest));
    }
    let mut positions = by_rank!(
        call,
        call.ops.max_pool1d_indices(x, pool_settings(case)),
        call.ops.max_pool2d_indices(x, pool_settings(case)),
        call.ops.max_pool3d_indices(x, pool_settings(case))
    )?;
    let shape = call.shape_of(0);
    let (channels, spatial) = (shape[0] * shape[1], &shape[2..]);
    if case.flag("storage_order", false) {
        positions = column_major(call, positions, spatial)?;
    }
    // ONNX counts positions in the whole tensor.
    let plane: usize = spatial.iter().product();
    let start = call.ops.arange(0.0, plane as f64, channels, DType::I32)?;
    let mut sizes = vec![1; shape.len()];
    (sizes[0], sizes[1]) = (shape[0] as isize, shape[1] as isize);
    let start = call.ops.reshape(start, &sizes)?;
    Ok(vec![Some(largest), Some(call.ops.add(positions, start)?)])
}

/// Converts row-major positions in `sizes` to column-major ones.
fn column_major<'a>(call: &Call<'a>, positions: TensorValue<'a>, sizes: &[usize]) -> OpResult<TensorValue<'a>> {
    let mut rest = positions;
    let mut result = call.ops.mul(positions, 0)?;
    for (axis, &n) in sizes.iter().enumerate().rev() {
        let along = call.ops.modulo(rest, n as u32)?;
        rest = call.ops.div(rest, n as u32)?;
        let before: usize = sizes[..axis].iter().product();
        let scaled = call.ops.mul(along, before as u32)?;
        result = call.ops.add(result, scaled)?;
    }
    Ok(result)
}

fn average_pool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let x = call.x(0)?;
    one(by_rank!(
        call,
        call.ops.avg_pool1d(x, pool_settings(case)),
        call.ops.avg_pool2d(x, pool_settings(case)),
        call.ops.avg_pool3d(x, pool_settings(case))
    ))
}

/// The p-norm of each window: a depthwise convolution of powers with ones.
fn lp_pool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let p = case.int("p", 2) as f32;
    let (x, shape, dtype) = (call.x(0)?, call.shape_of(0), call.dtype_of(0)?);
    // Powers of halves would overflow between the ops.
    let x = call.ops.cast(x, DType::F32)?;
    let magnitudes = call.ops.abs(x)?;
    let powers = call.ops.pow(magnitudes, p)?;
    fn settings<const N: usize>(case: &Case, shape: &[usize]) -> ConvSettings<N> {
        let mut settings = ConvSettings { groups: shape[1], ..conv_settings(case) };
        if let (true, Padding::Explicit(pads)) = (case.flag("ceil_mode", false), &mut settings.padding) {
            let size: [usize; N] = spatial(case, "kernel_shape", 1);
            for (axis, pad) in pads.iter_mut().enumerate() {
                let (stride, span) = (settings.stride[axis], (size[axis] - 1) * settings.dilation[axis] + 1);
                let room = (shape[axis + 2] + pad[0] + pad[1]).saturating_sub(span);
                // Room for one more window, unless it would start after the input.
                let more = room.div_ceil(stride) * stride;
                if more < shape[axis + 2] + pad[0] {
                    pad[1] += more - room;
                }
            }
        }
        settings
    }
    let kernel = case.ints("kernel_shape").unwrap_or_default();
    let ones: Vec<usize> = [shape[1], 1].into_iter().chain(kernel.iter().map(|&n| n as usize)).collect();
    let ones = call.ops.full(ones, 1.0, DType::F32)?;
    let sums = by_rank!(
        call,
        call.ops.conv1d(powers, ones, None, settings(case, &shape)),
        call.ops.conv2d(powers, ones, None, settings(case, &shape)),
        call.ops.conv3d(powers, ones, None, settings(case, &shape))
    )?;
    let norms = call.ops.pow(sums, 1.0 / p)?;
    one(call.ops.cast(norms, dtype))
}

fn global_lp_pool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let p = call.case.int("p", 2) as f32;
    let (rank, dtype) = (call.shape_of(0).len() as isize, call.dtype_of(0)?);
    let x = call.x(0)?;
    let x = call.ops.cast(x, DType::F32)?;
    let magnitudes = call.ops.abs(x)?;
    let powers = call.ops.pow(magnitudes, p)?;
    let sums = call.ops.sum(powers, Axes::of(2..rank).keep())?;
    let norms = call.ops.pow(sums, 1.0 / p)?;
    one(call.ops.cast(norms, dtype))
}

fn max_unpool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let (x, indices, shape) = (call.x(0)?, call.x(1)?, call.shape_of(0));
    let rank = shape.len() - 2;
    let default = |attr: &str, value: i64| case.ints(attr).unwrap_or_else(|| vec![value; 2 * rank]);
    let (kernel, strides, pads) = (default("kernel_shape", 1), default("strides", 1), default("pads", 0));
    let mut inferred = vec![shape[0], shape[1]];
    for i in 0..rank {
        let size = (shape[i + 2] as i64 - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i];
        inferred.push(size as usize);
    }
    // Positions refer to the inferred shape. A larger requested shape is padded with zeros.
    let dtype = call.dtype_of(0)?;
    let zeros = call.ops.full([inferred.iter().product()], 0.0, dtype)?;
    let (x, indices) = (call.ops.reshape(x, &[-1])?, call.ops.reshape(indices, &[-1])?);
    let flat = call.ops.scatter_elements(zeros, indices, x, 0, ScatterMode::Replace)?;
    let sizes: Vec<isize> = inferred.iter().map(|&n| n as isize).collect();
    let value = call.ops.reshape(flat, &sizes)?;
    let Some(asked) = call.host_ints(2) else { return one(Ok(value)) };
    let pads: Vec<_> = asked.iter().zip(&sizes).map(|(&to, &n)| (0, to as isize - n)).collect();
    one(call.ops.pad(value, &pads, PadMode::Constant(0.0)))
}
