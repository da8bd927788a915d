//! Device memory for work: makes room for tensors and scratch memory within the budget, and serves the app's memory
//! requests.

use core::time::Duration;
use std::sync::Arc;

use super::buffers::{DeviceBuffer, Purpose};
use super::device::Gpu;
use super::programs::Programs;
use super::residency::{Copy, Residents};
use super::work::{Outcome, Work};
use crate::error::RunError;
use crate::ir::Backend;
use crate::mailbox::{MemoryRequest, SyncDirection};
use crate::memory::ScratchUse;
use crate::plan::Effect;
use crate::record::WarmUpId;
use crate::tensor::Storage;

/// The tensors on the device, and the scratch buffer that all batches share.
pub(super) struct Workspace {
    gpu: Gpu,
    pub residents: Residents,
    scratch: Option<Arc<DeviceBuffer>>,
    scratch_use: ScratchUse,
}

impl Workspace {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self { gpu, residents: Residents::default(), scratch: None, scratch_use: ScratchUse::default() }
    }

    /// Starts a frame: takes in the copies to the host that have arrived, and frees scratch memory that was not used
    /// lately.
    pub(super) fn begin_frame(&mut self, now: Duration) {
        self.residents.now = now;
        self.residents.land(&self.gpu);
        let bytes = self.scratch.as_ref().map_or(0, |buffer| buffer.bytes);
        if self.scratch_use.end_frame(self.gpu.settings().pool_frames, bytes) {
            self.scratch = None;
        }
    }

    /// Whether the budget has room for storages, and for a program's own buffers and scratch memory. If not, other
    /// tensors are evicted, and the call has to be repeated in a later frame. An error if there will never be room.
    pub(super) fn admit(
        &mut self,
        programs: &mut Programs,
        slots: &[Arc<Storage>],
        id: Option<u64>,
    ) -> Result<bool, RunError> {
        self.admit_with(programs, slots, id, 0)
    }

    /// Like [`Workspace::admit`], for work that allocates `more` bytes beside its storages and its program.
    pub(super) fn admit_with(
        &mut self,
        programs: &mut Programs,
        slots: &[Arc<Storage>],
        id: Option<u64>,
        more: u64,
    ) -> Result<bool, RunError> {
        if self.gpu.settings().budget.is_none() {
            return Ok(true);
        }
        let program = id.and_then(|id| programs.get(id));
        let own = program.map_or(0, |program| program.missing_bytes(&self.gpu));
        let extra = more + own + self.fit_scratch(program.map_or(0, |program| program.plan.scratch_words));
        match self.residents.admit(&self.gpu, slots, extra) {
            // The buffers of other programs are the last to go.
            Err(RunError::Budget { .. }) if programs.keep_only(id) => self.residents.admit(&self.gpu, slots, extra),
            result => result,
        }
    }

    /// Under a budget, scratch memory has exactly the size that the plan needs: a buffer of another size returns to the
    /// pool. Returns the bytes that are missing.
    fn fit_scratch(&mut self, words: usize) -> u64 {
        let bytes = if words == 0 { 0 } else { self.gpu.bytes(Purpose::Scratch, words) };
        self.scratch = self.scratch.take().filter(|buffer| buffer.bytes == bytes);
        if self.scratch.is_some() { 0 } else { bytes }
    }

    /// The scratch buffer, with at least `words`. `None` for zero words.
    pub(super) fn scratch(&mut self, words: usize) -> Result<Option<Arc<DeviceBuffer>>, RunError> {
        self.scratch_use.used(words as u64 * 4);
        if self.scratch.as_ref().map_or(0, |buffer| buffer.bytes) < words as u64 * 4 {
            // The old buffer is freed first, so that the two do not have to fit at once.
            self.scratch = None;
            self.scratch = Some(self.gpu.allocate(Purpose::Scratch, words)?);
        }
        Ok(self.scratch.clone().filter(|_| words > 0))
    }

    /// Gives storages their buffers and contents. Returns the work that has to run first to generate contents.
    pub(super) fn bring_in(&mut self, slots: &[Arc<Storage>], effects: &[Effect]) -> Result<Vec<Work>, RunError> {
        self.residents.bring_in(&self.gpu, slots, effects).map(|generated| Work::fills(generated, None))
    }

    /// Gives the storages of a warm-up their buffers and contents. Returns the work that has to run first.
    pub(super) fn bring_in_for(&mut self, warm_up: WarmUpId, slots: &[Arc<Storage>]) -> Result<Vec<Work>, RunError> {
        // Without effects: the work does not really run, so no storage is overwritten.
        self.residents.bring_in(&self.gpu, slots, &[]).map(|generated| Work::fills(generated, Some(warm_up)))
    }

    /// Carries out a memory request.
    pub(super) fn serve(&mut self, programs: &mut Programs, request: MemoryRequest) -> Result<Outcome, RunError> {
        let done = match &request {
            MemoryRequest::Synchronize(storage, direction) => match self.synchronize(programs, storage, *direction)? {
                Some(fills) if !fills.is_empty() => return Ok(Outcome::After(fills, Work::Request(request))),
                fills => fills.is_some(),
            },
            MemoryRequest::Evict(storage) => self.residents.evict(&self.gpu, storage)?,
            MemoryRequest::Optimize => {
                self.residents.optimize(&self.gpu, true)?;
                true
            }
            MemoryRequest::Trim => {
                self.scratch = None;
                self.gpu.trim_all();
                true
            }
        };
        Ok(if done { Outcome::Done } else { Outcome::Wait(Work::Request(request)) })
    }

    /// Copies a storage to the side that lacks it. Returns the work that has to run first, or `None` while there is no
    /// room.
    fn synchronize(
        &mut self,
        programs: &mut Programs,
        storage: &Arc<Storage>,
        direction: SyncDirection,
    ) -> Result<Option<Vec<Work>>, RunError> {
        if storage.decided_home() == Some(Backend::Cpu) {
            return Ok(Some(Vec::new()));
        }
        let resident = storage.device(self.gpu.generation).is_some();
        if direction != SyncDirection::ToHost && !resident {
            storage.home(Backend::Gpu);
            let slots = core::slice::from_ref(storage);
            if !self.admit(programs, slots, None)? {
                return Ok(None);
            }
            let fills = self.bring_in(slots, &[])?;
            if !fills.is_empty() {
                return Ok(Some(fills));
            }
        }
        // A storage that came from the host just now needs no copy back, even if the settings dropped the host's copy.
        if direction != SyncDirection::ToDevice && resident && storage.source().is_none() {
            let started = self.residents.copy_to_host(&self.gpu, vec![(storage.clone(), Copy::Keep)])?;
            return Ok(started.then(Vec::new));
        }
        Ok(Some(Vec::new()))
    }

    /// Applies the eviction policy, and evicts down to the budget in case it was lowered.
    pub(super) fn keep_within_limits(&mut self) -> Result<(), RunError> {
        self.residents.optimize(&self.gpu, false)?;
        match self.residents.admit(&self.gpu, &[], 0) {
            // Everything that may be evicted is gone already.
            Ok(_) | Err(RunError::Budget { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The device is lost. Returns the storages whose content was lost with it.
    pub(super) fn lose_device(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.residents)
            .into_storages(&self.gpu)
            .filter_map(|storage| storage.lose_device().then(|| storage.id()))
            .collect()
    }
}
