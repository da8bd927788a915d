//! Tiles that are row-major ranges of the iteration space.

use smallvec::SmallVec;

use super::split::Chunk;
use super::{MapInput, MapOutput, MapSource, TILE, Walk};
use crate::kernel::host::memory::ElementsMut;
use crate::kernel::host::walk::Cursor;

/// Iterates over operands that all move together along the last axes.
pub(crate) struct Lines<'a> {
    inputs: &'a [MapInput<'a>],
    outputs: &'a [MapOutput<'a>],
    reads: SmallVec<[Cursor; 4]>,
    writes: SmallVec<[Cursor; 1]>,
    /// Number of elements after the tile.
    left: usize,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(chunk: &Chunk, inputs: &'a [MapInput], outputs: &'a [MapOutput]) -> Self {
        let reads = inputs
            .iter()
            .zip(&chunk.input_offsets)
            .map(|(input, &offset)| Cursor::new(&chunk.shape, &input.strides[chunk.axis..], offset))
            .collect();
        let writes = outputs
            .iter()
            .zip(&chunk.output_offsets)
            .map(|(output, &offset)| Cursor::new(&chunk.shape, &output.strides[chunk.axis..], offset))
            .collect();
        Self { inputs, outputs, reads, writes, left: chunk.shape.iter().product() }
    }
}

impl<'a> Walk<'a> for Lines<'a> {
    fn next(&mut self) -> usize {
        let count = TILE.min(self.left);
        self.left -= count;
        count
    }

    fn borrow(&mut self, input: usize, count: usize) -> Option<&'a [u32]> {
        let MapSource::Elements(elements) = self.inputs[input].source else { return None };
        let words = elements.words()?;
        let at = self.reads[input].contiguous_run(count)?;
        Some(&words[at..at + count])
    }

    fn borrow_out<'m>(
        &mut self,
        memories: &'m mut [ElementsMut],
        output: usize,
        count: usize,
    ) -> Option<&'m mut [u32]> {
        let memory = &mut memories[self.outputs[output].memory];
        memory.view().words()?;
        let at = self.writes[output].contiguous_run(count)?;
        Some(memory.words(at..at + count))
    }

    fn load(&mut self, memories: &[ElementsMut], input: usize, tile: &mut [u32]) {
        match self.inputs[input].source {
            MapSource::Elements(elements) => {
                self.reads[input].runs(tile.len(), |at, stride, range| elements.load(at, stride, &mut tile[range]));
            }
            MapSource::InPlace(output) => {
                let memory = memories[self.outputs[output].memory].view();
                self.writes[output].peek(tile.len(), |at, stride, range| memory.load(at, stride, &mut tile[range]));
            }
            MapSource::Iota => self.reads[input].runs(tile.len(), |at, stride, range| {
                for (i, value) in tile[range].iter_mut().enumerate() {
                    *value = (at + i as isize * stride) as u32;
                }
            }),
        }
    }

    fn store(&mut self, memories: &mut [ElementsMut], output: usize, tile: &[u32]) {
        let memory = &mut memories[self.outputs[output].memory];
        self.writes[output].runs(tile.len(), |at, stride, range| memory.store(at, stride, &tile[range]));
    }
}
