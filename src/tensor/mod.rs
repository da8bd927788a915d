//! Tensors as components, host data, and the models that own tensors.

mod data;
mod model;
mod print;
mod spawn;
mod storage;
mod usage;

use std::sync::Arc;

use bevy::prelude::*;

pub(crate) use data::HeldWords;
pub use data::TensorData;
pub use model::{ModelTensors, NameError, ShareError, TensorModel, TensorModels, TensorOf};
pub use spawn::TensorSpawnExt;
pub use usage::{Residency, TensorUsage};

pub use crate::ir::{Class, DType, Element, GgufType, Layout, Shape, Strides, Truth};

pub(crate) use data::{check_blocks, check_size, pack};
pub(crate) use model::{TensorNames, plugin};
pub(crate) use storage::{DeviceSlot, Generator, Initial, Storage};

use crate::error::TensorError;
use crate::ir::{Backend, scalar_bits};

/// An n-dimensional array on a tensor backend.
///
/// A tensor has a shape and an element type, and views a storage. Clones, views and shared tensors use the same
/// storage: they need no extra memory, and a write through one is seen by all. The storage is freed when the last of
/// them is dropped and no submitted work uses it any more. A view of a quantised tensor must be a range of whole rows.
///
/// The component is immutable. Change its *values* with [`TensorCommands::write`](crate::ops::TensorCommands::write)
/// and [`TensorCommands::store`](crate::ops::TensorCommands::store). To change its shape, insert another `Tensor`.
#[derive(Component, Clone, Reflect)]
#[component(immutable)]
#[reflect(opaque)]
#[reflect(Component, Clone, Debug)]
pub struct Tensor {
    layout: Layout,
    storage: Arc<Storage>,
}

impl core::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tensor")
            .field("shape", self.shape())
            .field("dtype", &self.dtype())
            .field("storage", &self.storage_id())
            .finish_non_exhaustive()
    }
}

impl Tensor {
    /// Creates a tensor from values in row-major order.
    pub fn from_slice<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Self, TensorError> {
        Ok(Self::from(TensorData::new(values, shape)?))
    }

    /// Creates a tensor of shape `[rows, row length]` from rows of equal length.
    pub fn from_rows<T: Element, R: AsRef<[T]>>(rows: &[R]) -> Result<Self, TensorError> {
        let expected = rows.first().map_or(0, |row| row.as_ref().len());
        // Rows may repeat, so that there can be more values than memory.
        check_size(T::DTYPE, &Shape::from([rows.len(), expected]))?;
        let mut values = Vec::with_capacity(rows.len() * expected);
        for (row, slice) in rows.iter().map(AsRef::as_ref).enumerate() {
            if slice.len() != expected {
                return Err(TensorError::Ragged { row, length: slice.len(), expected });
            }
            values.extend_from_slice(slice);
        }
        Self::from_slice(&values, [rows.len(), expected])
    }

    /// Creates a quantised tensor from numbers in row-major order. `dtype` is one of [`DType::QUANTIZED`]; the host
    /// quantises.
    pub fn quantized(dtype: DType, shape: impl Into<Shape>, values: &[f32]) -> Result<Self, TensorError> {
        Ok(Self::from(TensorData::quantized(dtype, shape, values)?))
    }

    /// Creates a quantised tensor from the blocks of a GGUF file; see [`TensorData::from_gguf_blocks`].
    pub fn from_gguf_blocks(dtype: DType, shape: impl Into<Shape>, bytes: &[u8]) -> Result<Self, TensorError> {
        Ok(Self::from(TensorData::from_gguf_blocks(dtype, shape, bytes)?))
    }

    /// Creates a tensor of zeros (`false` for [`DType::Bool`]).
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Result<Self, TensorError> {
        Self::with(shape.into(), dtype, Initial::Zeros)
    }

    /// Creates a tensor of ones (`true` for [`DType::Bool`]).
    pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Result<Self, TensorError> {
        Self::full(shape, 1.0, dtype)
    }

    /// Creates a tensor in which every element is `value`. The value is converted as by a cast: integers truncate and
    /// saturate, [`DType::Bool`] becomes `value != 0`.
    pub fn full(shape: impl Into<Shape>, value: f64, dtype: DType) -> Result<Self, TensorError> {
        let dtype = plain("full", dtype)?;
        Self::with(shape.into(), dtype, Initial::Generated(Generator::Full(scalar_bits(value, dtype))))
    }

    /// Creates a rank-1 tensor of `count` numbers: `start`, `start + step`, ….
    pub fn arange(start: f64, step: f64, count: usize, dtype: DType) -> Result<Self, TensorError> {
        if plain("arange", dtype)? == DType::Bool {
            return Err(TensorError::UnsupportedType { constructor: "arange", dtype });
        }
        let wide = dtype.wide();
        let (start, step) = (scalar_bits(start, wide), scalar_bits(step, wide));
        Self::with(Shape::from([count]), dtype, Initial::Generated(Generator::Arange { start, step }))
    }

    /// Creates a tensor of shape `[rows, columns]` with ones on the main diagonal and zeros elsewhere.
    pub fn eye(rows: usize, columns: usize, dtype: DType) -> Result<Self, TensorError> {
        let dtype = plain("eye", dtype)?;
        Self::with(Shape::from([rows, columns]), dtype, Initial::Generated(Generator::Eye { columns }))
    }

    /// Creates a tensor of uniformly distributed numbers in `low..high`. The same seed gives the same numbers on every
    /// backend. Floats only.
    pub fn random_uniform(
        shape: impl Into<Shape>,
        low: f32,
        high: f32,
        seed: u32,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        Self::random("random_uniform", shape.into(), Generator::Uniform { seed, low, high }, dtype)
    }

    /// Creates a tensor of normally distributed numbers. The same seed gives the same numbers on every backend, except
    /// for rounding. Floats only.
    pub fn random_normal(
        shape: impl Into<Shape>,
        mean: f32,
        deviation: f32,
        seed: u32,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        Self::random("random_normal", shape.into(), Generator::Normal { seed, mean, deviation }, dtype)
    }

    fn random(
        constructor: &'static str,
        shape: Shape,
        generator: Generator,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        if !dtype.is_float() {
            return Err(TensorError::UnsupportedType { constructor, dtype });
        }
        Self::with(shape, dtype, Initial::Generated(generator))
    }

    fn with(shape: Shape, dtype: DType, initial: Initial) -> Result<Self, TensorError> {
        check_blocks(dtype, &shape)?;
        check_size(dtype, &shape)?;
        let storage = Storage::new(dtype, shape.elements(), initial);
        Ok(Self { layout: Layout::contiguous(shape), storage })
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &Shape {
        &self.layout.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.storage.dtype()
    }

    /// The positions of the elements in the storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of the storage behind this tensor. All views and shares of it use the same bytes.
    pub fn storage_bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// Identifies the storage. Tensors with the same id see each other's writes.
    pub fn storage_id(&self) -> u64 {
        self.storage.id()
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// A view of the same storage. Views of quantised tensors must be ranges of whole rows.
    pub(crate) fn view(&self, layout: Layout) -> Result<Self, TensorError> {
        match self.dtype().block() {
            Some(block) if !layout.is_run_of_blocks(block) => {
                Err(TensorError::QuantizedView { shape: self.shape().clone(), dtype: self.dtype() })
            }
            _ => Ok(Self { layout, storage: self.storage.clone() }),
        }
    }

    /// Returns a view of `start..end` of an axis. Negative axes and ends count from the end.
    pub fn slice(&self, axis: isize, start: isize, end: isize) -> Result<Self, TensorError> {
        self.slice_step(axis, start, end, 1)
    }

    /// Returns a view of every `step`-th element of `start..end` of an axis. Negative numbers, and ends beyond the
    /// axis, work as in Python.
    pub fn slice_step(&self, axis: isize, start: isize, end: isize, step: isize) -> Result<Self, TensorError> {
        let axis = resolve_axis(axis, self.shape())?;
        let (start, count) = python_range(self.shape()[axis], start, end, step).ok_or_else(|| TensorError::Range {
            start,
            end,
            step,
            axis,
            shape: self.shape().clone(),
        })?;
        self.view(self.layout.slice(axis, start, count, step))
    }

    /// Returns a view of the same elements with another shape. Fails for a strided view that would need a copy;
    /// [`TensorCommands::reshape`](crate::ops::TensorCommands::reshape) copies where needed.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self, TensorError> {
        let to = shape.into();
        if to.checked_elements() != Some(self.layout.elements()) {
            return Err(TensorError::Reshape { from: self.shape().clone(), to });
        }
        check_size(self.dtype(), &to)?;
        match self.layout.reshape(&to) {
            Some(layout) => self.view(layout),
            None => Err(TensorError::NeedsCopy { from: self.shape().clone(), to }),
        }
    }

    /// Returns a view with reordered axes: axis `i` of the result is axis `order[i]` of this tensor.
    pub fn permute(&self, order: &[isize]) -> Result<Self, TensorError> {
        let order = resolve_permutation(order, self.shape())?;
        self.view(self.layout.permute(&order))
    }

    /// Returns a view with the last two axes swapped.
    pub fn transpose(&self) -> Result<Self, TensorError> {
        let rank = self.layout.rank();
        if rank < 2 {
            return Err(TensorError::Axis { axis: -2, shape: self.shape().clone() });
        }
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 1, rank - 2);
        self.view(self.layout.permute(&order))
    }

    /// Returns a read-only view that is broadcast to `shape` by NumPy's rules.
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Result<Self, TensorError> {
        let to = shape.into();
        check_size(self.dtype(), &to)?;
        match self.layout.broadcast_to(&to) {
            Some(layout) => self.view(layout),
            None => Err(TensorError::Broadcast { from: self.shape().clone(), to }),
        }
    }

    /// Returns a rank-1 view of `size` elements of a contiguous tensor, starting at element `offset`.
    pub fn window(&self, offset: usize, size: usize) -> Result<Self, TensorError> {
        let elements = self.layout.elements();
        if offset.checked_add(size).is_none_or(|end| end > elements) {
            return Err(TensorError::Window { offset, size, elements });
        }
        let flat = self.reshape([elements])?;
        flat.view(flat.layout.slice(0, offset, size, 1))
    }
}

impl Tensor {
    /// Creates a tensor on the GPU backend whose buffer belongs to the app. Work waits until
    /// [`Storage::lend`] gives it the buffer. It is never evicted.
    pub(crate) fn borrowed(dtype: DType, shape: Shape) -> Result<Self, TensorError> {
        check_blocks(dtype, &shape)?;
        check_size(dtype, &shape)?;
        let storage = Storage::expecting(dtype, shape.elements(), Backend::Gpu);
        storage.pin();
        Ok(Self { layout: Layout::contiguous(shape), storage })
    }

    /// The whole storage as a rank-1 tensor.
    pub(crate) fn whole_storage(&self) -> Self {
        Self { layout: Layout::contiguous([self.storage.elements()]), storage: self.storage.clone() }
    }

    /// Creates a tensor of any type whose content is written later. Its bits are zero until then.
    pub(crate) fn blank(dtype: DType, shape: Shape) -> Self {
        let storage = Storage::new(dtype, shape.elements(), Initial::Zeros);
        Self { layout: Layout::contiguous(shape), storage }
    }
}

impl From<TensorData> for Tensor {
    fn from(data: TensorData) -> Self {
        let storage = Storage::new(data.dtype(), data.shape().elements(), Initial::Data(data.shared_words()));
        Self { layout: Layout::contiguous(data.shape().clone()), storage }
    }
}

/// The type, if it is not quantised.
fn plain(constructor: &'static str, dtype: DType) -> Result<DType, TensorError> {
    if dtype.is_quantized() { Err(TensorError::UnsupportedType { constructor, dtype }) } else { Ok(dtype) }
}

/// Converts a possibly negative axis to an index.
pub(crate) fn resolve_axis(axis: isize, shape: &Shape) -> Result<usize, TensorError> {
    let rank = shape.rank() as isize;
    let index = if axis < 0 { axis + rank } else { axis };
    if (0..rank).contains(&index) { Ok(index as usize) } else { Err(TensorError::Axis { axis, shape: shape.clone() }) }
}

/// Converts possibly negative axes to a permutation of all axes.
pub(crate) fn resolve_permutation(order: &[isize], shape: &Shape) -> Result<Vec<usize>, TensorError> {
    let fail = || TensorError::Permutation { order: order.to_vec(), shape: shape.clone() };
    let resolved: Vec<usize> =
        order.iter().map(|&axis| resolve_axis(axis, shape)).collect::<Result<_, _>>().map_err(|_| fail())?;
    let mut seen = vec![false; shape.rank()];
    for &axis in &resolved {
        if core::mem::replace(&mut seen[axis], true) {
            return Err(fail());
        }
    }
    if seen.iter().all(|&s| s) { Ok(resolved) } else { Err(fail()) }
}

/// A Python slice of an axis of `size`, as first index and count. `None` for a step of 0. Ends beyond the axis are
/// clamped.
pub(crate) fn python_range(size: usize, start: isize, end: isize, step: isize) -> Option<(usize, usize)> {
    let n = size as isize;
    let from_back = |i: isize| if i < 0 { i.saturating_add(n) } else { i };
    match step {
        0 => None,
        1.. => {
            let (start, end) = (from_back(start).clamp(0, n), from_back(end).clamp(0, n));
            let count = (end - start).max(0) as usize;
            Some((start as usize, count.div_ceil(step as usize)))
        }
        _ => {
            let (start, end) = (from_back(start).clamp(-1, n - 1), from_back(end).clamp(-1, n - 1));
            let count = (start - end).max(0) as usize;
            Some((start.max(0) as usize, count.div_ceil(step.unsigned_abs())))
        }
    }
}
