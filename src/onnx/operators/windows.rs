//! Convolution and pooling.

use super::super::call::{Call, Outputs, Stop, failed, signed, sizes};
use super::super::value::Value;
use super::Operator;
use crate::formats::onnx::ElementType;
use crate::ir::Shape;
use crate::record::{
    Axes, ConvSettings, ConvTransposeSettings, PadMode, Padding, PoolSettings, ScatterMode, TensorValue,
};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Conv").record(conv),
    Operator::new("ConvTranspose").record(conv_transpose),
    Operator::new("MaxPool").record(max_pool),
    Operator::new("AveragePool").record(average_pool),
    Operator::new("LpPool").record(lp_pool),
    Operator::new("GlobalAveragePool").record(|call| call.like(0, call.ops.global_avg_pool(call.x(0)?)?)),
    Operator::new("GlobalMaxPool").record(|call| call.like(0, call.ops.global_max_pool(call.x(0)?)?)),
    Operator::new("GlobalLpPool").record(global_lp_pool),
    Operator::new("MaxUnpool").record(max_unpool),
    Operator::new("CausalConvWithState").record(causal_conv),
];

/// An attribute with one number per spatial axis.
pub(super) fn spatial<const N: usize>(call: &Call, attribute: &str, default: usize) -> Result<[usize; N], Stop> {
    let Some(list) = call.ints(attribute) else { return Ok([default; N]) };
    let list = sizes(list)?;
    // Some lists name all axes; the spatial ones come last.
    if list.len() < N {
        return failed(format!("{attribute} has {} numbers for {N} axes", list.len()));
    }
    Ok(core::array::from_fn(|i| list[list.len() - N + i]))
}

pub(super) fn padding<const N: usize>(call: &Call) -> Result<Padding<N>, Stop> {
    Ok(match call.text("auto_pad", "NOTSET") {
        "SAME_UPPER" => Padding::Same,
        "SAME_LOWER" => Padding::SameLower,
        "VALID" => Padding::Valid,
        "NOTSET" | "" => {
            let pads = sizes(call.ints("pads").unwrap_or(&[0; 16][..2 * N]))?;
            if pads.len() != 2 * N {
                return failed(format!("pads has {} numbers for {N} axes", pads.len()));
            }
            Padding::Explicit(core::array::from_fn(|i| [pads[i], pads[N + i]]))
        }
        other => return failed(format!("{other:?} is not an automatic padding")),
    })
}

pub(super) fn conv_settings<const N: usize>(call: &Call) -> Result<ConvSettings<N>, Stop> {
    Ok(ConvSettings {
        stride: spatial(call, "strides", 1)?,
        padding: padding(call)?,
        dilation: spatial(call, "dilations", 1)?,
        groups: usize::try_from(call.int("group", 1)).unwrap_or(0),
    })
}

pub(super) fn pool_settings<const N: usize>(call: &Call) -> Result<PoolSettings<N>, Stop> {
    Ok(PoolSettings {
        size: spatial(call, "kernel_shape", 1)?,
        stride: Some(spatial(call, "strides", 1)?),
        padding: padding(call)?,
        dilation: spatial(call, "dilations", 1)?,
        ceil_mode: call.flag("ceil_mode", false),
        include_pad: call.flag("count_include_pad", false),
    })
}

/// Calls the op for the number of spatial axes of the first input.
macro_rules! by_rank {
    ($rank:expr, $one:expr, $two:expr, $three:expr) => {
        match $rank {
            3 => $one,
            4 => $two,
            5 => $three,
            rank => return super::refuse(format!("windows over a value of {rank} axes")),
        }
    };
}

fn conv<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, run_conv(call, call.x(0)?, call.x(1)?, call.maybe(2)?)?)
}

/// A convolution with the node's settings.
pub(super) fn run_conv<'a>(
    call: &Call<'a>,
    x: TensorValue<'a>,
    weight: TensorValue<'a>,
    bias: Option<TensorValue<'a>>,
) -> Result<TensorValue<'a>, Stop> {
    let bias = bias.map(Into::into);
    Ok(by_rank!(
        call.ops.shape(x)?.rank(),
        call.ops.conv1d(x, weight, bias, conv_settings(call)?),
        call.ops.conv2d(x, weight, bias, conv_settings(call)?),
        call.ops.conv3d(x, weight, bias, conv_settings(call)?)
    )?)
}

fn transpose_settings<const N: usize>(call: &Call) -> Result<ConvTransposeSettings<N>, Stop> {
    let ConvSettings { stride, padding, dilation, groups } = conv_settings(call)?;
    Ok(ConvTransposeSettings {
        stride,
        padding,
        dilation,
        groups,
        output_padding: spatial(call, "output_padding", 0)?,
        output_shape: match call.ints("output_shape") {
            Some(_) => Some(spatial(call, "output_shape", 1)?),
            None => None,
        },
    })
}

fn conv_transpose<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, weight, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?.map(Into::into));
    let value = by_rank!(
        call.shape_of(0)?.rank(),
        call.ops.conv_transpose1d(x, weight, bias, transpose_settings(call)?),
        call.ops.conv_transpose2d(x, weight, bias, transpose_settings(call)?),
        call.ops.conv_transpose3d(x, weight, bias, transpose_settings(call)?)
    )?;
    call.like(0, value)
}

fn max_pool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, shape) = (call.x(0)?, call.shape_of(0)?);
    let largest = by_rank!(
        shape.rank(),
        call.ops.max_pool1d(x, pool_settings(call)?),
        call.ops.max_pool2d(x, pool_settings(call)?),
        call.ops.max_pool3d(x, pool_settings(call)?)
    )?;
    let mut outputs = vec![Some(Value::Device(largest, call.type_of(0)?))];
    if !call.wants(1) {
        return Ok(outputs);
    }
    let mut positions = by_rank!(
        shape.rank(),
        call.ops.max_pool1d_indices(x, pool_settings(call)?),
        call.ops.max_pool2d_indices(x, pool_settings(call)?),
        call.ops.max_pool3d_indices(x, pool_settings(call)?)
    )?;
    let (channels, spatial) = (shape[0] * shape[1], &shape[2..]);
    if call.flag("storage_order", false) {
        positions = column_major(call, positions, spatial)?;
    }
    // ONNX counts positions in the whole tensor.
    let plane: usize = spatial.iter().product();
    let start = call.ops.mul(call.steps(channels)?, plane as u32)?;
    let mut sizes = vec![1; shape.rank()];
    (sizes[0], sizes[1]) = (shape[0] as isize, shape[1] as isize);
    let positions = call.ops.add(positions, call.ops.reshape(start, &sizes)?)?;
    outputs.push(Some(Value::Device(positions, ElementType::Int64)));
    Ok(outputs)
}

/// Row-major positions in `sizes` as column-major ones.
fn column_major<'a>(call: &Call<'a>, positions: TensorValue<'a>, sizes: &[usize]) -> Result<TensorValue<'a>, Stop> {
    let mut rest = positions;
    let mut result = call.ops.mul(positions, 0)?;
    for (axis, &n) in sizes.iter().enumerate().rev() {
        let along = call.ops.modulo(rest, n as u32)?;
        rest = call.ops.div(rest, n as u32)?;
        let before: usize = sizes[..axis].iter().product();
        result = call.ops.add(result, call.ops.mul(along, before as u32)?)?;
    }
    Ok(result)
}

fn average_pool<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, average_of(call, call.x(0)?)?)
}

/// Means of windows with the node's settings.
pub(super) fn average_of<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    Ok(by_rank!(
        call.ops.shape(x)?.rank(),
        call.ops.avg_pool1d(x, pool_settings(call)?),
        call.ops.avg_pool2d(x, pool_settings(call)?),
        call.ops.avg_pool3d(x, pool_settings(call)?)
    )?)
}

/// The p-norm of each window: a depthwise convolution of powers with ones.
fn lp_pool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (shape, dtype) = (call.shape_of(0)?, call.dtype_of(0)?);
    // Before version 2 p is a float.
    let p = call.maybe_float("p").unwrap_or(call.int("p", 2) as f32);
    fn settings<const N: usize>(call: &Call, shape: &Shape) -> Result<ConvSettings<N>, Stop> {
        let mut settings = ConvSettings { groups: shape[1], ..conv_settings(call)? };
        if let (true, Padding::Explicit(pads)) = (call.flag("ceil_mode", false), &mut settings.padding) {
            let size: [usize; N] = spatial(call, "kernel_shape", 1)?;
            for (axis, pad) in pads.iter_mut().enumerate() {
                let span = size[axis].saturating_sub(1) * settings.dilation[axis] + 1;
                let stride = settings.stride[axis].max(1);
                let room = (shape[axis + 2] + pad[0] + pad[1]).saturating_sub(span);
                // Enough for one more window, unless it would start behind the input.
                let more = room.div_ceil(stride) * stride;
                if more < shape[axis + 2] + pad[0] {
                    pad[1] += more - room;
                }
            }
        }
        Ok(settings)
    }
    let kernel = sizes(call.ints("kernel_shape").unwrap_or_default())?;
    let powers = call.ops.pow(call.ops.abs(call.x(0)?)?, p)?;
    let Some(&channels) = shape.get(1) else { return failed(format!("{shape} has no channels")) };
    let ones: Vec<usize> = [channels, 1].into_iter().chain(kernel).collect();
    let ones = call.full(ones, 1.0, dtype)?;
    let sums = by_rank!(
        shape.rank(),
        call.ops.conv1d(powers, ones, None, settings(call, &shape)?),
        call.ops.conv2d(powers, ones, None, settings(call, &shape)?),
        call.ops.conv3d(powers, ones, None, settings(call, &shape)?)
    )?;
    call.like(0, call.ops.pow(sums, 1.0 / p)?)
}

fn global_lp_pool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let p = call.maybe_float("p").unwrap_or(call.int("p", 2) as f32);
    let rank = call.shape_of(0)?.rank() as isize;
    let powers = call.ops.pow(call.ops.abs(call.x(0)?)?, p)?;
    let sums = call.ops.sum(powers, Axes::of(2..rank).keep())?;
    call.like(0, call.ops.pow(sums, 1.0 / p)?)
}

/// Positions count in the inferred shape. A larger one that is asked for has zeros behind.
fn max_unpool<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = call.shape_of(0)?;
    let rank = shape.rank().saturating_sub(2);
    let list = |name: &str, count: usize, value: i64| -> Result<Vec<i64>, Stop> {
        let list = call.ints(name).map_or_else(|| vec![value; count], <[i64]>::to_vec);
        if list.len() == count { Ok(list) } else { failed(format!("{name} has {} numbers", list.len())) }
    };
    let (kernel, strides, pads) =
        (list("kernel_shape", rank, 1)?, list("strides", rank, 1)?, list("pads", 2 * rank, 0)?);
    let mut inferred = vec![shape[0] as i64, shape[1] as i64];
    for i in 0..rank {
        inferred.push((shape[i + 2] as i64 - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i]);
    }
    let asked = call.host_ints(2)?;
    let count: usize = sizes(&inferred)?.iter().product();
    // With an asked-for shape, positions count in that one.
    let target = asked.clone().unwrap_or_else(|| inferred.clone());
    let total: usize = sizes(&target)?.iter().product();
    let (x, indices) = (call.ops.reshape(call.x(0)?, &[-1])?, call.ops.reshape(call.x(1)?, &[-1])?);
    let zeros = call.full([count.min(total)], 0.0, call.dtype_of(0)?)?;
    let flat = call.ops.scatter_elements(zeros, indices, x, 0, ScatterMode::Replace)?;
    let value = call.ops.reshape(flat, &signed(&inferred))?;
    if target == inferred {
        return call.like(0, value);
    }
    let pads: Vec<_> = signed(&target).iter().zip(signed(&inferred)).map(|(&to, n)| (0, to - n)).collect();
    call.like(0, call.ops.pad(value, &pads, PadMode::Constant(0.0))?)
}

/// A depthwise convolution over the past and the present. The last `k − 1` columns are the next past.
fn causal_conv<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (shape, of_weight, element) = (call.shape_of(0)?, call.shape_of(1)?, call.type_of(0)?);
    let (&[_, channels, length], &[_, _, k]) = (&shape[..], &of_weight[..]) else {
        return failed(format!("{shape} and {of_weight} are not of three axes"));
    };
    let x = call.x(0)?;
    let padded = match call.maybe(3)? {
        Some(past) => call.ops.concat([past, x], 2)?,
        None => call.ops.pad(x, &[(0, 0), (0, 0), (k as isize - 1, 0)], PadMode::Constant(0.0))?,
    };
    let settings = ConvSettings { groups: channels, ..ConvSettings::default() };
    let mut y = call.ops.conv1d(padded, call.x(1)?, call.maybe(2)?.map(Into::into), settings)?;
    match call.text("activation", "none") {
        "none" => {}
        "silu" | "swish" => y = call.ops.silu(y)?,
        other => return failed(format!("{other:?} is not an activation")),
    }
    let end = (k - 1 + length) as isize;
    let present = call.ops.slice(padded, 2, length as isize, end)?;
    Ok(vec![Some(Value::Device(y, element)), Some(Value::Device(present, element))])
}
