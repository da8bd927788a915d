//! The bind groups of a program, cached per set of buffers.

use core::num::NonZeroU64;
use std::sync::Arc;

use smallvec::SmallVec;

use super::buffers::DeviceBuffer;
use super::device::Gpu;
use super::program::{Instance, Program, fault_stride};
use crate::error::RunError;
use crate::figures::Count;
use crate::ir::Source;
use crate::kernel::{Binding, Launch};

/// Maximum number of buffer sets with cached bind groups per plan. Several models of the same structure use one each.
const INSTANCES: usize = 8;

/// A buffer range: buffer, offset and size in bytes.
type BufferRange = (wgpu::Buffer, u64, Option<NonZeroU64>);

impl Program {
    /// Selects the bind groups for these buffers, and creates them on first use. The program must be ready.
    pub(crate) fn bind(
        &mut self,
        gpu: &Gpu,
        slots: &[Arc<DeviceBuffer>],
        scratch: Option<&Arc<DeviceBuffer>>,
    ) -> Result<(), RunError> {
        let key: SmallVec<[u64; 8]> = slots.iter().chain(scratch).map(|buffer| buffer.id).collect();
        if let Some(at) = self.instances.iter().position(|instance| instance.key == key) {
            let instance = self.instances.remove(at);
            self.instances.push(instance);
        } else {
            let groups =
                (0..self.launches.len()).map(|i| self.group(gpu, i, slots, scratch)).collect::<Result<_, _>>()?;
            if self.instances.len() == INSTANCES {
                self.instances.remove(0);
            }
            self.instances.push(Instance { key, groups });
        }
        Ok(())
    }

    /// The bind groups selected by the last [`Program::bind`], by launch.
    pub(crate) fn groups(&self) -> &[wgpu::BindGroup] {
        self.instances.last().map_or(&[], |instance| &instance.groups)
    }

    /// Removes the bind groups selected by the last [`Program::bind`].
    pub(crate) fn unbind(&mut self) {
        self.instances.pop();
    }

    /// Creates the bind group of a launch: parameters, operands, fault counter.
    fn group(
        &self,
        gpu: &Gpu,
        at: usize,
        slots: &[Arc<DeviceBuffer>],
        scratch: Option<&Arc<DeviceBuffer>>,
    ) -> Result<wgpu::BindGroup, RunError> {
        let launch = &self.launches[at].launch;
        let layout = &self.pipelines.get(at).ok_or_else(|| unbound(launch))?.layout;
        let mut ranges: Vec<BufferRange> = vec![self.params_range(at)?];
        for binding in &launch.bindings {
            ranges.push(self.operand_range(at, binding, slots, scratch)?);
        }
        if launch.counts_faults {
            ranges.push(self.fault_range(gpu, at)?);
        }
        let entries: Vec<wgpu::BindGroupEntry> = ranges.iter().enumerate().map(entry).collect();
        gpu.counters.bind_groups_made.add(1);
        Ok(gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&format!("tensor:{}", launch.name)),
            layout,
            entries: &entries,
        }))
    }

    fn params_range(&self, at: usize) -> Result<BufferRange, RunError> {
        let launch = &self.launches[at].launch;
        let buffer = self.own.as_ref().and_then(|own| own.params.as_ref()).ok_or_else(|| unbound(launch))?;
        let size = NonZeroU64::new(launch.params.len() as u64 * 4);
        Ok((buffer.buffer.clone(), (at * self.params.stride) as u64 * 4, size))
    }

    fn operand_range(
        &self,
        at: usize,
        binding: &Binding,
        slots: &[Arc<DeviceBuffer>],
        scratch: Option<&Arc<DeviceBuffer>>,
    ) -> Result<BufferRange, RunError> {
        let planned = &self.launches[at];
        let missing = || unbound(&planned.launch);
        let own = self.own.as_ref().ok_or_else(missing)?;
        // The requested size, not the buffer's: kernels may ask for the length.
        let whole = |buffer: &Arc<DeviceBuffer>| (buffer.buffer.clone(), 0, NonZeroU64::new(buffer.size));
        let (buffer, start, size) = match binding.source {
            Source::Slot(slot) => whole(&slots[slot as usize]),
            Source::Constant(constant) => whole(&own.constants[constant as usize]),
            Source::Scratch(value) => {
                let region = self.plan.regions[value as usize];
                (scratch.ok_or_else(missing)?.buffer.clone(), region.offset as u64 * 4, rounded(region.words))
            }
            Source::Iota | Source::Fused => return Err(missing()),
        };
        let (start, size) = match planned.windows.iter().find(|(source, _)| *source == binding.source) {
            Some((_, words)) => (start + words.start as u64 * 4, rounded(words.len())),
            None => (start, size),
        };
        Ok(match binding.part {
            Some((first, words)) => (buffer, start + first as u64 * 4, NonZeroU64::new(words as u64 * 4)),
            None => (buffer, start, size),
        })
    }

    fn fault_range(&self, gpu: &Gpu, at: usize) -> Result<BufferRange, RunError> {
        let planned = &self.launches[at];
        let index = self.faulting.iter().position(|&i| i == at).unwrap_or(0);
        let buffer = self.faults().ok_or_else(|| unbound(&planned.launch))?;
        let offset = (index * fault_stride(gpu)) as u64 * 4;
        // Two words: positions out of range and threads whose loops were ended, or NaNs and infinities.
        Ok((buffer.buffer.clone(), offset, NonZeroU64::new(8)))
    }
}

fn entry((i, (buffer, offset, size)): (usize, &BufferRange)) -> wgpu::BindGroupEntry<'_> {
    let (offset, size) = (*offset, *size);
    let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
    wgpu::BindGroupEntry { binding: i as u32, resource }
}

/// Bytes of `words`, rounded up to 16 as buffers are. Scratch regions start and end at larger multiples.
fn rounded(words: usize) -> Option<NonZeroU64> {
    NonZeroU64::new((words as u64 * 4).next_multiple_of(16))
}

fn unbound(launch: &Launch) -> RunError {
    RunError::Device(format!("a buffer of kernel \"{}\" is missing", launch.name))
}
