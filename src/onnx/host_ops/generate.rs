//! Values from numbers: ranges, fills, casts.

use super::{HostCall, HostOutputs, limit};
use crate::formats::onnx::ElementType;
use crate::ir::Shape;
use crate::onnx::call::{Stop, failed, sizes, unsupported};
use crate::onnx::host::{HostTensor, Numbers};
use crate::onnx::small_float::SmallFloat;

pub(super) fn range(call: &HostCall) -> HostOutputs {
    let element = call.x(0)?.element();
    let number = |i: usize| -> Result<Numbers, Stop> { Ok(call.x(i)?.numbers()?) };
    let numbers = match (number(0)?, number(1)?, number(2)?) {
        (Numbers::Int(a), Numbers::Int(b), Numbers::Int(c)) => {
            let ([start], [end], [step]) = (&a[..], &b[..], &c[..]) else { return failed("limits are single numbers") };
            if *step == 0 {
                return failed("a step of 0");
            }
            let count = ((end - start) + step - step.signum()).div_euclid(*step).max(0);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            limit(Shape::from([count]))?;
            Numbers::Int((0..count as i128).map(|i| start + i * step).collect())
        }
        (Numbers::Float(a), Numbers::Float(b), Numbers::Float(c)) => {
            let ([start], [end], [step]) = (&a[..], &b[..], &c[..]) else { return failed("limits are single numbers") };
            let count = ((end - start) / step).ceil();
            if count.is_nan() {
                return failed("a step of 0");
            }
            let count = count.max(0.0) as usize;
            limit(Shape::from([count]))?;
            Numbers::Float((0..count).map(|i| start + i as f64 * step).collect())
        }
        _ => return failed("limits of different types"),
    };
    Ok(vec![HostTensor::from_numbers(element, [numbers.len()], &numbers)?])
}

pub(super) fn constant_of_shape(call: &HostCall) -> HostOutputs {
    let shape = limit(Shape::from(sizes(&call.x(0)?.to_i64()?)?))?;
    // A large fill is a number that a kernel broadcasts.
    if shape.elements() > 1 << 12 && call.operator.record.is_some() {
        return unsupported("a large fill");
    }
    let value = match call.tensor("value") {
        Some(value) => (**value).clone(),
        None => HostTensor::from_f32(&[0.0], [1])?,
    };
    if value.elements() != 1 {
        return failed("the value is not one number");
    }
    let count = shape.elements();
    Ok(vec![value.take(shape, core::iter::repeat_n(0, count))?])
}

pub(super) fn cast(call: &HostCall) -> HostOutputs {
    let Some(to) = call.element("to") else { return failed("the type to cast to is missing") };
    Ok(vec![convert(call, call.x(0)?, to)?])
}

pub(super) fn cast_like(call: &HostCall) -> HostOutputs {
    let to = call.x(1)?.element();
    Ok(vec![convert(call, call.x(0)?, to)?])
}

fn convert(call: &HostCall, x: &HostTensor, to: ElementType) -> Result<HostTensor, Stop> {
    if x.element() == to {
        return Ok(x.clone());
    }
    if let Some(strings) = x.strings() {
        let parse = |text: &Vec<u8>| {
            let text = core::str::from_utf8(text).unwrap_or("").trim();
            let number = match text {
                "INF" | "+INF" => Ok(f64::INFINITY),
                "-INF" => Ok(f64::NEG_INFINITY),
                text => text.parse(),
            };
            number.map_err(|_| Stop::Failed(format!("\"{text}\" is no number")))
        };
        let numbers = Numbers::Float(strings.iter().map(parse).collect::<Result<_, _>>()?);
        return Ok(HostTensor::from_numbers(to, x.shape(), &numbers)?);
    }
    if to == ElementType::String {
        let texts: Vec<Vec<u8>> = match x.numbers()? {
            Numbers::Int(values) if x.element() == ElementType::Bool => {
                values.iter().map(|&v| if v != 0 { b"True".to_vec() } else { b"False".to_vec() }).collect()
            }
            Numbers::Int(values) => values.iter().map(|v| v.to_string().into_bytes()).collect(),
            Numbers::Float(values) => values.iter().map(|&v| text_of(v, x.element()).into_bytes()).collect(),
        };
        return Ok(HostTensor::from_strings(texts, x.shape())?);
    }
    let mut numbers = x.numbers()?;
    // Numbers of 64 bits go through the nearest f32 on their way to small floats, as the standard says.
    if let Some(small) = SmallFloat::of(to) {
        let saturate = call.flag("saturate", true);
        let values = numbers.to_f64();
        let codes: Vec<u8> = match to {
            ElementType::Float8E8M0 => {
                values.iter().map(|&v| small.encode_power(v, call.text("round_mode", "up"), saturate)).collect()
            }
            _ => values.iter().map(|&v| small.encode(v, saturate)).collect(),
        };
        return Ok(HostTensor::from_bytes(to, x.shape(), &codes)?);
    }
    // Floats that a small integer cannot hold wrap, as a cast in C does on most machines.
    let small = to.integer_range().is_some_and(|(low, high)| high - low < 1 << 17);
    if let Numbers::Float(values) = &numbers
        && small
        && values.iter().all(|v| v.is_finite())
    {
        numbers = Numbers::Int(values.iter().map(|&v| v as i128).collect());
    }
    Ok(HostTensor::from_numbers(to, x.shape(), &numbers)?)
}

/// A float as NumPy prints it.
fn text_of(value: f64, element: ElementType) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let plain = match element {
        ElementType::Float64 => value.to_string(),
        ElementType::Float16 => half::f16::from_f64(value).to_string(),
        ElementType::Bfloat16 => half::bf16::from_f64(value).to_string(),
        _ => (value as f32).to_string(),
    };
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = if element == ElementType::Float64 { format!("{value:e}") } else { format!("{:e}", value as f32) };
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        let power: i32 = power.parse().unwrap_or(0);
        return format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs());
    }
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}
