//! Einsum: operands are expanded to all labels, multiplied, and summed over the labels that are not in the result.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, Stop};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    (call.case.op == "Einsum").then(|| einsum(call))
}

/// The labels of a term for a value with `rank` axes. Axes of an ellipsis are digits, counted from the last.
fn labels(term: &str, rank: usize) -> Vec<char> {
    let Some((before, after)) = term.split_once("...") else { return term.chars().collect() };
    let hidden = rank.saturating_sub(before.chars().count() + after.chars().count());
    let digits = (0..hidden).rev().filter_map(|i| char::from_digit(i as u32, 10));
    before.chars().chain(digits).chain(after.chars()).collect()
}

fn einsum<'a>(call: &Call<'a>) -> Outputs<'a> {
    let equation: String = call.case.text("equation", "").chars().filter(|c| !c.is_whitespace()).collect();
    let (terms, result) = match equation.split_once("->") {
        Some((terms, result)) => (terms.to_owned(), Some(result.to_owned())),
        None => (equation, None),
    };
    let terms: Vec<Vec<char>> =
        terms.split(',').enumerate().map(|(i, term)| labels(term, call.shape_of(i).len())).collect();
    let mut all: Vec<char> = terms.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    let mut hidden: Vec<char> = all.iter().copied().filter(char::is_ascii_digit).collect();
    hidden.reverse();
    let result = match result {
        Some(result) => labels(&result, hidden.len() + result.replace("...", "").chars().count()),
        // Without an arrow: the ellipsis, then every label that occurs once, in order.
        None => {
            let once = |c: &char| terms.iter().flatten().filter(|l| *l == c).count() == 1;
            hidden.iter().copied().chain(all.iter().copied().filter(|c| !c.is_ascii_digit() && once(c))).collect()
        }
    };
    let order: Vec<char> = result.iter().copied().chain(all.iter().copied().filter(|c| !result.contains(c))).collect();
    let mut product: Option<TensorValue> = None;
    for (i, term) in terms.iter().enumerate() {
        let laid = lay_out(call, i, term.clone(), &order)?;
        product = Some(match product {
            Some(product) => call.ops.mul(product, laid)?,
            None => laid,
        });
    }
    let product = product.ok_or(Stop::Failed("no operand".to_owned()))?;
    let summed = Axes::of(result.len() as isize..order.len() as isize);
    let to = call.dtype_of(0)?;
    let sum = call.ops.sum(product, summed)?;
    call.narrowed(sum, to)
}

/// An operand with one axis per label of `order`. Labels that occur twice become their diagonal.
fn lay_out<'a>(call: &Call<'a>, i: usize, mut term: Vec<char>, order: &[char]) -> Result<TensorValue<'a>, Stop> {
    let x = call.x(i)?;
    let mut value = call.ops.copy(x)?;
    if term.is_empty() {
        value = call.ops.reshape(value, &[])?;
    }
    while let Some((first, second)) = repeated(&term) {
        let shape = call.ops.shape(value)?;
        let rank = shape.rank();
        let rest: Vec<usize> = (0..rank).filter(|&axis| axis != first && axis != second).collect();
        let to: Vec<isize> = rest.iter().chain(&[first, second]).map(|&axis| axis as isize).collect();
        let n = shape[first] as isize;
        let together = call.ops.permute(value, &to)?;
        let mut sizes: Vec<isize> = rest.iter().map(|&axis| shape[axis] as isize).collect();
        sizes.push(n * n);
        let flat = call.ops.reshape(together, &sizes)?;
        value = call.ops.slice_step(flat, -1, 0, n * n, n + 1)?;
        let label = term[first];
        term = rest.iter().map(|&axis| term[axis]).chain([label]).collect();
    }
    let present: Vec<isize> =
        order.iter().filter_map(|c| term.iter().position(|l| l == c).map(|at| at as isize)).collect();
    let value = call.ops.permute(value, &present)?;
    let absent: Vec<isize> = (0..order.len()).filter(|&i| !term.contains(&order[i])).map(|i| i as isize).collect();
    Ok(call.ops.unsqueeze(value, &absent)?)
}

fn repeated(term: &[char]) -> Option<(usize, usize)> {
    (0..term.len()).find_map(|i| (i + 1..term.len()).find(|&j| term[i] == term[j]).map(|j| (i, j)))
}
