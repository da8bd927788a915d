//! Strings, and counts of runs of tokens.

use std::collections::HashMap;

use super::{HostCall, HostOutputs};
use crate::ir::Shape;
use crate::onnx::call::{Stop, failed};
use crate::onnx::host::HostTensor;

/// The strings of an input as text. Bytes that are not UTF-8 are replaced.
fn texts(x: &HostTensor) -> Result<Vec<String>, Stop> {
    match x.strings() {
        Some(strings) => Ok(strings.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()),
        None => failed(format!("{} values are not strings", x.element())),
    }
}

pub(super) fn concat(call: &HostCall) -> HostOutputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    let (Some(x), Some(y)) = (a.strings(), b.strings()) else { return failed("the inputs are no strings") };
    let shape = super::broadcast(a.shape(), b.shape())?;
    let at =
        super::broadcast_positions(a.shape(), &shape).into_iter().zip(super::broadcast_positions(b.shape(), &shape));
    let joined = at.map(|(i, j)| [x[i].as_slice(), y[j].as_slice()].concat()).collect();
    Ok(vec![HostTensor::from_strings(joined, shape)?])
}

/// Drops stop words and changes the case. If no word is left, the result is one empty string.
pub(super) fn normalize(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let two = match x.shape()[..] {
        [_] => false,
        [1, _] => true,
        _ => return failed(format!("{} is not a row of words", x.shape())),
    };
    let exact = call.flag("is_case_sensitive", false);
    let key = |word: &str| if exact { word.to_owned() } else { word.to_lowercase() };
    let stops: Vec<String> =
        call.texts("stopwords").unwrap_or_default().iter().map(|word| key(&String::from_utf8_lossy(word))).collect();
    let change: fn(&str) -> String = match call.text("case_change_action", "NONE") {
        "NONE" => |word| word.to_owned(),
        "LOWER" => |word| word.to_lowercase(),
        "UPPER" => |word| word.to_uppercase(),
        other => return failed(format!("{other:?} is not a change of case")),
    };
    let kept = texts(x)?.into_iter().filter(|word| !stops.contains(&key(word)));
    let mut kept: Vec<Vec<u8>> = kept.map(|word| change(&word).into_bytes()).collect();
    if kept.is_empty() {
        kept.push(Vec::new());
    }
    let shape = if two { Shape::from([1, kept.len()]) } else { Shape::from([kept.len()]) };
    Ok(vec![HostTensor::from_strings(kept, shape)?])
}

/// Parts of each string, filled with empty strings to the longest row, and how many there are.
pub(super) fn split(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let delimiter = call.text("delimiter", "");
    let most = call.maybe_int("maxsplit").and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
    let parts = |text: &str| -> Vec<Vec<u8>> {
        if !delimiter.is_empty() {
            return match text {
                "" => Vec::new(),
                text => text.splitn(most + 1, delimiter).map(|part| part.as_bytes().to_vec()).collect(),
            };
        }
        let (mut rest, mut parts) = (text.trim_start(), Vec::new());
        while !rest.is_empty() {
            let end = if parts.len() < most { rest.find(char::is_whitespace) } else { None };
            let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
            let part = if parts.len() < most { part } else { part.trim_end() };
            parts.push(part.as_bytes().to_vec());
            rest = after.trim_start();
        }
        parts
    };
    let rows: Vec<Vec<Vec<u8>>> = texts(x)?.iter().map(|text| parts(text)).collect();
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    let counts: Vec<i64> = rows.iter().map(|row| row.len() as i64).collect();
    let shape = super::limit(Shape::new(x.shape().iter().copied().chain([width])))?;
    let padded = rows.into_iter().flat_map(|row| {
        let missing = width - row.len();
        row.into_iter().chain(core::iter::repeat_n(Vec::new(), missing))
    });
    Ok(vec![HostTensor::from_strings(padded.collect(), shape)?, HostTensor::from_i64(&counts, x.shape().clone())?])
}

/// How often each listed run of tokens occurs in a row, where up to `max_skip_count` tokens lie between its tokens.
pub(super) fn tf_idf(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    let (rows, columns, shape) = match x.shape()[..] {
        [] => (1, 1, vec![]),
        [columns] => (1, columns, vec![]),
        [rows, columns] => (rows, columns, vec![rows]),
        _ => return failed(format!("{} is not a row or a matrix of tokens", x.shape())),
    };
    // Tokens as numbers: those of the pool, or nothing.
    let words = call.texts("pool_strings").unwrap_or_default();
    let (pool, tokens): (Vec<i64>, Vec<i64>) = match x.strings() {
        Some(strings) => {
            let mut known = HashMap::new();
            let pool = words.iter().map(|word| {
                let next = known.len() as i64;
                *known.entry(word.clone()).or_insert(next)
            });
            let pool: Vec<i64> = pool.collect();
            let tokens = strings.iter().map(|word| known.get(word).copied().unwrap_or(-1)).collect();
            (pool, tokens)
        }
        None => (call.ints("pool_int64s").unwrap_or_default().to_vec(), x.to_i64()?),
    };
    let indexes = call.ints("ngram_indexes").unwrap_or_default();
    let starts = call.ints("ngram_counts").unwrap_or_default();
    let width = indexes.iter().copied().max().map_or(0, |last| usize::try_from(last).unwrap_or(0) + 1);
    let range = |name: &str, default: i64| usize::try_from(call.int(name, default)).unwrap_or(0);
    let (shortest, longest, skips) =
        (range("min_gram_length", 1).max(1), range("max_gram_length", 1), range("max_skip_count", 0));
    // The column of each run.
    let mut columns_of: HashMap<&[i64], usize> = HashMap::new();
    let mut number = 0;
    for (i, &start) in starts.iter().enumerate() {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let end = starts.get(i + 1).map_or(pool.len(), |&end| usize::try_from(end).unwrap_or(0));
        let Some(part) = pool.get(start..end) else { return failed("ngram_counts does not fit the pool") };
        for run in part.chunks_exact(i + 1) {
            let Some(&column) = indexes.get(number) else { return failed("ngram_indexes is too short") };
            columns_of.insert(run, usize::try_from(column).unwrap_or(0));
            number += 1;
        }
    }
    let mut counts = vec![0f32; super::limit(Shape::from([rows, width]))?.elements()];
    let mut run = Vec::new();
    for (row, out) in tokens.chunks(columns.max(1)).zip(counts.chunks_mut(width.max(1))) {
        for length in shortest..=longest.min(starts.len()) {
            // Single tokens have nothing between them.
            for step in 1..=if length == 1 { 1 } else { skips + 1 } {
                for start in 0..row.len().saturating_sub((length - 1).saturating_mul(step)) {
                    run.clear();
                    run.extend((0..length).map(|i| row[start + i * step]));
                    if let Some(&column) = columns_of.get(&run[..]) {
                        out[column] += 1.0;
                    }
                }
            }
        }
    }
    // A weight belongs to a run, not to a column.
    let mut weights = vec![1f32; width];
    for (&column, &weight) in indexes.iter().zip(call.floats("weights").unwrap_or_default()) {
        weights[usize::try_from(column).unwrap_or(0)] = weight;
    }
    let weigh: fn(f32, f32) -> f32 = match call.text("mode", "TF") {
        "TF" => |count, _| count,
        "IDF" => |count, weight| if count > 0.0 { weight } else { 0.0 },
        "TFIDF" => |count, weight| count * weight,
        other => return failed(format!("{other:?} is not a mode")),
    };
    for (i, count) in counts.iter_mut().enumerate() {
        *count = weigh(*count, weights[i % width]);
    }
    let shape: Vec<usize> = shape.into_iter().chain([width]).collect();
    Ok(vec![HostTensor::from_f32(&counts, shape)?])
}
