//! Sequences and optionals. They are lists of values in the recording, so that their tensors stay where they are.

use std::rc::Rc;

use super::super::call::{Call, Outputs, Stop, axis_index, failed};
use super::super::graph::{Attribute, ValueType};
use super::super::host::HostTensor;
use super::super::value::Value;
use super::Operator;
use crate::formats::onnx::ElementType;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("SequenceEmpty").record(empty),
    Operator::new("SequenceConstruct").record(construct),
    Operator::new("SequenceInsert").record(insert),
    Operator::new("SequenceErase").record(erase),
    Operator::new("SequenceAt").record(at),
    Operator::new("SequenceLength").record(length),
    Operator::new("ConcatFromSequence").record(concat),
    Operator::new("SplitToSequence").record(split),
    Operator::new("Optional").record(optional),
    Operator::new("OptionalHasElement").record(has_element),
    Operator::new("OptionalGetElement").record(get_element),
];

type Items<'a> = Rc<Vec<Value<'a>>>;

fn sequence<'a>(call: &Call<'a>, i: usize) -> Result<(Items<'a>, ElementType), Stop> {
    match call.need(i)? {
        Value::Sequence(values, element) => Ok((values.clone(), *element)),
        Value::Host(_) | Value::Device(..) | Value::Nothing => failed(format!("input {i} is no sequence")),
    }
}

fn give<'a>(values: Vec<Value<'a>>, element: ElementType) -> Outputs<'a> {
    Ok(vec![Some(Value::Sequence(Rc::new(values), element))])
}

fn empty<'a>(call: &Call<'a>) -> Outputs<'a> {
    give(Vec::new(), call.element("dtype").unwrap_or(ElementType::Float32))
}

fn construct<'a>(call: &Call<'a>) -> Outputs<'a> {
    let values: Vec<Value<'a>> = (0..call.count()).map(|i| call.need(i).cloned()).collect::<Result<_, _>>()?;
    give(values, call.type_of(0)?)
}

/// The place of an element, where negative ones count from the end.
fn place(call: &Call, i: usize, length: usize) -> Result<Option<usize>, Stop> {
    match call.host_ints(i)?.as_deref() {
        None => Ok(None),
        Some([index]) => axis_index(*index, length).map(Some),
        Some(_) => failed("the position is not one number"),
    }
}

fn insert<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (values, element) = sequence(call, 0)?;
    let mut values = values.to_vec();
    let at = match call.host_ints(2)?.as_deref() {
        None => values.len(),
        // Inserting at the end is allowed, so there is one place more than elements.
        Some([index]) if *index < 0 => axis_index(*index, values.len())?,
        Some([index]) => axis_index(*index, values.len() + 1)?,
        Some(_) => return failed("the position is not one number"),
    };
    values.insert(at, call.need(1)?.clone());
    give(values, element)
}

fn erase<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (values, element) = sequence(call, 0)?;
    let mut values = values.to_vec();
    let Some(last) = values.len().checked_sub(1) else { return failed("the sequence is empty") };
    let at = place(call, 1, values.len())?.unwrap_or(last);
    values.remove(at);
    give(values, element)
}

fn at<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (values, _) = sequence(call, 0)?;
    let at = place(call, 1, values.len())?.unwrap_or(0);
    Ok(vec![values.get(at).cloned()])
}

fn length<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (values, _) = sequence(call, 0)?;
    Ok(vec![Some(Value::constant(HostTensor::from_i64(&[values.len() as i64], [])?))])
}

fn concat<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (values, element) = sequence(call, 0)?;
    let parts = values.iter().map(|value| call.upload(value)).collect::<Result<Vec<_>, _>>()?;
    let axis = call.int("axis", 0) as isize;
    let joined =
        if call.flag("new_axis", false) { call.ops.stack(parts, axis)? } else { call.ops.concat(parts, axis)? };
    super::super::call::one(joined, element)
}

fn split<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, element, shape) = (call.x(0)?, call.type_of(0)?, call.shape_of(0)?);
    let axis = axis_index(call.int("axis", 0), shape.rank())?;
    let size = shape[axis];
    let given = call.host_ints(1)?;
    let scalar = call.has(1) && call.shape_of(1)?.rank() == 0;
    let parts: Vec<usize> = match given.as_deref() {
        None => vec![1; size],
        Some([each]) if scalar => {
            let each = usize::try_from(*each).ok().filter(|&each| each > 0);
            let Some(each) = each else { return failed("the size of the parts is not positive") };
            (0..size).step_by(each).map(|start| each.min(size - start)).collect()
        }
        Some(parts) => super::super::call::sizes(parts)?,
    };
    let keep = given.is_some() || call.flag("keepdims", true);
    let mut values = Vec::with_capacity(parts.len());
    for part in call.ops.split(x, axis, &parts)? {
        let part = if keep { part } else { call.ops.squeeze(part, axis)? };
        values.push(Value::Device(part, element));
    }
    give(values, element)
}

fn optional<'a>(call: &Call<'a>) -> Outputs<'a> {
    if let Some(value) = call.value(0) {
        return Ok(vec![Some(value.clone())]);
    }
    match call.attribute("type") {
        Some(Attribute::Type(ValueType::Other(name))) => failed(format!("an optional of {name}")),
        _ => Ok(vec![Some(Value::Nothing)]),
    }
}

fn has_element<'a>(call: &Call<'a>) -> Outputs<'a> {
    let has = !matches!(call.value(0), None | Some(Value::Nothing));
    Ok(vec![Some(Value::constant(HostTensor::from_bools(&[has], [])?))])
}

fn get_element<'a>(call: &Call<'a>) -> Outputs<'a> {
    match call.need(0)? {
        Value::Nothing => failed("the optional is empty"),
        value => Ok(vec![Some(value.clone())]),
    }
}
