//! The memory behind tensors. Views and shared tensors use one [`Storage`], which is freed with its last reference.

use core::any::Any;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use bevy::ecs::entity::Entity;

use super::usage::{Residency, TensorUsage};
use crate::figures::{Count, Counters};
use crate::ir::{Backend, DType};

/// The content of a storage before the first write.
#[derive(Clone, Debug)]
pub(crate) enum Initial {
    /// Zero bits.
    Zeros,
    /// Host data, packed in words.
    Data(Arc<[u32]>),
    /// Generated on the backend, without a host copy.
    Generated(Generator),
}

/// Content that a backend can generate.
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

/// The data that a backend attaches to a storage. Only that backend knows its type.
pub(crate) type BackendSlot = Arc<dyn Any + Send + Sync>;

/// The data that a device attaches to a storage.
#[derive(Clone)]
pub(crate) struct DeviceSlot {
    /// Identifies the device.
    pub generation: u64,
    /// Bytes on the device.
    pub bytes: u64,
    pub held: BackendSlot,
}

impl core::fmt::Debug for DeviceSlot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceSlot").field("generation", &self.generation).field("bytes", &self.bytes).finish()
    }
}

/// A reference-counted, typed block of memory on one backend.
#[derive(Debug)]
pub(crate) struct Storage {
    id: u64,
    dtype: DType,
    elements: usize,
    /// The backend that new work finds it on. Set by the first op; changes when the storage moves to another backend.
    home: AtomicU8,
    /// The name of the first tensor that uses it, for messages.
    label: OnceLock<Box<str>>,
    content: Mutex<Content>,
    /// The data of the CPU backend, once it has any.
    host: OnceLock<BackendSlot>,
    /// Number of tensors that pin it to the device.
    pins: AtomicU32,
    /// Number of bindings as a storage buffer of shaders.
    bindings: AtomicU32,
    /// The model of the tensor that an op last used it through, as bits. 0 if there is none.
    model: AtomicU64,
    /// When a batch last used it, in nanoseconds of real time plus one. 0 if no batch has.
    used: AtomicU64,
}

/// The place of the content.
#[derive(Debug)]
struct Content {
    /// The data of the device, once there is any. Only on the GPU backend.
    device: Option<DeviceSlot>,
    /// Host-side source from which the content can be restored: the initial content, or a copy on the host. `None` if
    /// it is out of date, and on the CPU backend once the backend has taken it.
    source: Option<Initial>,
    /// Counts the bytes of the copy on the host.
    copy: Option<HostCopy>,
    /// Increases with every write.
    version: u64,
    /// Whether the content was lost with a device.
    lost: bool,
    /// The counters that include the words of the CPU backend, while there are any.
    counted: Option<Arc<Counters>>,
    /// Number of requested moves to another backend, and of those that are done.
    moves: u64,
    moves_done: u64,
}

impl Content {
    /// Sets or removes the host-side source.
    fn set_source(&mut self, source: Option<Initial>, counters: &Arc<Counters>) {
        self.copy = match &source {
            Some(Initial::Data(words)) => Some(HostCopy::new(words.len() as u64 * 4, counters)),
            _ => None,
        };
        self.source = source;
    }
}

/// Counts the bytes of a copy on the host until it is dropped.
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
        let content = Content {
            device: None,
            source: Some(initial),
            copy: None,
            version: 0,
            lost: false,
            counted: None,
            moves: 0,
            moves_done: 0,
        };
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            dtype,
            elements,
            home: AtomicU8::new(UNDECIDED),
            label: OnceLock::new(),
            content: Mutex::new(content),
            host: OnceLock::new(),
            pins: AtomicU32::new(0),
            bindings: AtomicU32::new(0),
            model: AtomicU64::new(0),
            used: AtomicU64::new(0),
        })
    }

    /// Unique in the process. Never reused.
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

    /// Bytes on the backend.
    pub(crate) fn bytes(&self) -> usize {
        self.words() * 4
    }

    /// The backend of the storage. The first caller decides.
    pub(crate) fn home(&self, wish: Backend) -> Backend {
        let decided = self.home.compare_exchange(UNDECIDED, code(wish), Ordering::Relaxed, Ordering::Relaxed);
        decided.map_or_else(backend, |_| wish)
    }

    /// The backend of the storage, if an op has used it.
    pub(crate) fn decided_home(&self) -> Option<Backend> {
        let home = self.home.load(Ordering::Relaxed);
        (home != UNDECIDED).then(|| backend(home))
    }

    /// Moves it to the CPU for good, because the device was lost. Returns whether its content was lost too.
    pub(crate) fn fall_back(&self) -> bool {
        let before = self.home.swap(code(Backend::Cpu), Ordering::Relaxed);
        before == code(Backend::Gpu) && self.lose_device()
    }

    /// Whether the content was lost with a device.
    pub(crate) fn is_lost(&self) -> bool {
        self.content().lost
    }

    /// Resets lost content to zeros, before all of it is written.
    pub(crate) fn begin_anew(&self) {
        let mut content = self.content();
        (content.lost, content.source) = (false, Some(Initial::Zeros));
    }

    /// Sets the name for messages. Only the first call has an effect.
    pub(crate) fn set_label(&self, label: &str) {
        let _ = self.label.set(label.into());
    }

    /// The name in quotes, or the id if there is no name.
    pub(crate) fn label(&self) -> String {
        self.label.get().map_or_else(|| format!("storage {}", self.id), |label| format!("\"{label}\""))
    }

    /// Sets the model, for figures per model.
    pub(crate) fn set_model(&self, model: Entity) {
        self.model.store(model.to_bits(), Ordering::Relaxed);
    }

    /// The model whose tensor last used it.
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

    /// Records that shaders outside of this crate read it: it is pinned, and writes on the CPU backend are counted.
    pub(crate) fn bind(&self) {
        self.pin();
        self.bindings.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unbind(&self) {
        self.bindings.fetch_sub(1, Ordering::Relaxed);
        self.unpin();
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.bindings.load(Ordering::Relaxed) > 0
    }

    /// Records a write on the CPU backend.
    pub(crate) fn wrote_on_host(&self) {
        self.content().version += 1;
    }

    /// Uses a buffer that the app owns. Work that was recorded before waits for this.
    pub(crate) fn lend(&self, slot: DeviceSlot) {
        let mut content = self.content();
        content.device = Some(slot);
        content.lost = false;
        content.version += 1;
        content.moves_done = content.moves;
    }

    /// Records that a batch uses it now.
    pub(crate) fn set_used(&self, now: Duration) {
        self.used.store(now.as_nanos() as u64 + 1, Ordering::Relaxed);
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the initial content. The CPU backend that takes it must store it.
    pub(crate) fn take_initial(&self) -> Option<Initial> {
        let mut content = self.content();
        content.copy = None;
        content.source.take()
    }

    /// Puts back the initial content that [`take_initial`](Self::take_initial) took, if it could not be stored.
    pub(crate) fn return_initial(&self, initial: Initial, counters: &Arc<Counters>) {
        self.content().set_source(Some(initial), counters);
    }

    /// Counts the words on the host until they or the storage are dropped.
    pub(crate) fn count_host(&self, counters: &Arc<Counters>) {
        let mut content = self.content();
        if content.counted.is_none() {
            content.counted = Some(counters.clone());
            counters.host_bytes.add(self.bytes() as u64);
        }
    }

    /// Creates a storage whose content will arrive from the other backend.
    pub(crate) fn expecting(dtype: DType, elements: usize, home: Backend) -> Arc<Self> {
        let storage = Self::new(dtype, elements, Initial::Zeros);
        storage.home.store(code(home), Ordering::Relaxed);
        let mut content = storage.content();
        (content.source, content.moves) = (None, 1);
        drop(content);
        storage
    }

    /// Moves the storage to another backend. Work that is recorded from now on uses it there; the content arrives with
    /// [`Storage::land`].
    pub(crate) fn begin_move(&self, to: Backend) {
        self.home.store(code(to), Ordering::Relaxed);
        self.content().moves += 1;
    }

    /// The number of moves that work recorded now has to wait for.
    pub(crate) fn moves(&self) -> u64 {
        self.content().moves
    }

    /// Whether this many moves are done.
    pub(crate) fn has_moved(&self, moves: u64) -> bool {
        moves == 0 || self.content().moves_done >= moves
    }

    /// Ends a move: the content has arrived, and the other backend frees it. Without words the move failed; the content
    /// is then what the host still has, or is lost.
    pub(crate) fn land(&self, words: Option<Arc<[u32]>>) {
        let mut content = self.content();
        content.device = None;
        if let Some(counters) = content.counted.take() {
            counters.host_bytes.sub(self.bytes() as u64);
        }
        content.copy = None;
        content.source = words.map(Initial::Data).or(content.source.take());
        content.lost = content.source.is_none();
        content.version += 1;
        content.moves_done += 1;
        drop(content);
        let (lock, landed) = &LANDED;
        let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        landed.notify_all();
    }

    /// Waits a short time for any storage to [land](Storage::land). Must not be called on a thread that runs frames.
    pub(crate) fn wait_for_landing(patience: Duration) {
        let (lock, landed) = &LANDED;
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(landed.wait_timeout(guard, patience));
    }

    /// The data of the CPU backend. The first caller creates it.
    pub(crate) fn host_slot(&self, make: impl FnOnce() -> BackendSlot) -> &BackendSlot {
        self.host.get_or_init(make)
    }

    /// The data of this device, if there is any.
    pub(crate) fn device(&self, generation: u64) -> Option<DeviceSlot> {
        self.content().device.clone().filter(|slot| slot.generation == generation)
    }

    /// Host-side source from which the content can be restored.
    pub(crate) fn source(&self) -> Option<Initial> {
        self.content().source.clone()
    }

    /// Increases with every write.
    pub(crate) fn version(&self) -> u64 {
        self.content().version
    }

    /// Records that the content is now in `slot`. `keep` says whether host data stays as a copy; generators always
    /// stay.
    pub(crate) fn arrive(&self, slot: DeviceSlot, keep: bool, counters: &Arc<Counters>) {
        let mut content = self.content();
        let source = content.source.take().filter(|source| keep || !matches!(source, Initial::Data(_)));
        content.set_source(source, counters);
        content.device = Some(slot);
    }

    /// Records a write on the device. `words` is the whole new content, if the host knows it.
    pub(crate) fn wrote(&self, words: Option<Arc<[u32]>>, counters: &Arc<Counters>) {
        let mut content = self.content();
        content.version += 1;
        content.lost = false;
        // Skips the work in the common case: a tensor that the device writes every frame.
        if content.source.is_some() || words.is_some() {
            content.set_source(words.map(Initial::Data), counters);
        }
    }

    /// Stores words that were copied from the device. Returns whether they are still the current content.
    pub(crate) fn copied(&self, version: u64, words: Arc<[u32]>, counters: &Arc<Counters>) -> bool {
        let mut content = self.content();
        let current = content.version == version && content.device.is_some();
        if current {
            content.set_source(Some(Initial::Data(words)), counters);
        }
        current
    }

    /// Frees the device memory if the content can be restored. Returns whether it did.
    pub(crate) fn leave(&self) -> bool {
        let mut content = self.content();
        content.source.is_some() && content.device.take().is_some()
    }

    /// Frees the device memory of content that was never created.
    pub(crate) fn abandon(&self) {
        self.content().device = None;
    }

    /// Records that the device was lost. Returns whether the content was lost with it.
    pub(crate) fn lose_device(&self) -> bool {
        let mut content = self.content();
        let lost = content.device.take().is_some() && content.source.is_none();
        content.lost |= lost;
        content.version += 1;
        lost
    }

    /// Memory use and place of the content.
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
        let bytes = self.bytes() as u64;
        let content = self.content.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = content.counted.take() {
            counters.host_bytes.sub(bytes);
        }
    }
}

/// Wakes threads that wait for content from another backend.
static LANDED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// The value of [`Storage::home`] before the first op.
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
