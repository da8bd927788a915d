//! Device memory: buffers that are counted while they live, limits checked before, out-of-memory caught.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use bevy::tasks::futures::now_or_never;

use crate::diagnostics::{Count, Counters};
use crate::error::RunError;

/// The device, its queue and its limits, with the counters everything on it reports to.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    pub counters: Arc<Counters>,
}

/// What a buffer is for; decides its usage and which figure it counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Tensor,
    Scratch,
    /// Parameters and constants of a plan.
    Plan,
    Staging,
}

impl Purpose {
    fn label(self) -> &'static str {
        match self {
            Self::Tensor => "tensor:storage",
            Self::Scratch => "tensor:scratch",
            Self::Plan => "tensor:plan",
            Self::Staging => "tensor:staging",
        }
    }

    fn usage(self) -> wgpu::BufferUsages {
        use wgpu::BufferUsages as U;
        match self {
            Self::Tensor | Self::Scratch => U::STORAGE | U::COPY_SRC | U::COPY_DST,
            Self::Plan => U::STORAGE | U::UNIFORM | U::COPY_SRC | U::COPY_DST,
            Self::Staging => U::MAP_READ | U::COPY_DST,
        }
    }

    fn figure(self, counters: &Counters) -> &AtomicU64 {
        match self {
            Self::Tensor => &counters.device_bytes,
            Self::Scratch => &counters.scratch_bytes,
            Self::Plan => &counters.plan_bytes,
            Self::Staging => &counters.staging_bytes,
        }
    }
}

/// A buffer, freed and uncounted when dropped. Work that was submitted with it is not disturbed.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    pub buffer: wgpu::Buffer,
    /// Unique in the process: bind groups are cached by it.
    pub id: u64,
    pub bytes: u64,
    purpose: Purpose,
    counters: Arc<Counters>,
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.purpose.figure(&self.counters).sub(self.bytes);
        // Cached bind groups may still name the buffer; its memory must not wait for them.
        self.buffer.destroy();
    }
}

impl Gpu {
    /// A buffer of at least `words`, zeroed.
    pub(crate) fn allocate(&self, purpose: Purpose, words: usize) -> Result<Arc<DeviceBuffer>, RunError> {
        // Whole 16-byte groups, so that kernels may load four words at a time up to the end.
        let bytes = (words as u64 * 4).next_multiple_of(16).max(16);
        let available = match purpose {
            Purpose::Tensor => self.limits.max_buffer_size.min(self.limits.max_storage_buffer_binding_size),
            _ => self.limits.max_buffer_size,
        };
        let what = || purpose.label().trim_start_matches("tensor:").to_owned();
        if bytes > available {
            return Err(RunError::Limit { what: what(), requested: bytes, available });
        }
        let scope = ErrorScope::new(&self.device);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(purpose.label()),
            size: bytes,
            usage: purpose.usage(),
            mapped_at_creation: false,
        });
        match scope.pop() {
            None => {}
            Some(wgpu::Error::OutOfMemory { .. }) => {
                return Err(RunError::OutOfMemory { what: what(), requested: bytes });
            }
            Some(error) => return Err(RunError::Device(error.to_string())),
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.counters.buffers_allocated.add(1);
        purpose.figure(&self.counters).add(bytes);
        Ok(Arc::new(DeviceBuffer {
            buffer,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            bytes,
            purpose,
            counters: self.counters.clone(),
        }))
    }

    /// Words into a buffer, before the next submission.
    pub(crate) fn write(&self, buffer: &wgpu::Buffer, word: usize, words: &[u32]) {
        if !words.is_empty() {
            self.queue.write_buffer(buffer, word as u64 * 4, bytemuck::cast_slice(words));
        }
    }
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
