//! The arguments of a CPU twin: its operands, and where its results go.

use smallvec::SmallVec;

use super::fused::{Finish, Places};
use super::memory::{ElementsMut, Input};
use super::{CpuPool, HostWords};
use crate::ir::Source;
use crate::kernel::{Fused, Step};

/// One call of a CPU twin.
pub(crate) struct CpuCall<'a> {
    pub step: &'a Step,
    /// The kernel's inputs. Input 0 is the result of the prologue, if there is one.
    pub inputs: &'a [Input<'a>],
    /// The kernel's scalars.
    pub scalars: &'a [u32],
    pub pool: &'a CpuPool,
    /// The outputs of the step.
    pub places: Places<'a>,
    /// Holds the results if no output can hold them until the epilogue has run.
    pub value: &'a mut [u32],
    /// The output that holds them otherwise.
    pub target: Option<usize>,
    pub epilogue: Option<Epilogue<'a>>,
    /// The storages that the step reads, by slot.
    pub storages: &'a [(u32, &'a HostWords)],
}

/// Elementwise work applied to the results.
pub(crate) struct Epilogue<'a> {
    pub fused: &'a Fused,
    pub inputs: &'a [Input<'a>],
    pub scalars: SmallVec<[u32; 4]>,
}

/// What most twins need: inputs, and words for the only result.
pub(crate) struct Values<'c, 'a> {
    pub inputs: &'a [Input<'a>],
    /// Words of the result, in the 32-bit type of its class.
    pub out: &'c mut [u32],
    pub scalars: &'a [u32],
    pub pool: &'a CpuPool,
}

impl<'a> CpuCall<'a> {
    /// The inputs, and memory for all results in order. Results are 32 bits wide.
    pub(crate) fn values(&mut self) -> Values<'_, 'a> {
        let out = match self.target {
            Some(target) => {
                let layout = &self.step.outputs[target].layout;
                self.places.memories[target].words(layout.offset..layout.offset + layout.elements())
            }
            None => &mut *self.value,
        };
        Values { inputs: self.inputs, out, scalars: self.scalars, pool: self.pool }
    }

    /// Takes all outputs, for twins that write them directly.
    pub(crate) fn take_places(&mut self) -> Places<'a> {
        let Places { outputs, sources, memories } = &mut self.places;
        Places { outputs, sources, memories: core::mem::take(memories) }
    }

    /// The words of the memory that quantised blocks are written to, and the index of the first block in it.
    pub(crate) fn blocks(&mut self) -> Option<(&mut [u32], usize)> {
        let output = self.step.outputs.first()?;
        let format = output.dtype.block_format()?;
        match self.places.memories.first_mut()? {
            ElementsMut::U32(words) => Some((words, output.layout.offset / format.elements)),
            ElementsMut::F32(_)
            | ElementsMut::F16(_)
            | ElementsMut::BF16(_)
            | ElementsMut::I32(_)
            | ElementsMut::I8(_)
            | ElementsMut::U8(_)
            | ElementsMut::Bool(_) => None,
        }
    }

    /// The storage of an input, which may have cached it in packed form.
    pub(crate) fn storage(&self, input: usize) -> Option<&'a HostWords> {
        let source = self.step.inputs.get(input)?.source;
        self.storages.iter().find(|storage| Source::Slot(storage.0) == source).map(|storage| storage.1)
    }

    /// Takes the epilogue if it can be computed piece by piece. The twin then applies it to each piece of its results
    /// while that is in the cache.
    pub(crate) fn take_finish(&mut self) -> Option<Finish<'a>> {
        let [output] = &self.step.outputs[..] else { return None };
        let epilogue = self.epilogue.as_ref().filter(|_| self.target == Some(0))?;
        let finish = Finish::new(epilogue.fused, epilogue.inputs, output, epilogue.scalars.clone())?;
        self.epilogue = None;
        Some(finish)
    }
}
