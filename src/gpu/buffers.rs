//! Device buffers and the pools that reuse them. Every buffer is counted from its creation to its destruction.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::figures::{Count, Counters, PoolClass, PoolClasses, PoolKind};
use crate::memory::{MemorySettings, Pool, size_class};
use crate::tensor::Storage;

/// The purpose of a buffer. It determines the usage flags and the figure that the buffer counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Tensor,
    /// A tensor of a quantised type.
    Blocks,
    Scratch,
    /// Parameters and constants of a plan.
    Plan,
    Staging,
}

impl Purpose {
    /// The purpose of a storage's buffer.
    pub(crate) fn of(storage: &Storage) -> Self {
        if storage.dtype().is_quantized() { Self::Blocks } else { Self::Tensor }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Tensor | Self::Blocks => "tensor:storage",
            Self::Scratch => "tensor:scratch",
            Self::Plan => "tensor:plan",
            Self::Staging => "tensor:staging",
        }
    }

    pub(super) fn usage(self) -> wgpu::BufferUsages {
        use wgpu::BufferUsages as U;
        match self {
            Self::Tensor | Self::Blocks | Self::Scratch => U::STORAGE | U::COPY_SRC | U::COPY_DST,
            Self::Plan => U::STORAGE | U::UNIFORM | U::COPY_SRC | U::COPY_DST,
            Self::Staging => U::MAP_READ | U::COPY_DST,
        }
    }

    /// Buffers of one kind have the same usage flags and can replace each other.
    fn kind(self) -> u8 {
        match self {
            Self::Tensor | Self::Blocks | Self::Scratch => 0,
            Self::Plan => 1,
            Self::Staging => 2,
        }
    }

    /// The size in bytes that a buffer for `bytes` is created with.
    pub(super) fn class(self, bytes: u64) -> u64 {
        match self {
            Self::Staging => bytes.next_power_of_two().max(256),
            // Quantised weights are rarely replaced, and are quantised to save memory: no rounding.
            Self::Blocks => bytes,
            _ => size_class(bytes),
        }
    }

    /// The figure of bytes in use. Staging buffers are counted while they exist instead.
    fn figure(self, counters: &Counters) -> Option<&AtomicU64> {
        match self {
            Self::Tensor | Self::Blocks => Some(&counters.device_bytes),
            Self::Scratch => Some(&counters.scratch_bytes),
            Self::Plan => Some(&counters.plan_bytes),
            Self::Staging => None,
        }
    }
}

/// A buffer that exists on the device, in use or idle. Destroyed when dropped.
#[derive(Debug)]
pub(super) struct RawBuffer {
    buffer: wgpu::Buffer,
    id: u64,
    bytes: u64,
    staging: bool,
    /// Whether bind groups of others may use it. It is then not destroyed before them.
    shared: bool,
    counters: Arc<Counters>,
}

/// An id that no other buffer of the process has.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl RawBuffer {
    pub(super) fn new(buffer: wgpu::Buffer, bytes: u64, staging: bool, counters: &Arc<Counters>) -> Self {
        counters.buffers_allocated.add(1);
        if staging {
            counters.staging_bytes.raise(bytes, &counters.peak_staging_bytes);
        } else {
            counters.total_device_bytes.raise(bytes, &counters.peak_device_bytes);
        }
        Self { buffer, id: next_id(), bytes, staging, shared: false, counters: counters.clone() }
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        let figure = if self.staging { &self.counters.staging_bytes } else { &self.counters.total_device_bytes };
        figure.sub(self.bytes);
        // Cached bind groups may still hold the buffer. Its memory is freed without waiting for them. Bind groups of
        // materials would become invalid, so they keep a shared buffer alive.
        if !self.shared {
            self.buffer.destroy();
        }
    }
}

/// The idle buffers of a device, and the memory settings they are kept by.
#[derive(Debug, Default)]
pub(super) struct Pools {
    device: Mutex<Pool<RawBuffer>>,
    staging: Mutex<Pool<RawBuffer>>,
    /// Number of buffers in use, by kind and size.
    used: Mutex<BTreeMap<(u8, u64), usize>>,
    settings: Mutex<MemorySettings>,
    frame: AtomicU64,
}

impl PoolClasses for Pools {
    fn classes(&self) -> Vec<PoolClass> {
        let mut classes: BTreeMap<(u8, u64), [usize; 2]> = BTreeMap::new();
        for (&class, &used) in Self::lock(&self.used).iter() {
            classes.entry(class).or_default()[0] += used;
        }
        for pool in [&self.device, &self.staging] {
            for (class, idle) in Self::lock(pool).counts() {
                classes.entry(class).or_default()[1] += idle;
            }
        }
        let kinds = [PoolKind::Tensors, PoolKind::Plans, PoolKind::Staging];
        let class = |((kind, bytes), [used, idle]): ((u8, u64), [usize; 2])| PoolClass {
            kind: kinds[usize::from(kind)],
            bytes,
            used,
            idle,
        };
        classes.into_iter().map(class).collect()
    }
}

impl Pools {
    pub(super) fn new(settings: MemorySettings) -> Self {
        Self { settings: Mutex::new(settings), ..Self::default() }
    }

    pub(super) fn settings(&self) -> MemorySettings {
        *Self::lock(&self.settings)
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a frame: applies the settings and destroys buffers that have been idle for too long.
    pub(super) fn begin_frame(&self, settings: MemorySettings) {
        *Self::lock(&self.settings) = settings;
        let frame = self.frame.fetch_add(1, Ordering::Relaxed) + 1;
        for (pool, cap) in [(&self.device, settings.pool_bytes), (&self.staging, settings.idle_staging_bytes)] {
            let dropped = {
                let mut pool = Self::lock(pool);
                let mut dropped = pool.trim_before(frame.saturating_sub(settings.pool_frames));
                dropped.extend(pool.trim_to(cap));
                dropped
            };
            // Buffers are destroyed outside the lock.
            drop(dropped);
        }
    }

    /// Takes an idle buffer of at least `bytes`.
    pub(super) fn take(&self, purpose: Purpose, bytes: u64) -> Option<RawBuffer> {
        let staging = purpose == Purpose::Staging;
        let pool = if staging { &self.staging } else { &self.device };
        // The budget is checked with the expected sizes, so with a budget no buffer may be larger.
        let slack = if staging || self.settings().budget.is_some() { 0 } else { bytes / 4 };
        Self::lock(pool).take(purpose.kind(), bytes, slack)
    }

    /// Keeps a buffer for reuse. Beyond the size limit of the pool, the buffers that have been idle longest are
    /// destroyed.
    pub(super) fn put(&self, purpose: Purpose, raw: RawBuffer) {
        let settings = self.settings();
        let (pool, cap) = match raw.staging {
            true => (&self.staging, settings.idle_staging_bytes),
            false => (&self.device, settings.pool_bytes),
        };
        let counters = raw.counters.clone();
        let dropped = {
            let mut pool = Self::lock(pool);
            pool.put(purpose.kind(), raw.bytes, raw, self.frame.load(Ordering::Relaxed));
            pool.trim_to(cap)
        };
        drop(dropped);
        self.count_idle(&counters);
    }

    /// Destroys idle device buffers until `bytes` are freed or none is left.
    pub(super) fn trim_device(&self, bytes: u64, counters: &Counters) {
        if bytes > 0 {
            let dropped = {
                let mut pool = Self::lock(&self.device);
                let left = pool.bytes().saturating_sub(bytes);
                pool.trim_to(left)
            };
            drop(dropped);
            self.count_idle(counters);
        }
    }

    /// Destroys every idle buffer.
    pub(super) fn trim_all(&self, counters: &Counters) {
        self.trim_device(u64::MAX, counters);
        let dropped = Self::lock(&self.staging).trim_to(0);
        drop(dropped);
    }

    pub(super) fn count_idle(&self, counters: &Counters) {
        counters.pool_idle_bytes.put(Self::lock(&self.device).bytes());
    }

    /// Counts a buffer that comes into use, or leaves it.
    fn count_used(&self, kind: u8, bytes: u64, more: bool) {
        let mut used = Self::lock(&self.used);
        let count = used.entry((kind, bytes)).or_default();
        *count = if more { *count + 1 } else { *count - 1 };
        if *count == 0 {
            used.remove(&(kind, bytes));
        }
    }
}

/// A buffer in use. It returns to its pool when dropped. Work that was submitted with it is not disturbed, because
/// later work on the queue runs after it.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    pub buffer: wgpu::Buffer,
    /// Unique in the process. Bind groups are cached by it.
    pub id: u64,
    /// Size of the buffer, in bytes.
    pub bytes: u64,
    /// The requested size, rounded up to 16 bytes: what kernels see.
    pub size: u64,
    /// Whether it may hold the content of an earlier user. If not, it is zeroed.
    pub reused: bool,
    /// The generation of its device.
    pub generation: u64,
    /// `None` for a buffer that the app owns.
    raw: Option<RawBuffer>,
    /// Whether bind groups of others use it. It then never returns to the pool.
    shared: AtomicBool,
    purpose: Purpose,
    counters: Arc<Counters>,
    pools: Weak<Pools>,
}

impl DeviceBuffer {
    pub(super) fn new(
        raw: RawBuffer,
        purpose: Purpose,
        size: u64,
        reused: bool,
        generation: u64,
        pools: &Arc<Pools>,
    ) -> Self {
        let (buffer, id, bytes, counters) = (raw.buffer.clone(), raw.id, raw.bytes, raw.counters.clone());
        if let Some(figure) = purpose.figure(&counters) {
            figure.add(bytes);
        }
        pools.count_used(purpose.kind(), bytes, true);
        let (raw, pools) = (Some(raw), Arc::downgrade(pools));
        let shared = AtomicBool::new(false);
        Self { buffer, id, bytes, size, reused, generation, raw, shared, purpose, counters, pools }
    }

    /// A buffer that the app owns. It is not counted, and stays when dropped.
    pub(super) fn foreign(buffer: wgpu::Buffer, size: u64, generation: u64, counters: &Arc<Counters>) -> Self {
        let (id, bytes, reused, shared) = (next_id(), buffer.size(), true, AtomicBool::new(true));
        let (purpose, counters) = (Purpose::Tensor, counters.clone());
        Self { buffer, id, bytes, size, reused, generation, raw: None, shared, purpose, counters, pools: Weak::new() }
    }

    /// Hands the buffer out to bind groups of others. They may outlive the tensor, so the buffer is never reused.
    pub(super) fn share(&self) -> &wgpu::Buffer {
        self.shared.store(true, Ordering::Relaxed);
        &self.buffer
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let Some(mut raw) = self.raw.take() else { return };
        if let Some(figure) = self.purpose.figure(&self.counters) {
            figure.sub(self.bytes);
        }
        // Without pools the device is gone, and the buffer is destroyed.
        if let Some(pools) = self.pools.upgrade() {
            pools.count_used(self.purpose.kind(), raw.bytes, false);
            raw.shared = *self.shared.get_mut();
            if !raw.shared {
                pools.put(self.purpose, raw);
            }
        }
    }
}
