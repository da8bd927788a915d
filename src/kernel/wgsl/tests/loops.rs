//! Compares kernels with plain loops, in every variant and at awkward sizes.

use half::{bf16, f16};

use super::super::lower;
use super::device::{caps, run_step_with};
use crate::ir::{Class, DType, Layout, Operand, Shape, Source};
use crate::kernel::*;

/// Number of elements before the data of every operand, so that offsets matter.
pub(super) const OFFSET: usize = 5;

/// An input: the elements of its storage, and the layout.
#[derive(Clone)]
pub(super) struct Input {
    pub(super) dtype: DType,
    pub(super) layout: Layout,
    pub(super) storage: Vec<f64>,
}

impl Input {
    pub(super) fn new(dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Self {
        let layout = Layout { offset: OFFSET, ..Layout::contiguous(shape) };
        assert_eq!(layout.elements(), values.len());
        let storage = [vec![1.0; OFFSET], values.to_vec(), vec![1.0; 3]].concat();
        Self { dtype, layout, storage }
    }

    /// Pseudo-random multiples of 1/8 between −2 and 2 (0 and 4 if unsigned), which every float type can represent.
    pub(super) fn random(dtype: DType, shape: impl Into<Shape>, seed: u32) -> Self {
        let shape = shape.into();
        let values = noise(dtype, shape.elements(), seed);
        Self::new(dtype, shape, &values)
    }

    /// The same input, with the data aligned to four elements.
    pub(super) fn aligned(mut self) -> Self {
        let ahead = self.layout.offset.next_multiple_of(4) - self.layout.offset;
        self.layout.offset += ahead;
        self.storage.splice(0..0, core::iter::repeat_n(1.0, ahead));
        self
    }

    /// The elements in row-major order of the layout.
    pub(super) fn values(&self) -> Vec<f64> {
        (0..self.layout.elements()).map(|i| self.storage[self.layout.position(i)]).collect()
    }
}

pub(super) fn noise(dtype: DType, n: usize, seed: u32) -> Vec<f64> {
    let mut state = seed.wrapping_mul(2654435761).wrapping_add(12345);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f64::from(state >> 8 & 31)
    };
    (0..n)
        .map(|_| match dtype.class() {
            _ if dtype == DType::Bool => next() % 2.0,
            Class::Float => next() / 8.0 - 2.0,
            Class::Int => next() - 16.0,
            Class::Uint => next(),
        })
        .collect()
}

fn pack(dtype: DType, values: &[f64]) -> Vec<u32> {
    let mut bytes: Vec<u8> = values
        .iter()
        .flat_map(|&v| match dtype {
            DType::F32 => (v as f32).to_le_bytes().to_vec(),
            DType::F16 => f16::from_f64(v).to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(v).to_le_bytes().to_vec(),
            DType::I32 => (v as i32).to_le_bytes().to_vec(),
            DType::U32 => (v as u32).to_le_bytes().to_vec(),
            DType::I8 => (v as i8).to_le_bytes().to_vec(),
            _ => vec![v as u8],
        })
        .collect();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytemuck::pod_collect_to_vec(&bytes)
}

fn unpack(dtype: DType, words: &[u32]) -> Vec<f64> {
    words
        .iter()
        .map(|&w| match dtype {
            DType::F32 => f64::from(f32::from_bits(w)),
            DType::I32 => f64::from(w as i32),
            _ => f64::from(w),
        })
        .collect()
}

/// Devices for which every variant of a kernel is chosen. No two give the same launch.
fn devices(step: &Step) -> Vec<Caps> {
    let gpu = Caps {
        subgroup: None,
        software: false,
        wide: false,
        halves: false,
        invocations: 256,
        workgroup_memory: 16384,
        workgroups: 65535,
        variant: None,
    };
    let software = Caps { software: true, ..gpu };
    let mut devices = vec![gpu, Caps { invocations: 128, workgroups: 3, ..gpu }];
    for software in [software, Caps { subgroup: caps().subgroup, wide: caps().wide, workgroups: 3, ..software }] {
        if devices.iter().all(|other| lower(step, other) != lower(step, &software)) {
            devices.push(software);
        }
    }
    devices
}

fn step(kernel: Kernel, inputs: &[Input], dtype: DType, shape: impl Into<Shape>, scalars: usize) -> Step {
    let operand =
        |i: usize, dtype, layout: &Layout| Operand { source: Source::Slot(i as u32), dtype, layout: layout.clone() };
    let out = Layout { offset: OFFSET, ..Layout::contiguous(shape) };
    let operands = inputs.iter().enumerate().map(|(i, input)| operand(i, input.dtype, &input.layout));
    // Scalars in a different order than the kernel's.
    let scalars = (0..scalars as u32).rev().collect();
    Step { scalars, ..Step::new(kernel, operands, operand(inputs.len(), dtype, &out)) }
}

/// Runs the step in every variant and compares the results. `scalars` are in the kernel's order. Returns the number of
/// faults.
#[track_caller]
pub(super) fn check(
    kernel: Kernel,
    inputs: &[Input],
    dtype: DType,
    shape: impl Into<Shape>,
    scalars: &[u32],
    expected: &[f64],
) -> u32 {
    let step = step(kernel, inputs, dtype, shape, scalars.len());
    let n = step.outputs[0].layout.elements();
    assert_eq!(n, expected.len(), "the test's own loops");
    let scalars: Vec<u32> = scalars.iter().rev().copied().collect();
    let source = |i: usize| Source::Slot(i as u32);
    let mut buffers: Vec<(Source, Vec<u32>)> =
        inputs.iter().enumerate().map(|(i, input)| (source(i), pack(input.dtype, &input.storage))).collect();
    buffers.push((source(inputs.len()), vec![0xdead; n + OFFSET + 7]));
    let mut counted = None;
    for caps in devices(&step) {
        let (buffers, faults) = run_step_with(&step, &buffers, &scalars, &caps);
        let words = &buffers[inputs.len()].1;
        assert!(words[..OFFSET].iter().chain(&words[OFFSET + n..]).all(|&w| w == 0xdead), "wrote outside: {caps:?}");
        let actual = unpack(dtype, &words[OFFSET..OFFSET + n]);
        for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
            let same = a == e || (a.is_nan() && e.is_nan()) || (a - e).abs() <= 1e-5 + 1e-4 * e.abs();
            assert!(same, "element {i}: {a}, expected {e}; {:?} on {caps:?}", step.kernel);
        }
        assert_eq!(*counted.get_or_insert(faults), faults);
    }
    counted.unwrap_or(0)
}

/// Every index of a shape, row-major.
pub(super) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, &n| {
        all.iter().flat_map(|index| (0..n).map(move |i| [index.as_slice(), &[i]].concat())).collect()
    })
}

/// The row-major position of an index.
pub(super) fn at(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |at, (&n, &i)| at * n + i)
}
