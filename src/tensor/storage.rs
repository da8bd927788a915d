//! The memory behind tensors. Views and shares are tensors on one [`Storage`]; the last reference frees it.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use super::{DType, Shape};
use crate::cpu::HostWords;
use crate::diagnostics::{Count, Counters};
use crate::gpu::DeviceBuffer;
use crate::record::{BinaryOp, Part, UnaryOp};
use crate::support::Backend;

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

/// A typed block of memory on one backend, counted by references.
#[derive(Debug)]
pub(crate) struct Storage {
    id: u64,
    dtype: DType,
    elements: usize,
    /// Decided when an op first touches it.
    home: OnceLock<Backend>,
    /// Until the backend has taken it over.
    initial: Mutex<Option<Initial>>,
    /// The words, on the CPU backend, once taken over.
    pub host: RwLock<HostWords>,
    /// Where the words are counted, once there are any.
    counted: OnceLock<Arc<Counters>>,
    /// The buffer, on the GPU backend, once taken over.
    device: Mutex<Option<Arc<DeviceBuffer>>>,
}

impl Storage {
    pub(crate) fn new(dtype: DType, elements: usize, initial: Initial) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            dtype,
            elements,
            home: OnceLock::new(),
            initial: Mutex::new(Some(initial)),
            host: RwLock::default(),
            counted: OnceLock::new(),
            device: Mutex::default(),
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
        *self.home.get_or_init(|| wish)
    }

    /// The backend the storage lives on, if an op has touched it.
    pub(crate) fn decided_home(&self) -> Option<Backend> {
        self.home.get().copied()
    }

    /// What it starts as, once: the backend that takes this must put it into its memory.
    pub(crate) fn take_initial(&self) -> Option<Initial> {
        self.initial.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Counts the words on the host until the storage is gone.
    pub(crate) fn count_host(&self, counters: &Arc<Counters>) {
        if self.counted.set(counters.clone()).is_ok() {
            counters.host_bytes.add(self.bytes() as u64);
        }
    }

    pub(crate) fn device(&self) -> Option<Arc<DeviceBuffer>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_device(&self, buffer: Arc<DeviceBuffer>) {
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = Some(buffer);
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(counters) = self.counted.get() {
            counters.host_bytes.sub(self.bytes() as u64);
        }
    }
}

impl Generator {
    /// The ops that fill `storage` with this.
    pub(crate) fn recording(self, storage: &Arc<Storage>) -> Part {
        let mut part = Part::default();
        let dtype = storage.dtype();
        let wide = dtype.wide();
        let flat = Shape::from([storage.elements]);
        let value = match self {
            Generator::Full(bits) => {
                let scalar = part.scalar(wide, bits);
                part.broadcast(scalar, &flat)
            }
            Generator::Arange { start, step } => {
                let index = part.iota(storage.elements);
                let index = part.cast(index, wide);
                let (start, step) = (part.scalar(wide, start), part.scalar(wide, step));
                let (start, step) = (part.broadcast(start, &flat), part.broadcast(step, &flat));
                let scaled = part.binary(BinaryOp::Mul, index, step);
                part.binary(BinaryOp::Add, scaled, start)
            }
            Generator::Eye { columns } => {
                let rows = storage.elements / columns.max(1);
                let square = Shape::from([rows, columns]);
                let row = part.iota(rows);
                let row = part.reshape(row, &Shape::from([rows, 1]));
                let column = part.iota(columns);
                let (row, column) = (part.broadcast(row, &square), part.broadcast(column, &square));
                let same = part.binary(BinaryOp::Eq, row, column);
                part.reshape(same, &flat)
            }
            Generator::Uniform { seed, low, high } => {
                let unit = part.random(UnaryOp::RandomUniform, storage.elements, seed);
                part.scale_shift(unit, high - low, low)
            }
            Generator::Normal { seed, mean, deviation } => {
                let normal = part.random(UnaryOp::RandomNormal, storage.elements, seed);
                part.scale_shift(normal, deviation, mean)
            }
        };
        let value = part.cast(value, dtype);
        let slot = part.slot(storage);
        part.store(value, slot, super::Layout::contiguous(flat));
        part
    }
}
