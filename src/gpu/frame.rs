//! What the executor is given: the input of a frame, the settings, and the channels to report to.

use core::time::Duration;
use std::path::PathBuf;

use bevy::prelude::*;
use crossbeam_channel::Sender;

use super::image_copies::ImageJob;
use crate::error::{RunError, TensorFault};
use crate::mailbox::{MemoryRequest, PipelineRequest};
use crate::memory::{MemoryNews, MemorySettings};
use crate::record::{Part, TuneSettings};

/// Channels to the main world.
#[derive(Clone)]
pub(crate) struct Outlets {
    pub faults: Sender<TensorFault>,
    pub news: Sender<MemoryNews>,
}

impl Outlets {
    /// Reports an error to the app.
    pub(super) fn report(&self, error: RunError) {
        // Fails only when the main world is gone.
        let _ = self.faults.send(TensorFault::Run(error));
    }
}

/// Settings of the GPU backend that come from the plugin.
#[derive(Resource, Clone)]
pub(crate) struct GpuSettings {
    pub synchronous_pipelines: bool,
    pub fuse: bool,
    /// Maximum number of cached pipelines.
    pub capacity: usize,
    /// The folder of the cache file.
    pub cache: Option<PathBuf>,
    pub tune: Option<TuneSettings>,
    pub cpu_fallback: Option<Duration>,
    /// The app's memory settings at the start.
    pub memory: MemorySettings,
}

/// The input of one frame.
#[derive(Default)]
pub(crate) struct Frame {
    /// Recordings and memory requests, in order.
    pub work: Vec<FrameWork>,
    pub images: Vec<ImageJob>,
    pub pipelines: Vec<PipelineRequest>,
    pub settings: MemorySettings,
    /// Real time since the start of the app.
    pub now: Duration,
}

/// A piece of a frame's work.
#[expect(clippy::large_enum_variant, reason = "most pieces are recordings")]
pub(crate) enum FrameWork {
    Part(Part),
    Request(MemoryRequest),
}

impl Frame {
    /// Adds a memory request, unless it has been made since the last recording. The renderer may stand still while the app
    /// asks every frame.
    pub(crate) fn add_request(&mut self, request: MemoryRequest) {
        let requests = self.work.iter().rev().map_while(|work| match work {
            FrameWork::Request(request) => Some(request),
            FrameWork::Part(_) => None,
        });
        if !requests.into_iter().any(|earlier| earlier.is(&request)) {
            self.work.push(FrameWork::Request(request));
        }
    }

    /// Takes the recordings. Memory requests are dropped.
    pub(crate) fn take_parts(&mut self) -> Vec<Part> {
        let work = core::mem::take(&mut self.work).into_iter();
        work.filter_map(|work| match work {
            FrameWork::Part(part) => Some(part),
            FrameWork::Request(_) => None,
        })
        .collect()
    }

    /// Takes all work. The settings and the time stay.
    pub(crate) fn take(&mut self) -> Self {
        let (settings, now) = (self.settings, self.now);
        core::mem::replace(self, Self { settings, now, ..Self::default() })
    }
}
