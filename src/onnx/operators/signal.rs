//! Fourier transforms as products with matrices that the host makes, windows and mel filters.

use core::f64::consts::PI;

use super::super::call::{Call, Outputs, Stop, axis_index, device_type, failed, one};
use super::super::host::{HostTensor, Numbers};
use super::super::value::Value;
use super::Operator;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::TensorValue;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("HannWindow").record(|call| window(call, &[0.5, -0.5])),
    Operator::new("HammingWindow").record(|call| window(call, &[25.0 / 46.0, -21.0 / 46.0])),
    Operator::new("BlackmanWindow").record(|call| window(call, &[0.42, -0.5, 0.08])),
    Operator::new("MelWeightMatrix").record(mel),
    Operator::new("DFT").record(dft),
    Operator::new("STFT").record(stft),
];

/// The longest transform. Its matrix has the square of this many elements.
const LONGEST: usize = 4096;

/// The only number of an input that the host must know.
fn whole(call: &Call, i: usize) -> Result<Option<i64>, Stop> {
    Ok(call.host_ints(i)?.and_then(|list| list.first().copied()))
}

fn output_type(call: &Call) -> Result<ElementType, Stop> {
    match ElementType::from_code(call.int("output_datatype", 1)) {
        Some(element) => Ok(element),
        None => failed("output_datatype is not an element type"),
    }
}

/// A sum of cosines over one period: term `i` has frequency `i`. Sizes are settings, so the host makes it.
fn window<'a>(call: &Call<'a>, terms: &[f64]) -> Outputs<'a> {
    let element = output_type(call)?;
    let size = whole(call, 0)?.unwrap_or(0);
    let Some(size) = usize::try_from(size).ok().filter(|&n| n <= super::super::host_ops::MAX_ELEMENTS) else {
        return failed(format!("a window of {size} samples"));
    };
    let period = if call.flag("periodic", true) { size } else { size.saturating_sub(1) };
    let value = |n: usize| {
        let angle = 2.0 * PI * n as f64 / period.max(1) as f64;
        terms.iter().enumerate().map(|(i, term)| term * (angle * i as f64).cos()).sum()
    };
    let values = Numbers::Float((0..size).map(value).collect());
    Ok(vec![Some(Value::constant(HostTensor::from_numbers(element, [size], &values)?))])
}

/// Triangles that overlap by half, evenly spaced on the mel scale.
fn mel<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.need_host(&[0, 1, 2, 3, 4])?;
    let number = |i: usize| -> Result<f64, Stop> {
        call.host_number(i)?.map_or_else(|| failed(format!("input {i} is missing")), Ok)
    };
    let (bins, length, rate, low, high) = (number(0)?, number(1)?, number(2)?, number(3)?, number(4)?);
    let (bins, lines) = (bins.max(0.0) as usize, (length.max(0.0) as usize) / 2 + 1);
    if bins.saturating_mul(lines) > super::super::host_ops::MAX_ELEMENTS {
        return failed(format!("a matrix of {lines} × {bins}"));
    }
    let to_mel = |hz: f64| 2595.0 * (1.0 + hz / 700.0).log10();
    let (low, high) = (to_mel(low), to_mel(high));
    // As ONNX's reference does: the step is one part of all edges, not of the gaps between them.
    let step = (high - low) / (bins as f64 + 2.0);
    let edges: Vec<usize> = (0..bins + 2)
        .map(|i| {
            let hz = 700.0 * (10f64.powf((low + step * i as f64) / 2595.0) - 1.0);
            ((length + 1.0) * hz / rate).floor().max(0.0) as usize
        })
        .collect();
    let mut values = vec![0.0; lines * bins];
    for bin in 0..bins {
        let [from, middle, to] = [edges[bin], edges[bin + 1], edges[bin + 2]];
        if from == middle {
            if middle < lines {
                values[middle * bins + bin] = 1.0;
            }
        } else {
            for line in from..=middle.min(lines - 1) {
                values[line * bins + bin] = (line - from) as f64 / (middle - from) as f64;
            }
        }
        for line in middle..to.min(lines) {
            values[line * bins + bin] = (to - line) as f64 / (to - middle) as f64;
        }
    }
    let matrix = HostTensor::from_numbers(output_type(call)?, [lines, bins], &Numbers::Float(values))?;
    Ok(vec![Some(Value::constant(matrix))])
}

/// Rows are frequencies, columns are samples: cosines and sines of `2π k n / length`.
fn turns<'a>(call: &Call<'a>, rows: usize, columns: usize, length: usize) -> Result<[TensorValue<'a>; 2], Stop> {
    if length > LONGEST || rows > LONGEST || columns > LONGEST {
        return super::refuse(format!("a Fourier transform of {length} samples"));
    }
    let table = |f: fn(f64) -> f64| -> Result<TensorValue<'a>, Stop> {
        let value = |i: usize| {
            // The angle is reduced exactly before it is turned into a float.
            let turn = ((i / columns) * (i % columns)) % length.max(1);
            f(2.0 * PI * turn as f64 / length as f64) as f32
        };
        let values: Vec<f32> = (0..rows * columns).map(value).collect();
        call.constant(HostTensor::from_f32(&values, [rows, columns])?)
    };
    Ok([table(f64::cos)?, table(f64::sin)?])
}

/// A signal `[…, n, 1 or 2]` as its real part and, if it has one, its imaginary part `[…, n]`.
fn parts<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<(TensorValue<'a>, Option<TensorValue<'a>>), Stop> {
    let shape = call.ops.shape(x)?;
    let part =
        |i: isize| -> Result<TensorValue<'a>, Stop> { Ok(call.ops.squeeze(call.ops.slice(x, -1, i, i + 1)?, -1)?) };
    match shape.last() {
        Some(1) => Ok((part(0)?, None)),
        Some(2) => Ok((part(0)?, Some(part(1)?))),
        _ => failed(format!("{shape} has no real and imaginary part")),
    }
}

/// The transform along the last axis of `[…, n]`, as real and imaginary part.
fn transform<'a>(
    call: &Call<'a>,
    (re, im): (TensorValue<'a>, Option<TensorValue<'a>>),
    rows: usize,
    length: usize,
    inverse: bool,
) -> Result<[TensorValue<'a>; 2], Stop> {
    let ops = call.ops;
    let columns = ops.shape(re)?.last().copied().unwrap_or(0);
    let [cos, sin] = turns(call, rows, columns, length)?;
    // e^(∓iθ) = cos θ ∓ i sin θ
    let sign = if inverse { 1.0 } else { -1.0 };
    let (mut out_re, mut out_im) = (ops.matmul_nt(re, cos)?, ops.mul(ops.matmul_nt(re, sin)?, sign)?);
    if let Some(im) = im {
        out_re = ops.sub(out_re, ops.mul(ops.matmul_nt(im, sin)?, sign)?)?;
        out_im = ops.add(out_im, ops.matmul_nt(im, cos)?)?;
    }
    if inverse {
        let scale = 1.0 / length as f32;
        (out_re, out_im) = (ops.mul(out_re, scale)?, ops.mul(out_im, scale)?);
    }
    Ok([out_re, out_im])
}

/// Cut to a length or padded with zeros, along the last axis.
fn fitted<'a>(call: &Call<'a>, x: TensorValue<'a>, length: usize) -> Result<TensorValue<'a>, Stop> {
    let shape = call.ops.shape(x)?;
    let Some(last) = shape.rank().checked_sub(1) else { return failed("a signal without axes") };
    if shape[last] == length {
        return Ok(x);
    }
    let mut pads = vec![(0, 0); shape.rank()];
    pads[last].1 = length as isize - shape[last] as isize;
    Ok(call.ops.pad(x, &pads, crate::record::PadMode::Constant(0.0))?)
}

/// The axis is an attribute before version 20 and an input since.
fn dft<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (shape, element) = (call.shape_of(0)?, call.type_of(0)?);
    let rank = shape.rank();
    let axis = match call.version {
        ..20 => call.int("axis", 1),
        _ => whole(call, 2)?.unwrap_or(-2),
    };
    let axis = axis_index(axis, rank)?;
    if axis + 1 == rank {
        return failed("the last axis holds real and imaginary parts");
    }
    let (inverse, onesided) = (call.flag("inverse", false), call.flag("onesided", false));
    let real_result = inverse && onesided;
    let length = match whole(call, 1)? {
        Some(length) => length,
        None if real_result => 2 * (shape[axis] as i64 - 1),
        None => shape[axis] as i64,
    };
    let Some(length) = usize::try_from(length).ok().filter(|&n| n > 0) else {
        return failed(format!("a transform of {length} samples"));
    };
    let ops = call.ops;
    // The axis moves to the end.
    let last = |x: TensorValue<'a>| -> Result<TensorValue<'a>, Stop> {
        let mut order: Vec<isize> = (0..rank as isize - 1).filter(|&i| i != axis as isize).collect();
        order.push(axis as isize);
        Ok(ops.permute(x, &order)?)
    };
    let (re, im) = parts(call, call.x_as(0, DType::F32)?)?;
    let (mut re, mut im) = (last(re)?, im.map(last).transpose()?);
    if real_result {
        // The half that is missing mirrors the half that is given: the middle lines count twice.
        let lines = length / 2 + 1;
        (re, im) = (fitted(call, re, lines)?, im.map(|im| fitted(call, im, lines)).transpose()?);
        let weights: Vec<f32> =
            (0..lines).map(|i| if i == 0 || (length % 2 == 0 && i == length / 2) { 1.0 } else { 2.0 }).collect();
        let weights = call.constant(HostTensor::from_f32(&weights, [lines])?)?;
        (re, im) = (ops.mul(re, weights)?, im.map(|im| ops.mul(im, weights)).transpose()?);
    } else {
        (re, im) = (fitted(call, re, length)?, im.map(|im| fitted(call, im, length)).transpose()?);
    }
    let rows = if onesided && !inverse { length / 2 + 1 } else { length };
    let [re, im] = transform(call, (re, im), rows, length, inverse)?;
    let both = if real_result { ops.unsqueeze(re, &[-1])? } else { ops.stack([re, im], -1)? };
    // Back from `[others…, axis, parts]`.
    let mut order: Vec<isize> = (0..rank as isize - 2).collect();
    order.insert(axis, rank as isize - 2);
    order.push(rank as isize - 1);
    one(ops.cast(ops.permute(both, &order)?, device_type(element)?)?, element)
}

/// Frames are gathered with positions that the host knows, then transformed together.
fn stft<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let (shape, element) = (call.shape_of(0)?, call.type_of(0)?);
    let samples = shape.get(1).copied().unwrap_or(0);
    let step = whole(call, 1)?.unwrap_or(0);
    let length = match whole(call, 3)? {
        Some(length) => length,
        None if call.has(2) => call.shape_of(2)?.elements() as i64,
        None => samples as i64,
    };
    let (Ok(step @ 1..), Ok(length @ 1..)) = (usize::try_from(step), usize::try_from(length)) else {
        return failed(format!("frames of {length} samples every {step}"));
    };
    if samples < length {
        return failed(format!("{samples} samples are fewer than a frame of {length}"));
    }
    let signal = call.x_as(0, DType::F32)?;
    let signal = if shape.rank() == 2 { ops.unsqueeze(signal, &[-1])? } else { signal };
    let (re, im) = parts(call, signal)?;
    let frames = (samples - length) / step + 1;
    if frames.saturating_mul(length) > super::super::host_ops::MAX_ELEMENTS {
        return super::refuse(format!("{frames} frames of {length} samples"));
    }
    let places: Vec<i32> = (0..frames).flat_map(|f| (0..length).map(move |i| (f * step + i) as i32)).collect();
    let places = call.constant(HostTensor::from_i32(&places, [frames, length])?)?;
    let window = if call.has(2) { Some(call.x_as(2, DType::F32)?) } else { None };
    let framed = |x: TensorValue<'a>| -> Result<TensorValue<'a>, Stop> {
        let frames = ops.gather(x, places, 1)?;
        Ok(match window {
            Some(window) => ops.mul(frames, window)?,
            None => frames,
        })
    };
    let (re, im) = (framed(re)?, im.map(framed).transpose()?);
    let onesided = call.flag("onesided", true) && im.is_none();
    let rows = if onesided { length / 2 + 1 } else { length };
    let [re, im] = transform(call, (re, im), rows, length, false)?;
    one(ops.cast(ops.stack([re, im], -1)?, device_type(element)?)?, element)
}
