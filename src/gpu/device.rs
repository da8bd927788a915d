//! The device: allocates buffers within its limits and the budget, writes to them, and catches its errors.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bevy::tasks::futures::now_or_never;

use super::buffers::{DeviceBuffer, Pools, Purpose, RawBuffer};
use super::copier::Copier;
use crate::error::RunError;
use crate::figures::{Count, Counters, Failures, PoolClasses};
use crate::memory::MemorySettings;
use crate::tensor::Storage;

/// Number of readbacks of one size that are usually in flight: one being recorded, one running, one being read, one to
/// spare.
const IN_FLIGHT: usize = 4;

/// Staging buffers of up to this many bytes are created [`IN_FLIGHT`] at a time.
const SMALL: u64 = 64 << 10;

/// The device, its queue, its limits and the counters of everything on it. Clones share the device.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    pub counters: Arc<Counters>,
    /// Distinguishes the buffers of this device from those of a lost one.
    pub generation: u64,
    /// Copies large values to the host.
    pub(super) copier: Arc<Copier>,
    pools: Arc<Pools>,
    failures: Arc<Failures>,
}

impl Gpu {
    pub(crate) fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        counters: Arc<Counters>,
        settings: MemorySettings,
        failures: Arc<Failures>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (limits, generation) = (device.limits(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (copier, pools) = (Arc::default(), Arc::new(Pools::new(settings)));
        Self { device, queue, limits, counters, generation, copier, pools, failures }
    }

    /// The buffer of a storage, if it has one on this device.
    pub(crate) fn buffer(&self, storage: &Storage) -> Option<Arc<DeviceBuffer>> {
        storage.device(self.generation)?.held.downcast().ok()
    }

    /// A buffer of the app as the device memory of `words`. It must be large enough.
    pub(crate) fn foreign(&self, buffer: wgpu::Buffer, words: usize) -> Arc<DeviceBuffer> {
        Arc::new(DeviceBuffer::foreign(buffer, buffer_size(words), self.generation, &self.counters))
    }

    /// The buffer pools, for diagnostics.
    pub(crate) fn pools(&self) -> Weak<dyn PoolClasses> {
        let pools: Weak<Pools> = Arc::downgrade(&self.pools);
        pools
    }

    /// The app's memory settings of this frame.
    pub(crate) fn settings(&self) -> MemorySettings {
        self.pools.settings()
    }

    /// Starts a frame: applies the settings and destroys buffers that have been idle for too long.
    pub(crate) fn begin_frame(&self, settings: MemorySettings) {
        self.pools.begin_frame(settings);
        if let Some(budget) = settings.budget {
            // The budget may have been lowered.
            let total = self.counters.total_device_bytes.load(Ordering::Relaxed);
            self.pools.trim_device(total.saturating_sub(budget), &self.counters);
        }
        self.pools.count_idle(&self.counters);
    }

    /// Returns a buffer of at least `words`, from the pool or new.
    pub(crate) fn allocate(&self, purpose: Purpose, words: usize) -> Result<Arc<DeviceBuffer>, RunError> {
        let (size, bytes) = sizes(purpose, words);
        let bytes = bytes.min(self.check(purpose, size)?);
        if self.failures.strike(purpose.label()) {
            return Err(RunError::OutOfMemory { what: what(purpose), requested: size });
        }
        let idle = self.pools.take(purpose, bytes);
        let reused = idle.is_some();
        let raw = match idle {
            Some(raw) => {
                self.counters.buffers_reused.add(1);
                self.pools.count_idle(&self.counters);
                raw
            }
            None => self.create_for(purpose, bytes)?,
        };
        Ok(Arc::new(DeviceBuffer::new(raw, purpose, size, reused, self.generation, &self.pools)))
    }

    /// Bytes that a buffer of `words` will take.
    pub(crate) fn bytes(&self, purpose: Purpose, words: usize) -> u64 {
        sizes(purpose, words).1.min(self.max_buffer_bytes())
    }

    /// The size limit of buffers. An error if `size` is larger.
    fn check(&self, purpose: Purpose, size: u64) -> Result<u64, RunError> {
        let available = self.max_buffer_bytes();
        match size > available {
            true => Err(RunError::Limit { what: what(purpose), requested: size, available }),
            false => Ok(available),
        }
    }

    fn max_buffer_bytes(&self) -> u64 {
        self.limits.max_buffer_size & !15
    }

    /// Maximum number of words of one binding.
    pub(crate) fn binding_words(&self) -> usize {
        usize::try_from(self.limits.max_storage_buffer_binding_size).unwrap_or(usize::MAX) / 16 * 4
    }

    /// Alignment of binding offsets, in words.
    pub(crate) fn binding_alignment(&self) -> usize {
        (self.limits.min_storage_buffer_offset_alignment as usize / 4).max(4)
    }

    /// Creates a buffer. The next frames ask for the same staging buffer before this one is back, so small ones are
    /// created several at a time. A steady app then allocates nothing after its first frame.
    fn create_for(&self, purpose: Purpose, bytes: u64) -> Result<RawBuffer, RunError> {
        let several = purpose == Purpose::Staging && bytes <= SMALL;
        for _ in 1..if several { IN_FLIGHT } else { 1 } {
            self.pools.put(purpose, self.create(purpose, bytes)?);
        }
        self.create(purpose, bytes)
    }

    /// Creates a zeroed buffer. Idle buffers are destroyed if the budget or the device has no room for it.
    fn create(&self, purpose: Purpose, bytes: u64) -> Result<RawBuffer, RunError> {
        if let Some(budget) = self.settings().budget.filter(|_| purpose != Purpose::Staging) {
            let over = |total: u64| (total + bytes).saturating_sub(budget);
            let total = self.counters.total_device_bytes.load(Ordering::Relaxed);
            self.pools.trim_device(over(total), &self.counters);
            let total = self.counters.total_device_bytes.load(Ordering::Relaxed);
            if over(total) > 0 {
                let available = budget.saturating_sub(total);
                return Err(RunError::Budget { requested: bytes, available, budget, largest: Vec::new() });
            }
        }
        match self.try_create(purpose, bytes) {
            Err(RunError::OutOfMemory { .. }) => {
                self.trim_all();
                self.try_create(purpose, bytes)
            }
            result => result,
        }
    }

    fn try_create(&self, purpose: Purpose, bytes: u64) -> Result<RawBuffer, RunError> {
        let scope = ErrorScope::new(&self.device);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(purpose.label()),
            size: bytes,
            usage: purpose.usage(),
            mapped_at_creation: false,
        });
        match scope.pop() {
            None => Ok(RawBuffer::new(buffer, bytes, purpose == Purpose::Staging, &self.counters)),
            Some(wgpu::Error::OutOfMemory { .. }) => {
                Err(RunError::OutOfMemory { what: what(purpose), requested: bytes })
            }
            Some(error) => Err(RunError::Device(error.to_string())),
        }
    }

    /// Destroys every idle buffer.
    pub(crate) fn trim_all(&self) {
        self.pools.trim_all(&self.counters);
    }

    /// Writes words to a buffer, starting at word `word`. The write happens before the next submission.
    pub(crate) fn write(&self, buffer: &wgpu::Buffer, word: usize, words: &[u32]) {
        if !words.is_empty() {
            self.queue.write_buffer(buffer, word as u64 * 4, bytemuck::cast_slice(words));
        }
    }
}

/// The size that kernels see of a buffer of `words`, and the size it is created with; in bytes.
fn sizes(purpose: Purpose, words: usize) -> (u64, u64) {
    let size = buffer_size(words);
    (size, purpose.class(size))
}

/// The bytes that kernels see of a buffer of `words`: a multiple of 16, so that they may load four words at a time up to
/// the end.
pub(crate) fn buffer_size(words: usize) -> u64 {
    (words as u64 * 4).next_multiple_of(16).max(16)
}

fn what(purpose: Purpose) -> String {
    purpose.label().trim_start_matches("tensor:").to_owned()
}

/// Catches all device errors of this thread until popped or dropped, so that none reaches the app's error handler.
pub(crate) struct ErrorScope {
    // Scopes nest and fields drop in order, so the scope that was pushed last is declared first.
    internal: wgpu::ErrorScopeGuard,
    memory: wgpu::ErrorScopeGuard,
    validation: wgpu::ErrorScopeGuard,
}

impl ErrorScope {
    pub(crate) fn new(device: &wgpu::Device) -> Self {
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        Self { internal, memory, validation }
    }

    /// The first error that was caught. In a browser errors arrive later, and this returns `None`.
    pub(crate) fn pop(self) -> Option<wgpu::Error> {
        let internal = now_or_never(self.internal.pop()).flatten();
        let memory = now_or_never(self.memory.pop()).flatten();
        let validation = now_or_never(self.validation.pop()).flatten();
        memory.or(validation).or(internal)
    }
}
