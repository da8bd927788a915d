//! Memory upkeep after a frame's work: eviction, and reports of memory pressure.

use crossbeam_channel::Sender;

use super::workspace::Workspace;
use crate::error::RunError;
use crate::figures::TensorDiagnostics;
use crate::memory::{Gauge, MemoryNews, MemorySettings};

/// Keeps memory within its limits and reports pressure to the main world.
pub(super) struct Housekeeping {
    gauge: Gauge,
    diagnostics: TensorDiagnostics,
    news: Sender<MemoryNews>,
    /// Whether the last frame could not free memory. The error is reported once, not in every frame.
    failed: bool,
}

impl Housekeeping {
    pub(super) fn new(diagnostics: TensorDiagnostics, news: Sender<MemoryNews>) -> Self {
        Self { gauge: Gauge::default(), diagnostics, news, failed: false }
    }

    pub(super) fn end_frame(&mut self, workspace: &mut Workspace, settings: &MemorySettings) -> Result<(), RunError> {
        let result = workspace.keep_within_limits();
        let figures = self.diagnostics.figures();
        let used = figures.device_bytes + figures.scratch_bytes + figures.plan_bytes;
        if let Some(pressure) = self.gauge.update(used, settings.budget, settings.pressure) {
            // Fails only when the main world is gone.
            let _ = self.news.send(MemoryNews::Pressure(pressure));
        }
        let before = core::mem::replace(&mut self.failed, result.is_err());
        result.or_else(|error| if before { Ok(()) } else { Err(error) })
    }
}
