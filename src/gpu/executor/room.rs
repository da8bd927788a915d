//! Room on the device: who is let in, what the app asks about memory, and the housekeeping after a frame.

use std::sync::Arc;

use super::super::buffers::Purpose;
use super::super::residency::Copy;
use super::{GpuExecutor, Outcome, Work, fills};
use crate::error::RunError;
use crate::ir::Backend;
use crate::mailbox::{MemoryRequest, SyncDirection};
use crate::memory::{MemoryNews, MemorySettings};
use crate::plan::Effect;
use crate::tensor::Storage;

impl GpuExecutor {
    /// Whether there is room for storages, and for a plan's own buffers and scratch memory.
    pub(super) fn admit(&mut self, slots: &[Arc<Storage>], id: Option<u64>) -> Result<bool, RunError> {
        if self.gpu.settings().budget.is_none() {
            return Ok(true);
        }
        let compiled = id.and_then(|id| self.compiled.get(&id));
        let own = compiled.map_or(0, |compiled| compiled.missing_bytes(&self.gpu));
        let scratch = match compiled.map_or(0, |compiled| compiled.plan.scratch_words) {
            0 => 0,
            words => self.gpu.bytes(Purpose::Scratch, words),
        };
        // Scratch memory fits the plan where every byte counts; what another plan needed goes to the pool.
        self.scratch = self.scratch.take().filter(|buffer| buffer.bytes == scratch);
        let extra = own + if self.scratch.is_some() { 0 } else { scratch };
        match self.residents.admit(&self.gpu, slots, extra) {
            // Buffers of plans that are not in use are the last that can go.
            Err(RunError::Budget { .. }) if self.compiled.keys().any(|&other| Some(other) != id) => {
                self.compiled.retain(|&other, _| Some(other) == id);
                self.residents.admit(&self.gpu, slots, extra)
            }
            result => result,
        }
    }

    /// Gives storages their contents, and says what has to run first for that.
    pub(super) fn bring_in(&mut self, slots: &[Arc<Storage>], id: u64) -> Result<Vec<Work>, RunError> {
        let effects: &[Effect] = self.compiled.get(&id).map_or(&[], |compiled| &compiled.effects);
        let make = self.residents.bring_in(&self.gpu, slots, effects)?;
        Ok(fills(make))
    }

    /// Carries out a request about memory. What goes wrong is reported.
    pub(super) fn serve(&mut self, request: MemoryRequest) -> Outcome {
        let result = match &request {
            MemoryRequest::Synchronize(storage, direction) => match self.synchronize(storage, *direction) {
                Ok(Some(fills)) if !fills.is_empty() => return Outcome::After(fills, Work::Request(request)),
                result => result.map(|fills| fills.is_some()),
            },
            MemoryRequest::Evict(storage) => self.residents.evict(&self.gpu, storage),
            MemoryRequest::Optimize => self.residents.optimize(&self.gpu, true).map(|()| true),
            MemoryRequest::Trim => {
                self.scratch = None;
                self.gpu.trim_all();
                Ok(true)
            }
        };
        match result {
            Ok(true) => return Outcome::Done,
            Ok(false) => return Outcome::Wait(Work::Request(request)),
            Err(error) => self.report(error),
        }
        Outcome::Done
    }

    /// Brings a storage where it is not: what has to run first for that, or `None` while there is no room.
    fn synchronize(&mut self, storage: &Arc<Storage>, direction: SyncDirection) -> Result<Option<Vec<Work>>, RunError> {
        if storage.decided_home() == Some(Backend::Cpu) {
            return Ok(Some(Vec::new()));
        }
        let resident = storage.device(self.gpu.generation).is_some();
        if direction != SyncDirection::ToHost && !resident {
            storage.home(Backend::Gpu);
            let slots = core::slice::from_ref(storage);
            if !self.admit(slots, None)? {
                return Ok(None);
            }
            let fills = fills(self.residents.bring_in(&self.gpu, slots, &[])?);
            if !fills.is_empty() {
                return Ok(Some(fills));
            }
        }
        // What came from the host just now may have lost its copy there, as the settings ask; that one was never stale.
        if direction != SyncDirection::ToDevice && resident && storage.source().is_none() {
            let started = self.residents.copy_to_host(&self.gpu, vec![(storage.clone(), Copy::Keep)])?;
            return Ok(started.then(Vec::new));
        }
        Ok(Some(Vec::new()))
    }

    /// After the frame's work: the policy, a budget that was lowered, and word of pressure.
    pub(super) fn keep_house(&mut self, settings: &MemorySettings) {
        let result =
            self.residents.optimize(&self.gpu, false).and_then(|()| match self.residents.admit(&self.gpu, &[], 0) {
                // Everything that may go has gone.
                Err(RunError::Budget { .. }) => Ok(true),
                result => result,
            });
        if let Err(error) = result {
            self.report(error);
        }
        let figures = self.diagnostics.figures();
        let used = figures.device_bytes + figures.scratch_bytes + figures.plan_bytes;
        if let Some(pressure) = self.gauge.update(used, settings.budget, settings.pressure) {
            // The main world may have ended.
            let _ = self.outlets.news.send(MemoryNews::Pressure(pressure));
        }
    }
}
