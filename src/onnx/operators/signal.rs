//! Fourier transforms, windows and mel filters.

use core::f64::consts::PI;

use super::super::call::{Call, Outputs, Stop, axis_index, device_type, failed, one};
use super::super::host::{HostTensor, Numbers};
use super::super::value::Value;
use super::Operator;
use crate::formats::onnx::ElementType;
use crate::ir::{DType, FourierInput, FourierOutput};
use crate::record::{PadMode, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("HannWindow").record(|call| window(call, &[0.5, -0.5])),
    Operator::new("HammingWindow").record(|call| window(call, &[25.0 / 46.0, -21.0 / 46.0])),
    Operator::new("BlackmanWindow").record(|call| window(call, &[0.42, -0.5, 0.08])),
    Operator::new("MelWeightMatrix").record(mel),
    Operator::new("DFT").record(dft),
    Operator::new("STFT").record(stft),
];

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

/// A signal `[…, n, 1 or 2]` as a transform takes it: real ones without their last axis.
fn signal<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<(TensorValue<'a>, FourierInput), Stop> {
    let shape = call.ops.shape(x)?;
    match shape.last() {
        Some(1) => Ok((call.ops.squeeze(x, -1)?, FourierInput::Real)),
        Some(2) => Ok((x, FourierInput::Complex)),
        _ => failed(format!("{shape} has no real and imaginary part")),
    }
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
    let x = call.x_as(0, DType::F32)?;
    let result = if real_result {
        // Half a spectrum, whose other half mirrors it. A real one has no imaginary parts.
        let mut pads = vec![(0, 0); rank];
        pads[rank - 1].1 = 2 - shape[rank - 1] as isize;
        let x = ops.pad(x, &pads, PadMode::Constant(0.0))?;
        let of = (FourierInput::Half, FourierOutput::Real);
        ops.unsqueeze(ops.fourier("DFT", x, length, axis as isize, of, true)?, &[-1])?
    } else {
        let (x, input) = signal(call, x)?;
        let output = if onesided { FourierOutput::Half } else { FourierOutput::Complex };
        ops.fourier("DFT", x, length, axis as isize, (input, output), inverse)?
    };
    one(ops.cast(result, device_type(element)?)?, element)
}

/// Frames are read where they are in the signal.
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
    let x = call.x_as(0, DType::F32)?;
    let (x, input) = if shape.rank() == 2 { (x, FourierInput::Real) } else { signal(call, x)? };
    let window = if call.has(2) { Some(call.x_as(2, DType::F32)?.into()) } else { None };
    let onesided = call.flag("onesided", true) && input == FourierInput::Real;
    let output = if onesided { FourierOutput::Half } else { FourierOutput::Complex };
    let spectra = ops.framed("STFT", x, window, [length, step], (input, output))?;
    one(ops.cast(spectra, device_type(element)?)?, element)
}
