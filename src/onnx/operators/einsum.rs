//! Einstein sums as matrix products.

use std::collections::HashMap;

use super::super::call::{Call, Outputs, Stop, device_type, failed, one};
use super::Operator;
use crate::ir::Shape;
use crate::record::{Axes, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[Operator::new("Einsum").record(einsum)];

/// A value with a label per axis. No label is named twice.
#[derive(Clone)]
struct Labelled<'a> {
    value: TensorValue<'a>,
    labels: Vec<char>,
}

/// Labels of a term for a value of `rank` axes. Those of an ellipsis are digits, counted from the last.
fn labels(term: &str, rank: usize) -> Result<Vec<char>, Stop> {
    let labels: Vec<char> = match term.split_once("...") {
        None => term.chars().collect(),
        Some((before, after)) => {
            let named = before.chars().count() + after.chars().count();
            if named > rank || rank - named > 10 {
                return failed(format!("{term:?} does not fit {rank} axes"));
            }
            let digits = (0..rank - named).rev().filter_map(|i| char::from_digit(i as u32, 10));
            before.chars().chain(digits).chain(after.chars()).collect()
        }
    };
    if labels.len() == rank { Ok(labels) } else { failed(format!("{term:?} does not fit {rank} axes")) }
}

fn einsum<'a>(call: &Call<'a>) -> Outputs<'a> {
    let equation: String = call.text("equation", "").chars().filter(|c| !c.is_whitespace()).collect();
    let (left, result) = match equation.split_once("->") {
        Some((terms, result)) => (terms.to_owned(), Some(result.to_owned())),
        None => (equation, None),
    };
    let mut terms = Vec::new();
    for (i, term) in left.split(',').enumerate() {
        terms.push(labels(term, call.shape_of(i)?.rank())?);
    }
    if terms.len() != call.count() {
        return failed(format!("{} terms for {} operands", terms.len(), call.count()));
    }
    let mut all: Vec<char> = terms.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    let hidden: Vec<char> = all.iter().copied().filter(char::is_ascii_digit).rev().collect();
    let result: Vec<char> = match result {
        Some(result) => labels(
            &result,
            hidden.len() * usize::from(result.contains("...")) + result.replace("...", "").chars().count(),
        )?,
        // Without an arrow: the ellipsis, then every label that appears once, in alphabetical order.
        None => {
            let once = |c: &char| terms.iter().flatten().filter(|l| *l == c).count() == 1;
            hidden.iter().copied().chain(all.iter().copied().filter(|c| !c.is_ascii_digit() && once(c))).collect()
        }
    };
    let mut operands = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        operands.push(diagonal(call, call.x(i)?, term)?);
    }
    // Sizes of the labels. Those of an ellipsis may be 1 in some operands.
    let mut sizes: HashMap<char, usize> = HashMap::new();
    for operand in &operands {
        for (&label, &size) in operand.labels.iter().zip(call.ops.shape(operand.value)?.iter()) {
            let known = sizes.entry(label).or_insert(size);
            *known = if *known == 1 { size } else { *known };
        }
    }
    let mut rest = operands.into_iter();
    let Some(mut product) = rest.next() else { return failed("no operand") };
    let mut later: Vec<Labelled> = rest.collect();
    while !later.is_empty() {
        let next = later.remove(0);
        let kept = |label: &char| result.contains(label) || later.iter().any(|operand| operand.labels.contains(label));
        product = contract(call, product, next, &sizes, kept)?;
    }
    let product = summed(call, product, |label| result.contains(label))?;
    if let Some(label) = result.iter().find(|label| !product.labels.contains(label)) {
        return failed(format!("no operand has the label {label}"));
    }
    let value = arranged(call, &product, &result)?;
    let to = Shape::from(result.iter().map(|label| sizes[label]).collect::<Vec<_>>());
    let element = call.type_of(0)?;
    let value = call.ops.cast(call.ops.broadcast_to(value, to)?, device_type(element)?)?;
    one(call.narrowed(value, element)?, element)
}

/// Labels that are named twice become the diagonal of their axes.
fn diagonal<'a>(call: &Call<'a>, value: TensorValue<'a>, term: &[char]) -> Result<Labelled<'a>, Stop> {
    let (mut value, mut term) = (value, term.to_vec());
    let repeated =
        |term: &[char]| (0..term.len()).find_map(|i| (i + 1..term.len()).find(|&j| term[i] == term[j]).map(|j| (i, j)));
    while let Some((first, second)) = repeated(&term) {
        let shape = call.ops.shape(value)?;
        if shape[first] != shape[second] {
            return failed(format!("the label {} has the sizes {} and {}", term[first], shape[first], shape[second]));
        }
        let rest: Vec<usize> = (0..shape.rank()).filter(|&axis| axis != first && axis != second).collect();
        let to: Vec<isize> = rest.iter().chain(&[first, second]).map(|&axis| axis as isize).collect();
        let n = shape[first] as isize;
        let mut sizes: Vec<isize> = rest.iter().map(|&axis| shape[axis] as isize).collect();
        sizes.push(n * n);
        let flat = call.ops.reshape(call.ops.permute(value, &to)?, &sizes)?;
        value = call.ops.slice_step(flat, -1, 0, n * n, n + 1)?;
        let label = term[first];
        term = rest.iter().map(|&axis| term[axis]).chain([label]).collect();
    }
    Ok(Labelled { value, labels: term })
}

/// The sum over all labels that are not kept.
fn summed<'a>(call: &Call<'a>, x: Labelled<'a>, kept: impl Fn(&char) -> bool) -> Result<Labelled<'a>, Stop> {
    let axes: Vec<isize> = (0..x.labels.len()).filter(|&i| !kept(&x.labels[i])).map(|i| i as isize).collect();
    if axes.is_empty() {
        return Ok(x);
    }
    let value = call.ops.sum(x.value, Axes::of(axes))?;
    Ok(Labelled { value, labels: x.labels.into_iter().filter(|label| kept(label)).collect() })
}

/// The axes in the order of `order`, which has all of the value's labels.
fn arranged<'a>(call: &Call<'a>, x: &Labelled<'a>, order: &[char]) -> Result<TensorValue<'a>, Stop> {
    let axes: Vec<isize> =
        order.iter().filter_map(|label| x.labels.iter().position(|l| l == label)).map(|at| at as isize).collect();
    Ok(call.ops.permute(x.value, &axes)?)
}

/// Two operands as one batched matrix product. Labels that are neither kept nor shared are summed first.
fn contract<'a>(
    call: &Call<'a>,
    a: Labelled<'a>,
    b: Labelled<'a>,
    sizes: &HashMap<char, usize>,
    kept: impl Fn(&char) -> bool,
) -> Result<Labelled<'a>, Stop> {
    let (of_a, of_b) = (a.labels.clone(), b.labels.clone());
    let a = summed(call, a, |label| kept(label) || of_b.contains(label))?;
    let b = summed(call, b, |label| kept(label) || of_a.contains(label))?;
    let shared = |label: &&char| of_a.contains(label) && of_b.contains(label);
    let batch: Vec<char> = a.labels.iter().filter(shared).filter(|label| kept(label)).copied().collect();
    let inner: Vec<char> = a.labels.iter().filter(shared).filter(|label| !kept(label)).copied().collect();
    let free = |x: &Labelled| -> Vec<char> {
        x.labels.iter().filter(|label| !batch.contains(label) && !inner.contains(label)).copied().collect()
    };
    let (rows, columns) = (free(&a), free(&b));
    let size = |labels: &[char]| labels.iter().map(|label| sizes[label]).product::<usize>() as isize;
    let matrix = |x: &Labelled<'a>, free: &[char]| -> Result<TensorValue<'a>, Stop> {
        let order: Vec<char> = batch.iter().chain(free).chain(&inner).copied().collect();
        let full = Shape::from(order.iter().map(|label| sizes[label]).collect::<Vec<_>>());
        let value = call.ops.broadcast_to(arranged(call, x, &order)?, full)?;
        Ok(call.ops.reshape(value, &[size(&batch), size(free), size(&inner)])?)
    };
    let product = call.ops.matmul_nt(matrix(&a, &rows)?, matrix(&b, &columns)?)?;
    let labels: Vec<char> = batch.iter().chain(&rows).chain(&columns).copied().collect();
    let to: Vec<isize> = labels.iter().map(|label| sizes[label] as isize).collect();
    Ok(Labelled { value: call.ops.reshape(product, &to)?, labels })
}
