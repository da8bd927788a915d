//! Typed views of words, which twins use to read operands and write results.

use std::borrow::Cow;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::ir::{BlockFormat, DType, Layout};
use crate::kernel::host::CpuPool;
use crate::kernel::host::number::Number;
use crate::kernel::host::packed::{Form, HostWords, Packed};
use crate::kernel::host::walk::Cursor;

/// Memory viewed as elements. `U8` is also used for booleans.
#[derive(Clone, Copy)]
pub(crate) enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
    I32(&'a [i32]),
    U32(&'a [u32]),
    I8(&'a [i8]),
    U8(&'a [u8]),
    Blocks(BlockFormat, &'a [u32]),
}

/// Fills `out` with elements starting at `at`, `stride` apart.
#[inline(always)]
fn copy_run<S: Copy>(source: &[S], at: isize, stride: isize, out: &mut [u32], widen: impl Fn(S) -> u32) {
    match stride {
        1 => {
            let source = &source[at as usize..at as usize + out.len()];
            for (o, &s) in out.iter_mut().zip(source) {
                *o = widen(s);
            }
        }
        0 => out.fill(widen(source[at as usize])),
        _ => {
            let mut at = at;
            for o in out {
                *o = widen(source[at as usize]);
                at += stride;
            }
        }
    }
}

/// Number of columns transposed at a time.
const TURN: usize = 8;

/// Fills rows of `columns` cells from columns that are contiguous and start `stride` apart.
#[inline(always)]
fn copy_turned<S: Copy>(
    source: &[S],
    at: isize,
    stride: isize,
    columns: usize,
    out: &mut [u32],
    widen: impl Fn(S) -> u32,
) {
    let rows = out.len() / columns;
    let source = |column: usize| &source[(at + column as isize * stride) as usize..][..rows];
    let whole = columns / TURN * TURN;
    for first in (0..whole).step_by(TURN) {
        // Transposes a vector of every row at a time.
        let columns: [&[S]; TURN] = core::array::from_fn(|i| source(first + i));
        for (row, cells) in out.chunks_mut(out.len() / rows).enumerate() {
            for i in 0..TURN {
                cells[first + i] = widen(columns[i][row]);
            }
        }
    }
    for column in whole..columns {
        for (cell, &s) in out[column..].iter_mut().step_by(columns).zip(source(column)) {
            *cell = widen(s);
        }
    }
}

/// Writes rows of `columns` cells to contiguous columns.
#[inline(always)]
fn store_turned<S>(
    target: &mut [S],
    at: isize,
    stride: isize,
    columns: usize,
    values: &[u32],
    narrow: impl Fn(u32) -> S,
) {
    let rows = values.len() / columns;
    for column in 0..columns {
        let target = &mut target[(at + column as isize * stride) as usize..][..rows];
        for (t, &v) in target.iter_mut().zip(values[column..].iter().step_by(columns)) {
            *t = narrow(v);
        }
    }
}

impl<'a> Elements<'a> {
    pub(crate) fn new(words: &'a [u32], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32(cast_slice(words)),
            DType::F16 => Self::F16(cast_slice(words)),
            DType::BF16 => Self::BF16(cast_slice(words)),
            DType::I32 => Self::I32(cast_slice(words)),
            DType::U32 => Self::U32(words),
            DType::I8 => Self::I8(cast_slice(words)),
            DType::U8 | DType::Bool => Self::U8(cast_slice(words)),
            _ => dtype.block_format().map_or(Self::U32(words), |format| Self::Blocks(format, words)),
        }
    }

    /// Loads elements starting at `at`, `stride` apart, as bits of the 32-bit type of their class.
    pub(crate) fn load(self, at: isize, stride: isize, out: &mut [u32]) {
        if out.is_empty() {
            return;
        }
        match self {
            Self::F16(s) if stride == 1 => {
                s[at as usize..at as usize + out.len()].convert_to_f32_slice(cast_slice_mut(out));
            }
            Self::F32(s) => copy_run(s, at, stride, out, f32::to_bits),
            Self::F16(s) => copy_run(s, at, stride, out, |v| v.to_f32().to_bits()),
            Self::BF16(s) => copy_run(s, at, stride, out, |v| v.to_f32().to_bits()),
            Self::I32(s) => copy_run(s, at, stride, out, |v| v as u32),
            Self::U32(s) => copy_run(s, at, stride, out, |v| v),
            Self::I8(s) => copy_run(s, at, stride, out, |v| i32::from(v) as u32),
            Self::U8(s) => copy_run(s, at, stride, out, u32::from),
            Self::Blocks(format, s) if stride == 1 => load_blocks(format, s, at as usize, cast_slice_mut(out)),
            Self::Blocks(format, s) => {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = format.get(s, (at + i as isize * stride) as usize).to_bits();
                }
            }
        }
    }

    /// Loads rows of `columns` elements whose columns are contiguous and start `stride` apart.
    pub(crate) fn load_turned(self, at: isize, stride: isize, columns: usize, out: &mut [u32]) {
        match self {
            Self::F32(s) => copy_turned(s, at, stride, columns, out, f32::to_bits),
            Self::F16(s) => copy_turned(s, at, stride, columns, out, |v| v.to_f32().to_bits()),
            Self::BF16(s) => copy_turned(s, at, stride, columns, out, |v| v.to_f32().to_bits()),
            Self::I32(s) => copy_turned(s, at, stride, columns, out, |v| v as u32),
            Self::U32(s) => copy_turned(s, at, stride, columns, out, |v| v),
            Self::I8(s) => copy_turned(s, at, stride, columns, out, |v| i32::from(v) as u32),
            Self::U8(s) => copy_turned(s, at, stride, columns, out, u32::from),
            Self::Blocks(format, s) => {
                for (i, out) in out.iter_mut().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let place = at + column as isize * stride + row as isize;
                    *out = format.get(s, place as usize).to_bits();
                }
            }
        }
    }

    /// The words of elements that are 32 bits wide.
    pub(crate) fn words(self) -> Option<&'a [u32]> {
        match self {
            Self::F32(s) => Some(cast_slice(s)),
            Self::I32(s) => Some(cast_slice(s)),
            Self::U32(s) => Some(s),
            Self::F16(_) | Self::BF16(_) | Self::I8(_) | Self::U8(_) | Self::Blocks(..) => None,
        }
    }

    /// One element, as bits of its class.
    pub(crate) fn get(self, at: usize) -> u32 {
        let mut out = [0];
        self.load(at as isize, 1, &mut out);
        out[0]
    }

    /// One integer element.
    pub(crate) fn get_index(self, at: usize) -> i64 {
        match self {
            Self::U32(s) => i64::from(s[at]),
            Self::I32(s) => i64::from(s[at]),
            Self::F32(s) => s[at] as i64,
            Self::F16(s) => s[at].to_f32() as i64,
            Self::BF16(s) => s[at].to_f32() as i64,
            Self::I8(s) => i64::from(s[at]),
            Self::U8(s) => i64::from(s[at]),
            Self::Blocks(format, s) => format.get(s, at) as i64,
        }
    }
}

/// Loads elements starting at `at`, in whole blocks where possible.
fn load_blocks(format: BlockFormat, words: &[u32], at: usize, out: &mut [f32]) {
    let single = |at: usize, out: &mut [f32]| {
        for (i, out) in out.iter_mut().enumerate() {
            *out = format.get(words, at + i);
        }
    };
    let before = (at.next_multiple_of(format.elements) - at).min(out.len());
    let (head, rest) = out.split_at_mut(before);
    single(at, head);
    let mut at = at + before;
    let mut blocks = rest.chunks_exact_mut(format.elements);
    for out in &mut blocks {
        format.dequantize(words, at / format.elements, out);
        at += format.elements;
    }
    single(at, blocks.into_remainder());
}

/// Writable memory viewed as elements.
pub(crate) enum ElementsMut<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    BF16(&'a mut [bf16]),
    I32(&'a mut [i32]),
    U32(&'a mut [u32]),
    I8(&'a mut [i8]),
    U8(&'a mut [u8]),
    Bool(&'a mut [u8]),
}

/// Writes values starting at `at`, `stride` apart.
#[inline(always)]
fn store_run<S>(target: &mut [S], at: isize, stride: isize, values: &[u32], narrow: impl Fn(u32) -> S) {
    if stride == 1 {
        for (t, &v) in target[at as usize..at as usize + values.len()].iter_mut().zip(values) {
            *t = narrow(v);
        }
    } else {
        let mut at = at;
        for &v in values {
            target[at as usize] = narrow(v);
            at += stride;
        }
    }
}

impl<'a> ElementsMut<'a> {
    pub(crate) fn new(words: &'a mut [u32], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32(cast_slice_mut(words)),
            DType::F16 => Self::F16(cast_slice_mut(words)),
            DType::BF16 => Self::BF16(cast_slice_mut(words)),
            DType::I32 => Self::I32(cast_slice_mut(words)),
            DType::U32 => Self::U32(words),
            DType::I8 => Self::I8(cast_slice_mut(words)),
            DType::U8 => Self::U8(cast_slice_mut(words)),
            DType::Bool => Self::Bool(cast_slice_mut(words)),
            // Blocks are written by kernels that access the words directly.
            DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => Self::U32(words),
        }
    }

    /// A read-only view.
    pub(crate) fn view(&self) -> Elements<'_> {
        match self {
            Self::F32(s) => Elements::F32(s),
            Self::F16(s) => Elements::F16(s),
            Self::BF16(s) => Elements::BF16(s),
            Self::I32(s) => Elements::I32(s),
            Self::U32(s) => Elements::U32(s),
            Self::I8(s) => Elements::I8(s),
            Self::U8(s) | Self::Bool(s) => Elements::U8(s),
        }
    }

    /// The words of some elements, if they are 32 bits wide. The result of a kernel always is.
    pub(crate) fn words(&mut self, range: core::ops::Range<usize>) -> &mut [u32] {
        match self {
            Self::F32(s) => cast_slice_mut(&mut s[range]),
            Self::I32(s) => cast_slice_mut(&mut s[range]),
            Self::U32(s) => &mut s[range],
            Self::F16(_) | Self::BF16(_) | Self::I8(_) | Self::U8(_) | Self::Bool(_) => &mut [],
        }
    }

    /// Splits before element `at`.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        macro_rules! split {
            ($($variant:ident),*) => {
                match self {
                    $(Self::$variant(s) => {
                        let (a, b) = s.split_at_mut(at.min(s.len()));
                        (Self::$variant(a), Self::$variant(b))
                    })*
                }
            };
        }
        split!(F32, F16, BF16, I32, U32, I8, U8, Bool)
    }

    /// Stores values given as bits of the 32-bit type of the class, converting them to the element type.
    pub(crate) fn store(&mut self, at: isize, stride: isize, values: &[u32]) {
        match self {
            Self::F16(s) if stride == 1 => {
                s[at as usize..at as usize + values.len()].convert_from_f32_slice(cast_slice(values));
            }
            Self::F32(s) => store_run(s, at, stride, values, f32::from_bits),
            Self::F16(s) => store_run(s, at, stride, values, |v| f16::from_f32(f32::from_bits(v))),
            Self::BF16(s) => store_run(s, at, stride, values, |v| bf16::from_f32(f32::from_bits(v))),
            Self::I32(s) => store_run(s, at, stride, values, |v| v as i32),
            Self::U32(s) => store_run(s, at, stride, values, |v| v),
            Self::I8(s) => store_run(s, at, stride, values, |v| v as i8),
            Self::U8(s) => store_run(s, at, stride, values, |v| v as u8),
            Self::Bool(s) => store_run(s, at, stride, values, |v| u8::from(v != 0)),
        }
    }
    /// Like [`Self::store`], for rows of `columns` values whose columns are contiguous and start `stride` apart.
    pub(crate) fn store_turned(&mut self, at: isize, stride: isize, columns: usize, values: &[u32]) {
        match self {
            Self::F32(s) => store_turned(s, at, stride, columns, values, f32::from_bits),
            Self::F16(s) => store_turned(s, at, stride, columns, values, |v| f16::from_f32(f32::from_bits(v))),
            Self::BF16(s) => store_turned(s, at, stride, columns, values, |v| bf16::from_f32(f32::from_bits(v))),
            Self::I32(s) => store_turned(s, at, stride, columns, values, |v| v as i32),
            Self::U32(s) => store_turned(s, at, stride, columns, values, |v| v),
            Self::I8(s) => store_turned(s, at, stride, columns, values, |v| v as i8),
            Self::U8(s) => store_turned(s, at, stride, columns, values, |v| v as u8),
            Self::Bool(s) => store_turned(s, at, stride, columns, values, |v| u8::from(v != 0)),
        }
    }
}

/// An input of a twin.
#[derive(Clone)]
pub(crate) struct Input<'a> {
    pub elements: Elements<'a>,
    pub layout: Layout,
}

/// Number of elements that one task widens at a time.
const WIDEN: usize = 1 << 16;

impl<'a> Input<'a> {
    /// All elements in row-major order. Borrowed if they already are `T`s in that order.
    pub(crate) fn contiguous<T: Number>(&self, pool: &CpuPool) -> Cow<'a, [T]> {
        let n = self.layout.elements();
        let start = self.layout.offset;
        let contiguous = self.layout.is_contiguous();
        match T::borrow(self.elements) {
            _ if n == 0 => Cow::Borrowed(&[]),
            Some(values) if contiguous => Cow::Borrowed(&values[start..start + n]),
            _ => {
                let mut values = vec![T::ZERO; n];
                if contiguous {
                    let chunks = values.chunks_mut(WIDEN).enumerate();
                    pool.each(chunks, |(i, chunk)| self.range(i * WIDEN, chunk));
                } else {
                    let words: &mut [u32] = cast_slice_mut(&mut values);
                    Cursor::of(&self.layout).runs(n, |at, stride, range| {
                        self.elements.load(at, stride, &mut words[range]);
                    });
                }
                Cow::Owned(values)
            }
        }
    }

    /// All elements of an input with these words in row-major order, widened and kept for later calls. `None` if they
    /// can be used as they are or if keeping them does not pay.
    pub(crate) fn widened(&self, words: &HostWords, pool: &CpuPool) -> Option<Arc<Packed>> {
        if matches!(self.elements, Elements::F32(_)) && self.layout.is_contiguous() {
            return None;
        }
        words.packed(&self.layout, Form::Rows, self.layout.elements(), pool.counters(), |floats| {
            floats.copy_from_slice(&self.contiguous::<f32>(pool));
        })
    }

    /// The words of all elements of a contiguous input of a 32-bit type.
    pub(crate) fn contiguous_words(&self, pool: &CpuPool) -> Cow<'a, [u32]> {
        let range = self.layout.offset..self.layout.offset + self.layout.elements();
        match self.elements {
            Elements::F32(values) => Cow::Borrowed(cast_slice(&values[range])),
            Elements::I32(values) => Cow::Borrowed(cast_slice(&values[range])),
            Elements::U32(values) => Cow::Borrowed(&values[range]),
            _ => self.contiguous(pool),
        }
    }

    /// Loads elements of a contiguous input starting at row-major position `start`.
    pub(crate) fn range<T: Number>(&self, start: usize, out: &mut [T]) {
        self.elements.load((self.layout.offset + start) as isize, 1, cast_slice_mut(out));
    }

    /// Elements as `T` with a layout: the operand's own if no widening is needed, else that of a contiguous copy.
    pub(crate) fn strided<T: Number>(&self, pool: &CpuPool) -> (Cow<'a, [T]>, Layout) {
        if let Some(values) = T::borrow(self.elements) {
            return (Cow::Borrowed(values), self.layout.clone());
        }
        // Broadcast axes are widened once and stay broadcast.
        let mut once = self.layout.clone();
        for (n, stride) in once.shape.dims_mut().iter_mut().zip(&self.layout.strides) {
            if *stride == 0 && *n > 1 {
                *n = 1;
            }
        }
        let values = Input { elements: self.elements, layout: once.clone() }.contiguous(pool);
        let wide = Layout::contiguous(once.shape);
        let layout = wide.broadcast_to(&self.layout.shape).unwrap_or(wide);
        (values, layout)
    }
}
