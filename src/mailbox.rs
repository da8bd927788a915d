//! The mailbox from the main world to the device. It is emptied once per frame, in order.

mod held;

use std::sync::Arc;

use bevy::asset::AssetId;
use bevy::ecs::resource::Resource;
use bevy::image::Image;
use bevy::reflect::Reflect;
use bevy::render::storage::ShaderBuffer;

use crossbeam_channel::Sender;

use crate::error::BindingError;
use crate::ir::Layout;
use crate::kernel::{Access, LoopBound};
use crate::record::{Part, TuneSettings, WarmUpId};
use crate::tensor::{Storage, Tensor};

pub(crate) use held::{Held, Released, Rules};

/// The mailbox in the main world.
#[derive(Resource, Debug, Default)]
pub(crate) struct Outbox {
    letters: Vec<Letter>,
    /// Number of letters that earlier frames have put in order and nobody has taken, because the renderer stands still.
    sealed: usize,
}

impl Outbox {
    /// Appends a letter.
    pub(crate) fn post(&mut self, letter: impl Into<Letter>) {
        self.letters.push(letter.into());
    }

    /// Number of recordings in the mailbox.
    pub(crate) fn recordings(&self) -> u64 {
        self.letters.iter().filter(|letter| matches!(letter, Letter::Work(_))).count() as u64
    }

    /// Takes all letters out of the mailbox.
    pub(crate) fn take(&mut self) -> Vec<Letter> {
        self.sealed = 0;
        core::mem::take(&mut self.letters)
    }

    /// Takes the letters of this frame out of the mailbox, to put them in order. Those of earlier frames stay in front.
    pub(crate) fn take_new(&mut self) -> Vec<Letter> {
        self.letters.split_off(self.sealed.min(self.letters.len()))
    }

    /// Ends a frame: all letters are in order.
    pub(crate) fn seal(&mut self) {
        self.sealed = self.letters.len();
    }
}

/// One request to the device.
#[derive(Debug)]
pub(crate) enum Letter {
    /// Recorded work.
    Work(Part),
    Memory(MemoryRequest),
    Image(ImageCopy),
    Pipelines(PipelineRequest),
    Binding(BindingRequest),
}

macro_rules! letters {
    ($($variant:ident($content:ty)),*) => { $(impl From<$content> for Letter {
        fn from(content: $content) -> Self {
            Self::$variant(content)
        }
    })* };
}
letters!(Work(Part), Memory(MemoryRequest), Image(ImageCopy), Pipelines(PipelineRequest), Binding(BindingRequest));

/// A memory request. The executor handles it after the work that was recorded in the same frame.
#[derive(Debug)]
pub(crate) enum MemoryRequest {
    Synchronize(Arc<Storage>, SyncDirection),
    /// Moves the storage to the host and frees its device memory.
    Evict(Arc<Storage>),
    /// Applies the memory policy now.
    Optimize,
    /// Frees every idle buffer.
    Trim,
}

impl MemoryRequest {
    /// Whether the two ask for the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Synchronize(a, way), Self::Synchronize(b, other_way)) => Arc::ptr_eq(a, b) && way == other_way,
            (Self::Evict(a), Self::Evict(b)) => Arc::ptr_eq(a, b),
            (Self::Optimize, Self::Optimize) | (Self::Trim, Self::Trim) => true,
            _ => false,
        }
    }
}

/// The copy direction of [`TensorMemory::synchronize`](crate::memory::TensorMemory::synchronize).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Reflect)]
pub enum SyncDirection {
    /// Copies to the device before the next use.
    ToDevice,
    /// Copies to the host. The content then survives a lost device, and evicting the tensor needs no copy.
    ToHost,
    /// Copies to whichever side lacks the content.
    Both,
}

/// A request about storage buffers that this crate and other shaders share. Handled before the frame's work.
#[derive(Debug)]
pub(crate) enum BindingRequest {
    /// Makes the storage's buffer the content of a storage buffer asset.
    Share(SharedTensor),
    /// Ends that.
    Withdraw(AssetId<ShaderBuffer>),
    /// Makes the buffer of an asset the device memory of a storage.
    Borrow { asset: AssetId<ShaderBuffer>, tensor: Tensor },
}

/// A tensor whose buffer other shaders use.
#[derive(Clone, Debug)]
pub(crate) struct SharedTensor {
    pub asset: AssetId<ShaderBuffer>,
    pub storage: Arc<Storage>,
    /// The name of its binding, for messages.
    pub name: Arc<str>,
    /// Whether other shaders write it.
    pub writable: bool,
}

/// A copy between a texture and a pixel tensor, carried out on the device.
#[derive(Clone, Debug)]
pub(crate) struct ImageCopy {
    pub pixels: Tensor,
    pub rows: PixelRows,
    pub image: AssetId<Image>,
    pub way: CopyWay,
}

impl ImageCopy {
    /// Whether this copy makes an earlier one unnecessary.
    pub(crate) fn replaces(&self, earlier: &Self) -> bool {
        let to = |copy: &Self| match copy.way {
            CopyWay::IntoTensor => (Some((copy.pixels.storage_id(), copy.rows)), None),
            CopyWay::IntoImage => (None, Some(copy.image)),
        };
        to(self) == to(earlier)
    }
}

/// The direction of an image copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyWay {
    /// Image to tensor, before the tensor work of the frame.
    IntoTensor,
    /// Tensor to image, after the tensor work of the frame.
    IntoImage,
}

/// The layout of pixels in a tensor's memory, in 32-bit words. Each pixel is one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PixelRows {
    pub first: usize,
    /// Distance between two rows.
    pub pitch: usize,
    pub width: usize,
    pub height: usize,
}

impl PixelRows {
    /// The pixel rows of a `u8 [height, width, 4]` layout. `None` if the pixels of a row are not adjacent words.
    pub(crate) fn of(layout: &Layout) -> Option<Self> {
        let (&[height, width, 4], &[row, pixel, 1]) = (&layout.shape[..], &layout.strides[..]) else { return None };
        let pitch = if height == 1 { width * 4 } else { usize::try_from(row).ok()? };
        let words = layout.offset.is_multiple_of(4) && pitch.is_multiple_of(4) && (pixel == 4 || width == 1);
        (words && pitch >= width * 4).then_some(Self { first: layout.offset / 4, pitch: pitch / 4, width, height })
    }
}

/// A request from the main world about pipelines.
#[derive(Debug)]
pub(crate) enum PipelineRequest {
    Rebuild(u64),
    Evict,
    WarmUp { id: WarmUpId, priority: i32, part: Part },
    Precompile { id: WarmUpId, priority: i32, list: Vec<ListedKernel> },
    Tune { settings: TuneSettings, part: Part },
    Save,
}

/// Everything needed to compile one pipeline.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ListedKernel {
    pub kernel: Arc<str>,
    pub variant: Arc<str>,
    pub wgsl: Arc<str>,
    pub entry: Arc<str>,
    /// Whether the shader runs with bounds checks and zero-initialised workgroup memory.
    pub checked: bool,
    pub params_in_storage: bool,
    pub accesses: Vec<Access>,
    pub counts_faults: bool,
    /// The bound of the loops that users wrote.
    pub loops: Option<LoopBound>,
}

/// What became of a [`BindingRequest::Share`] or [`BindingRequest::Borrow`].
#[derive(Debug)]
pub(crate) enum BindingNews {
    /// The asset has a buffer now. `again` says that it had another one before.
    Shared { asset: AssetId<ShaderBuffer>, again: bool },
    /// The asset has no buffer.
    NotShared { asset: AssetId<ShaderBuffer>, error: BindingError },
    /// The buffer of the app cannot be used.
    NotBorrowed { error: BindingError },
}

/// Sending end of the binding news, for the render world.
#[derive(Resource, Clone, Debug)]
pub(crate) struct BindingNewsSender(pub Sender<BindingNews>);
