//! What crosses the border from the main world to the device: one mailbox, emptied once a frame, in order.

use std::sync::Arc;

use bevy::asset::AssetId;
use bevy::ecs::resource::Resource;
use bevy::image::Image;
use bevy::reflect::Reflect;

use crate::ir::Layout;
use crate::kernel::Access;
use crate::record::{Part, TuneSettings, WarmUpId};
use crate::tensor::{Storage, Tensor};

/// The main world's mailbox.
#[derive(Resource, Debug, Default)]
pub(crate) struct Outbox(Vec<Letter>);

impl Outbox {
    /// Adds a letter behind those that are there.
    pub(crate) fn post(&mut self, letter: impl Into<Letter>) {
        self.0.push(letter.into());
    }

    /// Empties the mailbox.
    pub(crate) fn take(&mut self) -> Vec<Letter> {
        core::mem::take(&mut self.0)
    }
}

/// One thing that the device is asked for.
#[derive(Debug)]
pub(crate) enum Letter {
    /// Recorded work.
    Work(Part),
    Memory(MemoryRequest),
    Image(ImageCopy),
    Pipelines(PipelineRequest),
}

macro_rules! letters {
    ($($variant:ident($content:ty)),*) => { $(impl From<$content> for Letter {
        fn from(content: $content) -> Self {
            Self::$variant(content)
        }
    })* };
}
letters!(Work(Part), Memory(MemoryRequest), Image(ImageCopy), Pipelines(PipelineRequest));

/// What the executor is asked to do about memory, after the work recorded in the same frame.
#[derive(Debug)]
pub(crate) enum MemoryRequest {
    Synchronize(Arc<Storage>, SyncDirection),
    /// To the host, and off the device.
    Evict(Arc<Storage>),
    /// The policy's work, now.
    Optimize,
    /// Every idle buffer goes.
    Trim,
}

/// Which way [`TensorMemory::synchronize`](crate::TensorMemory::synchronize) brings a tensor's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Reflect)]
pub enum SyncDirection {
    /// Onto the device, ahead of its next use.
    ToDevice,
    /// Onto the host, so that it survives a lost device and can leave the device without a copy.
    ToHost,
    /// Onto whichever side lacks it.
    Both,
}

/// A copy between a texture and pixels, for the device to carry out.
#[derive(Clone, Debug)]
pub(crate) struct ImageCopy {
    pub pixels: Tensor,
    pub rows: PixelRows,
    pub image: AssetId<Image>,
    pub way: CopyWay,
}

impl ImageCopy {
    /// Whether an earlier copy is of no use after this one.
    pub(crate) fn replaces(&self, earlier: &Self) -> bool {
        let to = |copy: &Self| match copy.way {
            CopyWay::IntoTensor => (Some((copy.pixels.storage_id(), copy.rows)), None),
            CopyWay::IntoImage => (None, Some(copy.image)),
        };
        to(self) == to(earlier)
    }
}

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyWay {
    /// Before the frame's tensor work.
    IntoTensor,
    /// After it.
    IntoImage,
}

/// How pixels lie in a tensor's memory, in words: each is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PixelRows {
    pub first: usize,
    /// From row to row.
    pub pitch: usize,
    pub width: usize,
    pub height: usize,
}

impl PixelRows {
    /// Of `u8 [height, width, 4]`; `None` where its pixels are not words side by side.
    pub(crate) fn of(layout: &Layout) -> Option<Self> {
        let (&[height, width, 4], &[row, pixel, 1]) = (&layout.shape[..], &layout.strides[..]) else { return None };
        let pitch = if height == 1 { width * 4 } else { usize::try_from(row).ok()? };
        let words = layout.offset.is_multiple_of(4) && pitch.is_multiple_of(4) && (pixel == 4 || width == 1);
        (words && pitch >= width * 4).then_some(Self { first: layout.offset / 4, pitch: pitch / 4, width, height })
    }
}

/// What the main world asks of the executor.
#[derive(Debug)]
pub(crate) enum PipelineRequest {
    Rebuild(u64),
    Evict,
    WarmUp { id: WarmUpId, priority: i32, part: Part },
    Precompile { id: WarmUpId, priority: i32, list: Vec<ListedKernel> },
    Tune { settings: TuneSettings, part: Part },
    Save,
}

/// What a pipeline is made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ListedKernel {
    pub kernel: Arc<str>,
    pub variant: Arc<str>,
    pub wgsl: Arc<str>,
    pub entry: Arc<str>,
    /// Whether it runs with bounds checked and memory cleared.
    pub checked: bool,
    pub params_in_storage: bool,
    pub accesses: Vec<Access>,
    pub counts_faults: bool,
}
