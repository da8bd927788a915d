//! Device memory: buffers that are counted while they live and used again when they are free, limits and the budget checked before, out-of-memory
//! caught.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bevy::tasks::futures::now_or_never;

use crate::error::RunError;
use crate::figures::{Count, Counters, PoolClass, PoolClasses, PoolKind};
use crate::memory::{MemorySettings, Pool, size_class};
use crate::tensor::Storage;

/// Readbacks of one kind that are usually under way at once: a frame being recorded, one being run, one being read.
const IN_FLIGHT: usize = 4;

/// Bytes up to which staging buffers are made [`IN_FLIGHT`] at a time.
const SMALL: u64 = 64 << 10;

/// The device, its queue and its limits, with the counters everything on it reports to.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    pub counters: Arc<Counters>,
    /// Tells buffers of this device from those of one that was lost.
    pub generation: u64,
    pools: Arc<Pools>,
}

/// What a buffer is for; decides its usage and which figure it counts in.
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
    /// What a storage's buffer is for.
    pub(crate) fn of(storage: &Storage) -> Self {
        if storage.dtype().is_quantized() { Self::Blocks } else { Self::Tensor }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Tensor | Self::Blocks => "tensor:storage",
            Self::Scratch => "tensor:scratch",
            Self::Plan => "tensor:plan",
            Self::Staging => "tensor:staging",
        }
    }

    fn usage(self) -> wgpu::BufferUsages {
        use wgpu::BufferUsages as U;
        match self {
            Self::Tensor | Self::Blocks | Self::Scratch => U::STORAGE | U::COPY_SRC | U::COPY_DST,
            Self::Plan => U::STORAGE | U::UNIFORM | U::COPY_SRC | U::COPY_DST,
            Self::Staging => U::MAP_READ | U::COPY_DST,
        }
    }

    /// Buffers of one kind can stand in for each other.
    fn kind(self) -> u8 {
        match self {
            Self::Tensor | Self::Blocks | Self::Scratch => 0,
            Self::Plan => 1,
            Self::Staging => 2,
        }
    }

    /// The bytes a buffer for `bytes` is made with.
    fn class(self, bytes: u64) -> u64 {
        match self {
            Self::Staging => bytes.next_power_of_two().max(256),
            // Weights: nothing takes their place every frame, and every byte was meant to be saved.
            Self::Blocks => bytes,
            _ => size_class(bytes),
        }
    }

    /// The figure of buffers in use; staging buffers are counted while they exist.
    fn figure(self, counters: &Counters) -> Option<&AtomicU64> {
        match self {
            Self::Tensor | Self::Blocks => Some(&counters.device_bytes),
            Self::Scratch => Some(&counters.scratch_bytes),
            Self::Plan => Some(&counters.plan_bytes),
            Self::Staging => None,
        }
    }
}

/// A buffer that exists on the device, in use or idle; destroyed when dropped.
#[derive(Debug)]
struct RawBuffer {
    buffer: wgpu::Buffer,
    id: u64,
    bytes: u64,
    staging: bool,
    counters: Arc<Counters>,
}

impl RawBuffer {
    fn new(buffer: wgpu::Buffer, bytes: u64, staging: bool, counters: &Arc<Counters>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        counters.buffers_allocated.add(1);
        if staging {
            counters.staging_bytes.raise(bytes, &counters.peak_staging_bytes);
        } else {
            counters.total_device_bytes.raise(bytes, &counters.peak_device_bytes);
        }
        Self { buffer, id: NEXT.fetch_add(1, Ordering::Relaxed), bytes, staging, counters: counters.clone() }
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        let figure = if self.staging { &self.counters.staging_bytes } else { &self.counters.total_device_bytes };
        figure.sub(self.bytes);
        // Cached bind groups may still name the buffer; its memory must not wait for them.
        self.buffer.destroy();
    }
}

/// Idle buffers of a device.
#[derive(Debug, Default)]
struct Pools {
    device: Mutex<Pool<RawBuffer>>,
    staging: Mutex<Pool<RawBuffer>>,
    /// How many buffers of each kind and size are in use.
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
    /// Counts a buffer that is used from now on, or no longer.
    fn count_used(&self, kind: u8, bytes: u64, more: bool) {
        let mut used = Self::lock(&self.used);
        let count = used.entry((kind, bytes)).or_default();
        *count = if more { *count + 1 } else { *count - 1 };
        if *count == 0 {
            used.remove(&(kind, bytes));
        }
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a buffer for later, and drops the longest idle beyond the cap.
    fn put(&self, kind: u8, raw: RawBuffer) {
        let settings = *Self::lock(&self.settings);
        let (pool, cap) = match raw.staging {
            true => (&self.staging, settings.idle_staging_bytes),
            false => (&self.device, settings.pool_bytes),
        };
        let counters = raw.counters.clone();
        let dropped = {
            let mut pool = Self::lock(pool);
            pool.put(kind, raw.bytes, raw, self.frame.load(Ordering::Relaxed));
            pool.trim_to(cap)
        };
        drop(dropped);
        self.count_idle(&counters);
    }

    fn count_idle(&self, counters: &Counters) {
        counters.pool_idle_bytes.put(Self::lock(&self.device).bytes());
    }
}

/// A buffer in use. Goes back to the pool when dropped; work that was submitted with it is not disturbed, since what comes after on the queue
/// runs after.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    pub buffer: wgpu::Buffer,
    /// Unique in the process: bind groups are cached by it.
    pub id: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Bytes of it that were asked for, in whole 16-byte groups: what kernels see.
    pub size: u64,
    /// Whether it may hold what an earlier user left; else it is zeroed.
    pub reused: bool,
    /// The device it is of.
    pub generation: u64,
    raw: Option<RawBuffer>,
    purpose: Purpose,
    counters: Arc<Counters>,
    pools: Weak<Pools>,
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Some(figure) = self.purpose.figure(&self.counters) {
            figure.sub(self.bytes);
        }
        // Without a pool the device is gone, and the buffer goes too.
        if let (Some(pools), Some(raw)) = (self.pools.upgrade(), self.raw.take()) {
            pools.count_used(self.purpose.kind(), raw.bytes, false);
            pools.put(self.purpose.kind(), raw);
        }
    }
}

impl Gpu {
    /// The buffer of a storage, if this device holds one.
    pub(crate) fn buffer(&self, storage: &Storage) -> Option<Arc<DeviceBuffer>> {
        storage.device(self.generation)?.held.downcast().ok()
    }

    pub(crate) fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        counters: Arc<Counters>,
        settings: MemorySettings,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (limits, generation) = (device.limits(), NEXT.fetch_add(1, Ordering::Relaxed));
        let pools = Arc::new(Pools { settings: Mutex::new(settings), ..Pools::default() });
        Self { device, queue, limits, counters, generation, pools }
    }

    /// The device's buffers, for whoever wants to look at them.
    pub(crate) fn pools(&self) -> Weak<dyn PoolClasses> {
        let pools: Weak<Pools> = Arc::downgrade(&self.pools);
        pools
    }

    /// A buffer of at least `words`: idle or new.
    pub(crate) fn allocate(&self, purpose: Purpose, words: usize) -> Result<Arc<DeviceBuffer>, RunError> {
        let (size, bytes) = sizes(purpose, words);
        let bytes = bytes.min(self.check(purpose, size)?);
        let staging = purpose == Purpose::Staging;
        let pool = if staging { &self.pools.staging } else { &self.pools.device };
        // A budget is kept by what buffers are expected to take, so that none may be larger.
        let slack = if staging || self.settings().budget.is_some() { 0 } else { bytes / 4 };
        let idle = Pools::lock(pool).take(purpose.kind(), bytes, slack);
        let reused = idle.is_some();
        let raw = match idle {
            Some(raw) => {
                self.counters.buffers_reused.add(1);
                self.pools.count_idle(&self.counters);
                raw
            }
            None => {
                // The coming frames will ask for the same before this one is back; small buffers come as many at once, so that a steady
                // app has all it needs from its first frame on.
                for _ in 1..if staging && bytes <= SMALL { IN_FLIGHT } else { 1 } {
                    self.pools.put(purpose.kind(), self.create(purpose, bytes)?);
                }
                self.create(purpose, bytes)?
            }
        };
        if let Some(figure) = purpose.figure(&self.counters) {
            figure.add(raw.bytes);
        }
        self.pools.count_used(purpose.kind(), raw.bytes, true);
        Ok(Arc::new(DeviceBuffer {
            buffer: raw.buffer.clone(),
            id: raw.id,
            bytes: raw.bytes,
            size,
            reused,
            generation: self.generation,
            raw: Some(raw),
            purpose,
            counters: self.counters.clone(),
            pools: Arc::downgrade(&self.pools),
        }))
    }

    /// Bytes that a buffer for `words` will take.
    pub(crate) fn bytes(&self, purpose: Purpose, words: usize) -> u64 {
        sizes(purpose, words).1.min(self.limits.max_buffer_size & !15)
    }

    /// What the device allows for one buffer, if that is at least `size`.
    fn check(&self, purpose: Purpose, size: u64) -> Result<u64, RunError> {
        let available = self.limits.max_buffer_size & !15;
        match size > available {
            true => Err(RunError::Limit { what: what(purpose), requested: size, available }),
            false => Ok(available),
        }
    }

    /// Words of a buffer that one binding can show.
    pub(crate) fn binding_words(&self) -> usize {
        usize::try_from(self.limits.max_storage_buffer_binding_size).unwrap_or(usize::MAX) / 16 * 4
    }

    /// Words that bindings begin at multiples of.
    pub(crate) fn binding_alignment(&self) -> usize {
        (self.limits.min_storage_buffer_offset_alignment as usize / 4).max(4)
    }

    /// A new buffer, zeroed. Idle ones make room for it.
    fn create(&self, purpose: Purpose, bytes: u64) -> Result<RawBuffer, RunError> {
        let staging = purpose == Purpose::Staging;
        if let Some(budget) = self.settings().budget.filter(|_| !staging) {
            let over = |total: u64| (total + bytes).saturating_sub(budget);
            let total = self.counters.total_device_bytes.load(Ordering::Relaxed);
            self.trim_device(over(total));
            let total = self.counters.total_device_bytes.load(Ordering::Relaxed);
            if over(total) > 0 {
                let available = budget.saturating_sub(total);
                return Err(RunError::Budget { requested: bytes, available, budget, largest: Vec::new() });
            }
        }
        match self.try_create(purpose, bytes) {
            // What lies idle may be just what is missing.
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

    pub(crate) fn settings(&self) -> MemorySettings {
        *Pools::lock(&self.pools.settings)
    }

    /// A frame begins, with settings that may be new: buffers that have been idle for long go.
    pub(crate) fn begin_frame(&self, settings: MemorySettings) {
        *Pools::lock(&self.pools.settings) = settings;
        let frame = self.pools.frame.fetch_add(1, Ordering::Relaxed) + 1;
        for (pool, cap) in
            [(&self.pools.device, settings.pool_bytes), (&self.pools.staging, settings.idle_staging_bytes)]
        {
            let dropped = {
                let mut pool = Pools::lock(pool);
                let mut dropped = pool.trim_before(frame.saturating_sub(settings.pool_frames));
                dropped.extend(pool.trim_to(cap));
                dropped
            };
            drop(dropped);
        }
        if let Some(budget) = settings.budget {
            // A budget that was lowered.
            self.trim_device(self.counters.total_device_bytes.load(Ordering::Relaxed).saturating_sub(budget));
        }
        self.pools.count_idle(&self.counters);
    }

    /// Gives up idle device buffers until `bytes` of them have gone, or all.
    fn trim_device(&self, bytes: u64) {
        if bytes > 0 {
            let dropped = {
                let mut pool = Pools::lock(&self.pools.device);
                let left = pool.bytes().saturating_sub(bytes);
                pool.trim_to(left)
            };
            drop(dropped);
            self.pools.count_idle(&self.counters);
        }
    }

    /// Gives up every idle buffer.
    pub(crate) fn trim_all(&self) {
        self.trim_device(u64::MAX);
        let dropped = Pools::lock(&self.pools.staging).trim_to(0);
        drop(dropped);
    }

    /// Words into a buffer, before the next submission.
    pub(crate) fn write(&self, buffer: &wgpu::Buffer, word: usize, words: &[u32]) {
        if !words.is_empty() {
            self.queue.write_buffer(buffer, word as u64 * 4, bytemuck::cast_slice(words));
        }
    }
}

/// The bytes that kernels see of a buffer for `words`, and those it is made with.
fn sizes(purpose: Purpose, words: usize) -> (u64, u64) {
    // Whole 16-byte groups, so that kernels may load four words at a time up to the end.
    let size = (words as u64 * 4).next_multiple_of(16).max(16);
    (size, purpose.class(size))
}

fn what(purpose: Purpose) -> String {
    purpose.label().trim_start_matches("tensor:").to_owned()
}

/// Catches every kind of device error of this thread until popped or dropped, so that none reaches the app's own error handler.
pub(crate) struct ErrorScope {
    // Scopes nest, and fields drop in order: the one pushed last comes first.
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

    /// The first error caught, where it is known at once (everywhere but in a browser).
    pub(crate) fn pop(self) -> Option<wgpu::Error> {
        let internal = now_or_never(self.internal.pop()).flatten();
        let memory = now_or_never(self.memory.pop()).flatten();
        let validation = now_or_never(self.validation.pop()).flatten();
        memory.or(validation).or(internal)
    }
}
