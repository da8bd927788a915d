//! What the user owns: tensors as components, their shapes and types, and the models they belong to.

mod data;
mod model;
mod storage;
mod usage;

use std::sync::Arc;

use bevy::prelude::*;

pub use data::TensorData;
pub use model::{ModelTensors, NameError, ShareError, TensorModel, TensorModels, TensorOf};
pub use usage::{Residency, TensorUsage};

pub(crate) use data::{check_blocks, pack};
pub(crate) use model::{TensorNames, plugin};
pub(crate) use storage::{DeviceSlot, Generator, Initial, Storage};

use crate::error::TensorError;
use crate::ir::{DType, Element, Layout, Shape, scalar_bits};

/// An n-dimensional array that lives on the tensor backend.
///
/// A tensor is a shape, an element type and a view of a storage; cloning it, viewing it and sharing it add no bytes, and all
/// tensors on one storage see each other's writes. The storage is freed with the last of them (work in flight holds its own
/// reference). Of a quantised tensor only runs of whole rows can be viewed. The component is immutable: write its *values* with [`TensorCommands::write`](crate::TensorCommands::write) and
/// [`TensorCommands::store`](crate::TensorCommands::store), replace the component to change its shape.
#[derive(Component, Clone, Debug)]
#[component(immutable)]
pub struct Tensor {
    layout: Layout,
    storage: Arc<Storage>,
}

impl Tensor {
    /// From values in row-major order.
    pub fn from_slice<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Self, TensorError> {
        Ok(Self::from(TensorData::new(values, shape)?))
    }

    /// From rows of equal length: shape `[rows, row length]`.
    pub fn from_rows<T: Element, R: AsRef<[T]>>(rows: &[R]) -> Result<Self, TensorError> {
        let expected = rows.first().map_or(0, |row| row.as_ref().len());
        let mut values = Vec::with_capacity(rows.len() * expected);
        for (row, slice) in rows.iter().map(AsRef::as_ref).enumerate() {
            if slice.len() != expected {
                return Err(TensorError::Ragged { row, length: slice.len(), expected });
            }
            values.extend_from_slice(slice);
        }
        Self::from_slice(&values, [rows.len(), expected])
    }

    /// Numbers in row-major order, quantised on the host to a type of [`DType::QUANTIZED`].
    pub fn quantized(dtype: DType, shape: impl Into<Shape>, values: &[f32]) -> Result<Self, TensorError> {
        Ok(Self::from(TensorData::quantized(dtype, shape, values)?))
    }

    /// Quantised blocks as they stand in a GGUF file; see [`TensorData::from_gguf_blocks`].
    pub fn from_gguf_blocks(dtype: DType, shape: impl Into<Shape>, bytes: &[u8]) -> Result<Self, TensorError> {
        Ok(Self::from(TensorData::from_gguf_blocks(dtype, shape, bytes)?))
    }

    /// All zero (false).
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Result<Self, TensorError> {
        Self::with(shape.into(), dtype, Initial::Zeros)
    }

    /// All one (true).
    pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Result<Self, TensorError> {
        Self::full(shape, 1.0, dtype)
    }

    /// One number everywhere, converted as a cast would: integers truncate and saturate, a truth value is `value != 0`.
    pub fn full(shape: impl Into<Shape>, value: f64, dtype: DType) -> Result<Self, TensorError> {
        let dtype = plain("full", dtype)?;
        Self::with(shape.into(), dtype, Initial::Generated(Generator::Full(scalar_bits(value, dtype))))
    }

    /// `start`, `start + step`, …: `count` numbers.
    pub fn arange(start: f64, step: f64, count: usize, dtype: DType) -> Result<Self, TensorError> {
        if plain("arange", dtype)? == DType::Bool {
            return Err(TensorError::UnsupportedType { constructor: "arange", dtype });
        }
        let wide = dtype.wide();
        let (start, step) = (scalar_bits(start, wide), scalar_bits(step, wide));
        Self::with(Shape::from([count]), dtype, Initial::Generated(Generator::Arange { start, step }))
    }

    /// `[rows, columns]` with ones on the main diagonal.
    pub fn eye(rows: usize, columns: usize, dtype: DType) -> Result<Self, TensorError> {
        let dtype = plain("eye", dtype)?;
        Self::with(Shape::from([rows, columns]), dtype, Initial::Generated(Generator::Eye { columns }))
    }

    /// Uniform numbers in `low..high`, the same for the same seed on every backend. Floats only.
    pub fn random_uniform(
        shape: impl Into<Shape>,
        low: f32,
        high: f32,
        seed: u32,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        Self::random("random_uniform", shape.into(), Generator::Uniform { seed, low, high }, dtype)
    }

    /// Normal numbers, the same (to rounding) for the same seed on every backend. Floats only.
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
        // Positions are 32-bit on the device, signed where strides may be negative.
        let elements = match shape.checked_elements() {
            Some(n) if n <= i32::MAX as usize => n,
            _ => return Err(TensorError::TooLarge { shape, dtype }),
        };
        let storage = Storage::new(dtype, elements, initial);
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

    /// Where the elements lie in the storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of the storage behind this tensor, however many views and shares it has.
    pub fn storage_bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// Identifies the storage: equal for tensors that see each other's writes.
    pub fn storage_id(&self) -> u64 {
        self.storage.id()
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Views of quantised tensors must be runs of whole rows.
    pub(crate) fn view(&self, layout: Layout) -> Result<Self, TensorError> {
        match self.dtype().block() {
            Some(block) if !layout.is_run_of_blocks(block) => {
                Err(TensorError::QuantizedView { shape: self.shape().clone(), dtype: self.dtype() })
            }
            _ => Ok(Self { layout, storage: self.storage.clone() }),
        }
    }

    /// `start..end` of an axis (negative axes and ends count from the back), as a view.
    pub fn slice(&self, axis: isize, start: isize, end: isize) -> Result<Self, TensorError> {
        self.slice_step(axis, start, end, 1)
    }

    /// Every `step`-th element of `start..end` of an axis, by Python's rules for negative numbers and ends beyond the axis, as a view.
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

    /// The same elements under another shape, as a view. A strided view that would need a copy is an error;
    /// [`TensorCommands::reshape`](crate::TensorCommands::reshape) copies.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self, TensorError> {
        let to = shape.into();
        if to.checked_elements() != Some(self.layout.elements()) {
            return Err(TensorError::Reshape { from: self.shape().clone(), to });
        }
        match self.layout.reshape(&to) {
            Some(layout) => self.view(layout),
            None => Err(TensorError::NeedsCopy { from: self.shape().clone(), to }),
        }
    }

    /// Axes reordered, as a view: axis `i` of the result is axis `order[i]` of this.
    pub fn permute(&self, order: &[isize]) -> Result<Self, TensorError> {
        let order = resolve_permutation(order, self.shape())?;
        self.view(self.layout.permute(&order))
    }

    /// The last two axes swapped, as a view.
    pub fn transpose(&self) -> Result<Self, TensorError> {
        let rank = self.layout.rank();
        if rank < 2 {
            return Err(TensorError::Axis { axis: -2, shape: self.shape().clone() });
        }
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 1, rank - 2);
        self.view(self.layout.permute(&order))
    }

    /// Stretched to `shape` by NumPy's rules, as a view that cannot be written.
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Result<Self, TensorError> {
        let to = shape.into();
        match self.layout.broadcast_to(&to) {
            Some(layout) => self.view(layout),
            None => Err(TensorError::Broadcast { from: self.shape().clone(), to }),
        }
    }

    /// `size` elements from element `offset` of a contiguous tensor, as a rank-1 view.
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
    /// Memory of any type for content that is to be written yet, zero bits until then.
    pub(crate) fn blank(dtype: DType, shape: Shape) -> Self {
        let storage = Storage::new(dtype, shape.elements(), Initial::Zeros);
        Self { layout: Layout::contiguous(shape), storage }
    }
}

impl From<TensorData> for Tensor {
    fn from(data: TensorData) -> Self {
        let storage = Storage::new(data.dtype(), data.shape().elements(), Initial::Data(data.words().clone()));
        Self { layout: Layout::contiguous(data.shape().clone()), storage }
    }
}

/// The type, if its elements stand on their own.
fn plain(constructor: &'static str, dtype: DType) -> Result<DType, TensorError> {
    if dtype.is_quantized() { Err(TensorError::UnsupportedType { constructor, dtype }) } else { Ok(dtype) }
}

/// A possibly negative axis as an index, or the error that names it.
pub(crate) fn resolve_axis(axis: isize, shape: &Shape) -> Result<usize, TensorError> {
    let rank = shape.rank() as isize;
    let index = if axis < 0 { axis + rank } else { axis };
    if (0..rank).contains(&index) { Ok(index as usize) } else { Err(TensorError::Axis { axis, shape: shape.clone() }) }
}

/// Possibly negative axes as a permutation of all axes.
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

/// Python's `range` over an axis of `size`: first index and count, or `None` for a step of 0. Ends beyond the axis are clamped.
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
