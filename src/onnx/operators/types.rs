//! Element types of ONNX that have no type of their own on the device, and conversions between all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::call::{Call, Outputs, Stop, device_type, failed, one};
use super::super::host::HostTensor;
use super::super::small_float::SmallFloat;
use super::super::value::{Origin, Value};
use super::Operator;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::TensorValue;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Cast").record(cast),
    Operator::new("CastLike").record(cast_like),
    Operator::new("BitCast").record(bit_cast),
];

/// The element type of an attribute. Version 1 of some operators names it by text.
fn target(call: &Call, attribute: &str) -> Result<ElementType, Stop> {
    if let Some(element) = call.element(attribute) {
        return Ok(element);
    }
    let text = call.text(attribute, "").to_ascii_lowercase();
    ElementType::ALL
        .into_iter()
        .find(|element| element.name() == text)
        .map_or_else(|| failed(format!("the attribute {attribute} is not an element type")), Ok)
}

fn cast<'a>(call: &Call<'a>) -> Outputs<'a> {
    let to = target(call, "to")?;
    one(call.converted(call.x(0)?, call.type_of(0)?, to)?, to)
}

fn cast_like<'a>(call: &Call<'a>) -> Outputs<'a> {
    let to = call.type_of(1)?;
    one(call.converted(call.x(0)?, call.type_of(0)?, to)?, to)
}

/// The same bits as another type of the same width.
fn bit_cast<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (from, to) = (call.type_of(0)?, target(call, "to")?);
    if from.bits() != to.bits() {
        return failed(format!("{from} and {to} differ in width"));
    }
    if from == to {
        return one(call.x(0)?, to);
    }
    let integers = from.is_integer() && to.is_integer();
    match from.bits() {
        // The device wraps integers as two's complement.
        Some(32 | 8 | 4 | 2) if integers => one(call.converted(call.x(0)?, from, to)?, to),
        Some(16) if integers => one(call.narrowed(call.ops.cast(call.x(0)?, device_type(to)?)?, to)?, to),
        // Devices have no such op. The host reads the bits anew.
        _ => {
            let Some(x) = call.host(0)? else { return failed("input 0 is missing") };
            let bits = HostTensor::from_bytes(to, x.shape().clone(), x.bytes())?;
            Ok(vec![Some(Value::host(Arc::new(bits), Origin::Data))])
        }
    }
}

impl<'a> Call<'a> {
    /// A value as another element type, by the rules of `Cast`.
    pub(super) fn converted(
        &self,
        x: TensorValue<'a>,
        from: ElementType,
        to: ElementType,
    ) -> Result<TensorValue<'a>, Stop> {
        if from == to {
            return Ok(x);
        }
        let dtype = device_type(to)?;
        if to.is_small_float() {
            return self.rounded_to(self.ops.cast(x, DType::F32)?, to, self.flag("saturate", true));
        }
        let narrow = to.is_integer() && to.bits() != Some(dtype.bytes(1) * 8) && to.bits() != Some(64);
        if !narrow {
            // Floats to bytes are truncated to 32 bits first, which then wrap as ONNX's reference does.
            return match (from.is_float(), dtype) {
                (true, DType::I8 | DType::U8) => Ok(self.ops.cast(self.ops.cast(x, DType::I32)?, dtype)?),
                _ => Ok(self.ops.cast(x, dtype)?),
            };
        }
        let wide = self.ops.cast(x, DType::I32)?;
        Ok(self.ops.cast(self.wrapped(wide, to)?, dtype)?)
    }

    /// Integers of 32 bits wrapped to the width of a narrower type. They stay 32-bit.
    pub(super) fn wrapped(&self, x: TensorValue<'a>, to: ElementType) -> Result<TensorValue<'a>, Stop> {
        let Some(bits @ 1..=31) = to.bits() else { return Ok(x) };
        let span = f64::from(1u32 << bits);
        let low = self.ops.modulo(x, span)?;
        if to.is_unsigned() {
            return Ok(low);
        }
        let negative = self.ops.greater_equal(low, span / 2.0)?;
        Ok(self.ops.select(negative, self.ops.sub(low, span)?, low)?)
    }

    /// The result of integer arithmetic, wrapped if the type is narrower than on the device.
    pub(super) fn narrowed(&self, x: TensorValue<'a>, element: ElementType) -> Result<TensorValue<'a>, Stop> {
        let dtype = device_type(element)?;
        let exact = element.bits() == Some(dtype.bytes(1) * 8) || element.bits() == Some(64);
        if !element.is_integer() || exact {
            return Ok(x);
        }
        let wide = self.ops.cast(x, DType::I32)?;
        Ok(self.ops.cast(self.wrapped(wide, element)?, dtype)?)
    }

    /// Floats of 32 bits rounded to the values of an 8-bit or 4-bit type, to nearest with ties to even. The code is
    /// found by binary search in a table, which is exact on every device.
    pub(super) fn rounded_to(
        &self,
        x: TensorValue<'a>,
        to: ElementType,
        saturate: bool,
    ) -> Result<TensorValue<'a>, Stop> {
        let rounding = match (to, self.text("round_mode", "up")) {
            (ElementType::Float8E8M0, "up") => Rounding::Up,
            (ElementType::Float8E8M0, "down") => Rounding::Down,
            _ => Rounding::Nearest,
        };
        let table = rounding_table(to, saturate, rounding)?;
        let size = self.ops.abs(x)?;
        let (limits, values) =
            (self.constant(table.limits.as_ref().clone())?, self.constant(table.values.as_ref().clone())?);
        let mut at = self.full(self.ops.shape(x)?, 0.0, DType::I32)?;
        let mut step = table.count.next_power_of_two() / 2;
        while step > 0 {
            let next = self.ops.add(at, step as u32)?;
            // Behind the table is a limit that nothing reaches.
            let limit = self.ops.gather(limits, self.ops.min(next, table.count as u32)?, 0)?;
            at = self.ops.select(self.ops.greater_equal(size, limit)?, next, at)?;
            step /= 2;
        }
        let rounded = self.ops.gather(values, at, 0)?;
        let rounded = match to {
            // It has no sign.
            ElementType::Float8E8M0 => rounded,
            _ => self.ops.select(self.ops.less(x, 0.0)?, self.ops.neg(rounded)?, rounded)?,
        };
        let nan = table.nan;
        Ok(self.ops.select(self.ops.is_nan(x)?, f64::from(nan), rounded)?)
    }
}

/// The magnitudes of a small float type, in rising order, and from which magnitude on each is the nearest.
#[derive(Clone)]
struct RoundingTable {
    /// Rows of the table. The last limit is behind them.
    count: usize,
    limits: Arc<HostTensor>,
    values: Arc<HostTensor>,
    /// What NaN becomes.
    nan: f32,
}

/// Where values between two others go. Only powers of two have a choice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Rounding {
    Nearest,
    Up,
    Down,
}

/// A type, whether it saturates, and how it rounds.
type TableKey = (ElementType, bool, Rounding);

fn rounding_table(to: ElementType, saturate: bool, rounding: Rounding) -> Result<RoundingTable, Stop> {
    static TABLES: Mutex<Option<HashMap<TableKey, RoundingTable>>> = Mutex::new(None);
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = tables.get_or_insert_default();
    if let Some(table) = tables.get(&(to, saturate, rounding)) {
        return Ok(table.clone());
    }
    let Some(small) = SmallFloat::of(to) else { return failed(format!("{to} is not a small float")) };
    let round = |v: f64| small.decode(small.encode(v, saturate)) as f32;
    let mut magnitudes: Vec<f32> =
        (0..=255).map(|code| small.decode(code) as f32).filter(|v| v.is_finite() && *v >= 0.0).collect();
    magnitudes.sort_by(f32::total_cmp);
    magnitudes.dedup();
    let (mut limits, mut values) = (vec![0.0f32], vec![*magnitudes.first().unwrap_or(&0.0)]);
    for pair in magnitudes.windows(2) {
        let middle = (f64::from(pair[0]) + f64::from(pair[1])) / 2.0;
        let middle = middle as f32;
        limits.push(match rounding {
            Rounding::Up => pair[0].next_up(),
            Rounding::Down => pair[1],
            // The encoder decides the tie.
            Rounding::Nearest if round(middle.into()) == pair[1] => middle,
            Rounding::Nearest => middle.next_up(),
        });
        values.push(pair[1]);
    }
    // What lies above the largest value: it saturates, or is infinite or NaN.
    if let [.., below, largest] = magnitudes[..] {
        let middle = largest + (largest - below) / 2.0;
        let far = round(f64::from(f32::MAX));
        limits.push(if round(middle.into()).to_bits() == far.to_bits() { middle } else { middle.next_up() });
        values.push(far);
        limits.push(f32::INFINITY);
        values.push(round(f64::INFINITY));
    }
    let count = limits.len();
    limits.push(f32::NAN);
    let table = RoundingTable {
        count,
        limits: Arc::new(HostTensor::from_f32(&limits, [count + 1])?),
        values: Arc::new(HostTensor::from_f32(&values, [count])?),
        nan: round(f64::NAN),
    };
    tables.insert((to, saturate, rounding), table.clone());
    Ok(table)
}
