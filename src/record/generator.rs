//! Contents that backends make by themselves, as recordings.

use std::sync::Arc;

use super::Part;
use crate::ir::{BinaryOp, Layout, Shape, UnaryOp};
use crate::tensor::{Generator, Storage};

/// The ops that fill `storage` with what a generator makes.
pub(crate) fn generate(generator: Generator, storage: &Arc<Storage>) -> Part {
    let mut part = Part::default();
    let dtype = storage.dtype();
    let wide = dtype.wide();
    let flat = Shape::from([storage.elements()]);
    let value = match generator {
        Generator::Full(bits) => {
            let scalar = part.scalar(wide, bits);
            part.broadcast(scalar, &flat)
        }
        Generator::Arange { start, step } => {
            let index = part.iota(storage.elements());
            let index = part.cast(index, wide);
            let (start, step) = (part.scalar(wide, start), part.scalar(wide, step));
            let (start, step) = (part.broadcast(start, &flat), part.broadcast(step, &flat));
            let scaled = part.binary(BinaryOp::Mul, index, step);
            part.binary(BinaryOp::Add, scaled, start)
        }
        Generator::Eye { columns } => {
            let rows = storage.elements() / columns.max(1);
            let square = Shape::from([rows, columns]);
            let row = part.iota(rows);
            let row = part.reshape(row, &Shape::from([rows, 1]));
            let column = part.iota(columns);
            let (row, column) = (part.broadcast(row, &square), part.broadcast(column, &square));
            let same = part.binary(BinaryOp::Eq, row, column);
            part.reshape(same, &flat)
        }
        Generator::Uniform { seed, low, high } => {
            let unit = part.random(UnaryOp::RandomUniform, storage.elements(), seed);
            part.scale_shift(unit, high - low, low)
        }
        Generator::Normal { seed, mean, deviation } => {
            let normal = part.random(UnaryOp::RandomNormal, storage.elements(), seed);
            part.scale_shift(normal, deviation, mean)
        }
    };
    let value = part.cast(value, dtype);
    let slot = part.slot(storage);
    part.store(value, slot, Layout::contiguous(flat));
    part
}
