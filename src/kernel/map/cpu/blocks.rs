//! Rectangular tiles, for operands that are transposed relative to each other. Every operand is then accessed in whole
//! cache lines.

use smallvec::SmallVec;

use super::split::Chunk;
use super::{MapInput, MapOutput, MapSource, Walk};
use crate::kernel::host::memory::ElementsMut;

/// Columns of a tile, along the last axis.
const COLUMNS: usize = 32;
/// Rows of a tile, along the axis that is contiguous in the transposed operand: one cache line of floats.
const ROWS: usize = 16;

/// A position in one operand.
#[derive(Clone)]
struct Place {
    /// Position of the rectangle's first element.
    at: isize,
    /// Position of the first element of the current plane.
    plane: isize,
    row: isize,
    column: isize,
    /// Strides of the other axes.
    outer: SmallVec<[isize; 4]>,
}

/// Iterates over rectangles of two axes.
pub(crate) struct Blocks<'a> {
    inputs: &'a [MapInput<'a>],
    outputs: &'a [MapOutput<'a>],
    /// Sizes of the two axes and of the others.
    size: [usize; 2],
    outer: SmallVec<[usize; 4]>,
    /// The position of the tile within its plane, and the index of the plane.
    position: [usize; 2],
    index: SmallVec<[usize; 4]>,
    /// Rows and columns of the tile. Zero before the first tile.
    tile: [usize; 2],
    reads: SmallVec<[Place; 4]>,
    writes: SmallVec<[Place; 1]>,
    ended: bool,
}

impl<'a> Blocks<'a> {
    /// Returns `None` unless some operand is strided along the last axis and contiguous along another one.
    pub(crate) fn new(chunk: &Chunk, inputs: &'a [MapInput], outputs: &'a [MapOutput]) -> Option<Self> {
        let shape = &chunk.shape;
        let last = shape.len().checked_sub(1).filter(|&last| last > 0 && shape[last] >= 8)?;
        let strides = inputs.iter().map(|i| i.strides).chain(outputs.iter().map(|o| o.strides));
        let turned = |strides: &[isize]| {
            let strides = &strides[chunk.axis..];
            let axis = (0..last).find(|&axis| strides[axis] == 1 && shape[axis] >= 8);
            axis.filter(|_| strides[last].abs() >= 8)
        };
        let axis = strides.filter_map(turned).next()?;
        let others =
            |list: &[isize]| -> SmallVec<[isize; 4]> { (0..last).filter(|&a| a != axis).map(|a| list[a]).collect() };
        let place = |strides: &[isize], at: isize| {
            let strides = &strides[chunk.axis..];
            Place { at, plane: at, row: strides[axis], column: strides[last], outer: others(strides) }
        };
        let outer: SmallVec<[usize; 4]> = (0..last).filter(|&a| a != axis).map(|a| shape[a]).collect();
        Some(Self {
            inputs,
            outputs,
            size: [shape[axis], shape[last]],
            index: SmallVec::from_elem(0, outer.len()),
            outer,
            position: [0, 0],
            tile: [0, 0],
            reads: inputs.iter().zip(&chunk.input_offsets).map(|(i, &at)| place(i.strides, at)).collect(),
            writes: outputs.iter().zip(&chunk.output_offsets).map(|(o, &at)| place(o.strides, at)).collect(),
            ended: shape.contains(&0),
        })
    }

    /// Advances to the next plane, or to the end.
    fn next_plane(&mut self) {
        for axis in (0..self.outer.len()).rev() {
            self.index[axis] += 1;
            let back = if self.index[axis] == self.outer[axis] { self.outer[axis] } else { 0 };
            for place in self.reads.iter_mut().chain(&mut self.writes) {
                place.plane += place.outer[axis] * (1 - back as isize);
            }
            if back == 0 {
                return;
            }
            self.index[axis] = 0;
        }
        self.ended = true;
    }
}

impl<'a> Walk<'a> for Blocks<'a> {
    fn next(&mut self) -> usize {
        // Columns first, then rows, then planes.
        if self.tile != [0, 0] {
            self.position[1] += self.tile[1];
            if self.position[1] == self.size[1] {
                self.position = [self.position[0] + self.tile[0], 0];
            }
            if self.position[0] == self.size[0] {
                self.position = [0, 0];
                self.next_plane();
            }
        }
        if self.ended {
            return 0;
        }
        let [row, column] = self.position;
        for place in self.reads.iter_mut().chain(&mut self.writes) {
            place.at = place.plane + row as isize * place.row + column as isize * place.column;
        }
        self.tile = [ROWS.min(self.size[0] - row), COLUMNS.min(self.size[1] - column)];
        self.tile[0] * self.tile[1]
    }

    fn load(&mut self, memories: &[ElementsMut], input: usize, tile: &mut [u32]) {
        let columns = self.tile[1].min(tile.len());
        let mut place = &self.reads[input];
        let elements = match self.inputs[input].source {
            MapSource::Elements(elements) => elements,
            MapSource::InPlace(output) => {
                place = &self.writes[output];
                memories[self.outputs[output].memory].view()
            }
            MapSource::Iota => {
                for (row, cells) in tile.chunks_mut(columns).enumerate() {
                    for (column, cell) in cells.iter_mut().enumerate() {
                        *cell = (place.at + row as isize * place.row + column as isize * place.column) as u32;
                    }
                }
                return;
            }
        };
        if place.row == 1 && place.column != 1 {
            return elements.load_turned(place.at, place.column, columns, tile);
        }
        for (row, cells) in tile.chunks_mut(columns).enumerate() {
            elements.load(place.at + row as isize * place.row, place.column, cells);
        }
    }

    fn store(&mut self, memories: &mut [ElementsMut], output: usize, tile: &[u32]) {
        let (place, columns) = (&self.writes[output], self.tile[1]);
        let memory = &mut memories[self.outputs[output].memory];
        if place.row == 1 && place.column != 1 {
            return memory.store_turned(place.at, place.column, columns, tile);
        }
        for (row, cells) in tile.chunks(columns).enumerate() {
            memory.store(place.at + row as isize * place.row, place.column, cells);
        }
    }
}
