//! The memory behind tensors. Views and shares are tensors on one [`Storage`]; the last reference frees it.

use core::any::Any;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bevy::ecs::entity::Entity;

use super::usage::{Residency, TensorUsage};
use crate::figures::{Count, Counters};
use crate::ir::{Backend, DType};

/// What a storage holds before anything is written to it.
#[derive(Clone, Debug)]
pub(crate) enum Initial {
    /// Zero bits.
    Zeros,
    /// Host data, packed in words.
    Data(Arc<[u32]>),
    /// Made on the backend by a few ops, with no host copy.
    Generated(Generator),
}

/// Contents that a backend can make by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Generator {
    /// Every element, as bits of the dtype's 32-bit type.
    Full(u32),
    /// `start + i · step`, in the dtype's class.
    Arange { start: u32, step: u32 },
    /// Ones where the last two indices are equal.
    Eye { columns: usize },
    /// Uniform in `low..high`.
    Uniform { seed: u32, low: f32, high: f32 },
    /// Normal.
    Normal { seed: u32, mean: f32, deviation: f32 },
}

/// What a backend holds for a storage. Only that backend knows its type.
pub(crate) type BackendSlot = Arc<dyn Any + Send + Sync>;

/// What a device holds for a storage.
#[derive(Clone)]
pub(crate) struct DeviceSlot {
    /// The device it is of.
    pub generation: u64,
    /// Bytes it takes there.
    pub bytes: u64,
    pub held: BackendSlot,
}

impl core::fmt::Debug for DeviceSlot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceSlot").field("generation", &self.generation).field("bytes", &self.bytes).finish()
    }
}

/// A typed block of memory on one backend, counted by references.
#[derive(Debug)]
pub(crate) struct Storage {
    id: u64,
    dtype: DType,
    elements: usize,
    /// Decided when an op first touches it; moves only when the GPU is given up.
    home: AtomicU8,
    /// The name of the first tensor on it, for messages.
    label: OnceLock<Box<str>>,
    content: Mutex<Content>,
    /// What the CPU backend holds, once it was asked to.
    host: OnceLock<BackendSlot>,
    /// Where the words are counted, once there are any.
    counted: OnceLock<Arc<Counters>>,
    /// Tensors that keep it on the device.
    pins: AtomicU32,
    /// The model of a tensor on it that an op last named, as bits; 0 if none has one.
    model: AtomicU64,
    /// When a batch last used it, in nanoseconds of real time, plus one; 0 if none has.
    used: AtomicU64,
}

/// Where the content is.
#[derive(Debug)]
struct Content {
    /// What the device holds, on the GPU backend, once it holds anything.
    device: Option<DeviceSlot>,
    /// What the content can be had from without the device, for as long as it is the same: what the storage starts as, or a copy on the host.
    /// `None` on the CPU backend once taken over.
    source: Option<Initial>,
    /// Counts the copy on the host.
    copy: Option<HostCopy>,
    /// Grows with every write.
    version: u64,
    /// Whether a device took the content with it.
    lost: bool,
}

impl Content {
    /// Content that is on the host too, or no longer is.
    fn set_source(&mut self, source: Option<Initial>, counters: &Arc<Counters>) {
        self.copy = match &source {
            Some(Initial::Data(words)) => Some(HostCopy::new(words.len() as u64 * 4, counters)),
            _ => None,
        };
        self.source = source;
    }
}

/// Counts the bytes of a copy on the host while it lives.
#[derive(Debug)]
struct HostCopy {
    bytes: u64,
    counters: Arc<Counters>,
}

impl HostCopy {
    fn new(bytes: u64, counters: &Arc<Counters>) -> Self {
        counters.host_copy_bytes.add(bytes);
        Self { bytes, counters: counters.clone() }
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        self.counters.host_copy_bytes.sub(self.bytes);
    }
}

impl Storage {
    pub(crate) fn new(dtype: DType, elements: usize, initial: Initial) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let content = Content { device: None, source: Some(initial), copy: None, version: 0, lost: false };
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            dtype,
            elements,
            home: AtomicU8::new(UNDECIDED),
            label: OnceLock::new(),
            content: Mutex::new(content),
            host: OnceLock::new(),
            counted: OnceLock::new(),
            pins: AtomicU32::new(0),
            model: AtomicU64::new(0),
            used: AtomicU64::new(0),
        })
    }

    /// Unique in the process; never reused.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    pub(crate) fn words(&self) -> usize {
        self.dtype.words(self.elements)
    }

    /// Bytes the storage takes on its backend.
    pub(crate) fn bytes(&self) -> usize {
        self.words() * 4
    }

    /// The backend the storage lives on; the first caller decides.
    pub(crate) fn home(&self, wish: Backend) -> Backend {
        let decided = self.home.compare_exchange(UNDECIDED, code(wish), Ordering::Relaxed, Ordering::Relaxed);
        decided.map_or_else(backend, |_| wish)
    }

    /// The backend the storage lives on, if an op has touched it.
    pub(crate) fn decided_home(&self) -> Option<Backend> {
        let home = self.home.load(Ordering::Relaxed);
        (home != UNDECIDED).then(|| backend(home))
    }

    /// Lives on the CPU from now on; whether its content was on a device that cannot give it any more.
    pub(crate) fn fall_back(&self) -> bool {
        let before = self.home.swap(code(Backend::Cpu), Ordering::Relaxed);
        before == code(Backend::Gpu) && self.lose_device()
    }

    /// Whether a device took the content with it.
    pub(crate) fn is_lost(&self) -> bool {
        self.content().lost
    }

    /// Gives it zeros to begin with, since all of it will be written.
    pub(crate) fn begin_anew(&self) {
        let mut content = self.content();
        (content.lost, content.source) = (false, Some(Initial::Zeros));
    }

    /// Gives it a name for messages; the first stays.
    pub(crate) fn set_label(&self, label: &str) {
        let _ = self.label.set(label.into());
    }

    /// The name, or a number where it has none.
    pub(crate) fn label(&self) -> String {
        self.label.get().map_or_else(|| format!("storage {}", self.id), |label| format!("\"{label}\""))
    }

    /// Notes whose tensor it is, for figures by model.
    pub(crate) fn set_model(&self, model: Entity) {
        self.model.store(model.to_bits(), Ordering::Relaxed);
    }

    /// Whose tensor it is.
    pub(crate) fn model(&self) -> Option<Entity> {
        match self.model.load(Ordering::Relaxed) {
            0 => None,
            bits => Entity::try_from_bits(bits),
        }
    }

    pub(crate) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Relaxed) > 0
    }

    /// A batch uses it now.
    pub(crate) fn set_used(&self, now: Duration) {
        self.used.store(now.as_nanos() as u64 + 1, Ordering::Relaxed);
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it starts as, once: the CPU backend that takes this must put it into its memory.
    pub(crate) fn take_initial(&self) -> Option<Initial> {
        let mut content = self.content();
        content.copy = None;
        content.source.take()
    }

    /// Counts the words on the host until the storage is gone.
    pub(crate) fn count_host(&self, counters: &Arc<Counters>) {
        if self.counted.set(counters.clone()).is_ok() {
            counters.host_bytes.add(self.bytes() as u64);
        }
    }

    /// What the CPU backend holds, made by the first who asks.
    pub(crate) fn host_slot(&self, make: impl FnOnce() -> BackendSlot) -> &BackendSlot {
        self.host.get_or_init(make)
    }

    /// What this device holds, if it holds anything.
    pub(crate) fn device(&self, generation: u64) -> Option<DeviceSlot> {
        self.content().device.clone().filter(|slot| slot.generation == generation)
    }

    /// What the content can be had from without the device.
    pub(crate) fn source(&self) -> Option<Initial> {
        self.content().source.clone()
    }

    /// Grows with every write.
    pub(crate) fn version(&self) -> u64 {
        self.content().version
    }

    /// The content is in `slot` from now on. Host data it was had from stays or goes; what can be made again costs nothing to keep.
    pub(crate) fn arrive(&self, slot: DeviceSlot, keep: bool, counters: &Arc<Counters>) {
        let mut content = self.content();
        let source = content.source.take().filter(|source| keep || !matches!(source, Initial::Data(_)));
        content.set_source(source, counters);
        content.device = Some(slot);
    }

    /// The device's content was written, with `words` as a whole or in some way that the host does not know.
    pub(crate) fn wrote(&self, words: Option<Arc<[u32]>>, counters: &Arc<Counters>) {
        let mut content = self.content();
        content.version += 1;
        content.lost = false;
        // A steady frame writes what the last one wrote: nothing to do then.
        if content.source.is_some() || words.is_some() {
            content.set_source(words.map(Initial::Data), counters);
        }
    }

    /// Words that were copied from the device have arrived; whether they still are its content.
    pub(crate) fn copied(&self, version: u64, words: Arc<[u32]>, counters: &Arc<Counters>) -> bool {
        let mut content = self.content();
        let current = content.version == version && content.device.is_some();
        if current {
            content.set_source(Some(Initial::Data(words)), counters);
        }
        current
    }

    /// Leaves the device if that loses nothing; whether it did.
    pub(crate) fn leave(&self) -> bool {
        let mut content = self.content();
        content.source.is_some() && content.device.take().is_some()
    }

    /// Leaves the device although nothing may be left of the content: it was never made.
    pub(crate) fn abandon(&self) {
        self.content().device = None;
    }

    /// The device is gone; whether the content went with it.
    pub(crate) fn lose_device(&self) -> bool {
        let mut content = self.content();
        let lost = content.device.take().is_some() && content.source.is_none();
        content.lost |= lost;
        content.version += 1;
        lost
    }

    /// What it takes, and where it is.
    pub(crate) fn usage(&self) -> TensorUsage {
        let content = self.content();
        let bytes = self.bytes() as u64;
        let residency = match (&content.device, &content.source) {
            (Some(_), Some(_)) => Residency::Both,
            (Some(_), None) => Residency::Device,
            (None, None) if content.lost => Residency::Lost,
            (None, _) => Residency::Host,
        };
        let used = self.used.load(Ordering::Relaxed);
        let on_cpu = self.decided_home() == Some(Backend::Cpu);
        TensorUsage {
            storage: self.id,
            bytes,
            device_bytes: content.device.as_ref().map_or(0, |slot| slot.bytes),
            host_bytes: match &content.source {
                Some(Initial::Data(words)) => words.len() as u64 * 4,
                Some(_) => 0,
                None => u64::from(on_cpu) * bytes,
            },
            residency,
            pinned: self.is_pinned(),
            last_used: used.checked_sub(1).map(Duration::from_nanos),
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(counters) = self.counted.get() {
            counters.host_bytes.sub(self.bytes() as u64);
        }
    }
}

/// What [`Storage::home`] is before it is decided.
const UNDECIDED: u8 = 0;

fn code(backend: Backend) -> u8 {
    match backend {
        Backend::Gpu => 1,
        Backend::Cpu => 2,
    }
}

fn backend(code: u8) -> Backend {
    if code == self::code(Backend::Gpu) { Backend::Gpu } else { Backend::Cpu }
}
