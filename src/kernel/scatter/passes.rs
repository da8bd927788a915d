//! Scatters of many updates on devices. The updates are sorted by what they hit, and a thread combines those of one target,
//! in their order. The cost is that of the sort, the result does not depend on timing, and no thread has long loops:
//! long stretches of updates of one target are combined piece by piece, and pieces of pieces.

use core::fmt::Write;

use bytemuck::cast_slice_mut;

use super::cpu::combine;
use super::wgsl::combine_code;
use crate::error::RunError;
use crate::ir::{Class, DType, ScatterReduce, Shape};
use crate::kernel::gather::cpu::{each_position, index, resolve, resolve_tuple};
use crate::kernel::gather::wgsl::{Lines, resolve_code, slice_code};
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::sort::sorted;
use crate::kernel::spec::{Fusing, InputNames, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part, Pass, PassInput, PassInputs};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Kernel, Launch, Step, Variants};

/// Updates, or smaller pieces, in a piece.
const PIECE: usize = 256;
/// Work in element-updates up to which every element looks at all its updates, in one launch.
const SMALL: usize = 1 << 20;
/// Updates that a thread looks at in that launch.
const FEW: usize = 1 << 12;

/// A launch of a scatter of many updates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScatterPassKernel {
    /// Indices to the data elements that they name: `u32 […indices]`.
    Elements { axis: usize, data: Shape, indices: Shape },
    /// Index tuples to the slices that they name: `u32 [tuples]`.
    Nd { dims: Shape, tuples: usize },
    /// Keys, order, and updates or smaller pieces, to the combined updates at the beginning of each piece:
    /// `[pieces, inner]`. `unit` is the number of updates in a smaller piece.
    Heads { sorted: Sorted, unit: usize },
    /// Keys, order, updates and pieces of all sizes, to the data with all updates.
    Apply { sorted: Sorted },
}

/// Updates in the order of their targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sorted {
    pub class: Class,
    pub reduce: ScatterReduce,
    /// Number of updates, each of `inner` elements.
    pub updates: usize,
    pub inner: usize,
}

impl Sorted {
    /// The sizes of pieces, in updates.
    fn spans(&self) -> impl Iterator<Item = usize> + use<> {
        let updates = self.updates;
        core::iter::successors(Some(PIECE), |span| span.checked_mul(PIECE)).take_while(move |&span| span < updates)
    }
}

/// The launches of a scatter, if it is so large that one launch would look at too much. Inputs of the scatter: data,
/// indices, updates. `looks` is the number of updates that each of `slots · inner` elements would look at.
pub(crate) fn levels(targets: ScatterPassKernel, sorted_by: Sorted, slots: usize, looks: usize) -> Option<Levels> {
    let Sorted { class, updates, inner, .. } = sorted_by;
    if looks <= FEW && slots.saturating_mul(inner).saturating_mul(looks) <= SMALL {
        return None;
    }
    let keys = Pass {
        kernel: targets.into(),
        inputs: PassInputs::from_slice(&[PassInput::Input(1)]),
        shape: Shape::from([updates]),
        dtype: DType::U32,
    };
    let bits = usize::BITS - slots.saturating_sub(1).leading_zeros();
    let (mut passes, order, inputs) = sorted(vec![keys], (1, updates), bits, updates);
    passes.push(Pass { kernel: order, inputs, shape: Shape::from([updates]), dtype: DType::I32 });
    let mut inputs =
        PassInputs::from_slice(&[PassInput::Result(0), PassInput::Result(passes.len() - 1), PassInput::Input(2)]);
    let (mut smaller, mut unit) = (PassInput::Input(2), 1);
    for span in sorted_by.spans() {
        let kernel = ScatterPassKernel::Heads { sorted: sorted_by, unit };
        let given = PassInputs::from_slice(&[inputs[0], inputs[1], smaller]);
        let shape = Shape::from([updates.div_ceil(span), inner]);
        passes.push(Pass { kernel: kernel.into(), inputs: given, shape, dtype: class.dtype() });
        (smaller, unit) = (PassInput::Result(passes.len() - 1), span);
        inputs.push(smaller);
    }
    let last = Kernel::from(ScatterPassKernel::Apply { sorted: sorted_by });
    Some(Levels { passes, last, inputs, start: Some(PassInput::Input(0)), device_only: true })
}

impl KernelSpec for ScatterPassKernel {
    fn name(&self) -> &'static str {
        "scatter_passes"
    }

    fn input_names(&self) -> InputNames {
        match self {
            Self::Elements { .. } | Self::Nd { .. } => names(&["index"], &[]),
            Self::Heads { .. } => names(&["keys", "order", "updates"], &[]),
            Self::Apply { sorted } => {
                let pieces = ["pieces1", "pieces2", "pieces3", "pieces4"];
                names(&["keys", "order", "updates"], &[])
                    .into_iter()
                    .chain(pieces.into_iter().take(sorted.spans().count()))
                    .collect()
            }
        }
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        match self {
            Self::Elements { .. } | Self::Nd { .. } | Self::Heads { .. } => Fusing::AFTER,
            // It reads the data from its output.
            Self::Apply { .. } => Fusing::NONE,
        }
    }

    fn counts_faults(&self) -> bool {
        matches!(self, Self::Elements { .. } | Self::Nd { .. })
    }

    fn writes_all(&self) -> bool {
        // Elements without an update keep the data.
        !matches!(self, Self::Apply { .. })
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        Some(lower(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        Ok(run(self, inputs, out, pool))
    }
}

fn lower(step: &Step, kernel: &ScatterPassKernel, caps: &Caps) -> Launch {
    let mut builder = Builder::new(step);
    match kernel {
        ScatterPassKernel::Elements { axis, data, indices } => {
            let lines = Lines::new(data, indices, *axis);
            resolve_code(&mut builder, &step.inputs[0]);
            lines.start_code(&mut builder);
            let body = include_str!("../../../assets/kernels/scatter_passes_elements.wgsl");
            builder.finish_threads(body, indices.elements(), caps)
        }
        ScatterPassKernel::Nd { dims, tuples } => {
            resolve_code(&mut builder, &step.inputs[0]);
            slice_code(&mut builder, dims);
            builder.finish_threads(include_str!("../../../assets/kernels/scatter_passes_nd.wgsl"), *tuples, caps)
        }
        ScatterPassKernel::Heads { sorted, unit } => {
            sorted_code(&mut builder, sorted);
            let span = unit * PIECE;
            builder.params.size("unit", *unit).size("span", span);
            builder.code(if *unit == 1 {
                "fn value(at: u32, i: u32) -> T { return update(at, i); }"
            } else {
                "fn value(at: u32, i: u32) -> T { return load_updates(params.updates_offset + at / params.unit * params.inner + i); }"
            });
            let threads = sorted.updates.div_ceil(span) * sorted.inner;
            builder.finish_threads(include_str!("../../../assets/kernels/scatter_passes_heads.wgsl"), threads, caps)
        }
        ScatterPassKernel::Apply { sorted } => {
            sorted_code(&mut builder, sorted);
            let spans: Vec<usize> = sorted.spans().collect();
            let mut piece = String::from("fn piece(at: u32) -> u32 {\n");
            let mut value = String::from("fn value(at: u32, span: u32, i: u32) -> T {\n");
            for (at, span) in spans.iter().enumerate().rev() {
                let name = at + 1;
                // Writing to a string cannot fail.
                let _ = writeln!(piece, "    if at % {span}u == 0u {{ return {span}u; }}");
                let _ = writeln!(
                    value,
                    "    if span == {span}u {{ return load_pieces{name}(params.pieces{name}_offset + at / {span}u * params.inner + i); }}"
                );
            }
            builder.code(&(piece + "    return 1u;\n}")).code(&(value + "    return update(at, i);\n}"));
            let threads = sorted.updates * sorted.inner;
            builder.finish_threads(include_str!("../../../assets/kernels/scatter_passes_apply.wgsl"), threads, caps)
        }
    }
}

/// `target_at(at)`, `update(at, i)` and `combine(a, b)`: what the update at a place of the order hits, its elements, and what
/// two updates become.
fn sorted_code(builder: &mut Builder, sorted: &Sorted) {
    combine_code(builder, sorted.class, sorted.reduce);
    builder.params.size("updates", sorted.updates).size("inner", sorted.inner);
    builder.code(
        "fn update_at(at: u32) -> u32 { return u32(load_order(params.order_offset + at)); }
fn target_at(at: u32) -> u32 { return load_keys(params.keys_offset + update_at(at)); }
fn update(at: u32, i: u32) -> T { return load_updates(params.updates_offset + update_at(at) * params.inner + i); }",
    );
}

/// The CPU twin. Inputs as the pass says. Gives the number of out-of-range indices.
fn run(kernel: &ScatterPassKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) -> u32 {
    let mut faults = 0;
    match kernel {
        ScatterPassKernel::Elements { axis, data, indices } => {
            let [given] = inputs else { return 0 };
            let n = data[*axis];
            each_position(data, indices, *axis, 0..indices.elements(), |position, base, stride| {
                let (place, clamped) = resolve(index(given, position), n);
                faults += u32::from(clamped);
                out[position] = (base + place * stride) as u32;
            });
        }
        ScatterPassKernel::Nd { dims, .. } => {
            let [given] = inputs else { return 0 };
            for (tuple, out) in out.iter_mut().enumerate() {
                let (place, clamped) = resolve_tuple(given, tuple * dims.rank(), dims);
                faults += clamped;
                *out = place as u32;
            }
        }
        ScatterPassKernel::Heads { sorted, unit } => with_class!(sorted.class, T => {
            let Some(by_target) = ByTarget::<T>::new(sorted, inputs, pool) else { return 0 };
            let out: &mut [T] = cast_slice_mut(out);
            let (span, inner) = (unit * PIECE, sorted.inner);
            for (at, out) in out.iter_mut().enumerate() {
                let (first, i) = (at / inner * span, at % inner);
                let value = |at: usize| if *unit == 1 { by_target.update(at, i) } else { by_target.updates[at / unit * inner + i] };
                let same = |&at: &usize| by_target.target(at) == by_target.target(first);
                let rest = (first + unit..(first + span).min(sorted.updates)).step_by(*unit).take_while(same);
                *out = rest.fold(value(first), |total, at| combine(sorted.reduce, total, value(at)));
            }
        }),
        ScatterPassKernel::Apply { sorted } => with_class!(sorted.class, T => {
            // Without pieces: a thread of the CPU may have long loops.
            let Some(by_target) = ByTarget::<T>::new(sorted, inputs, pool) else { return 0 };
            let out: &mut [T] = cast_slice_mut(out);
            for at in 0..sorted.updates {
                for i in 0..sorted.inner {
                    let out = &mut out[by_target.target(at) * sorted.inner + i];
                    *out = combine(sorted.reduce, *out, by_target.update(at, i));
                }
            }
        }),
    }
    faults
}

/// Updates in the order of their targets, on the host.
struct ByTarget<'a, T: Number> {
    keys: std::borrow::Cow<'a, [u32]>,
    order: std::borrow::Cow<'a, [i32]>,
    updates: std::borrow::Cow<'a, [T]>,
    inner: usize,
}

impl<'a, T: Number> ByTarget<'a, T> {
    fn new(sorted: &Sorted, inputs: &[Input<'a>], pool: &CpuPool) -> Option<Self> {
        let [keys, order, updates, ..] = inputs else { return None };
        let (keys, order) = (keys.contiguous(pool), order.contiguous(pool));
        Some(Self { keys, order, updates: updates.contiguous(pool), inner: sorted.inner })
    }

    fn target(&self, at: usize) -> usize {
        self.keys[self.order[at] as usize] as usize
    }

    fn update(&self, at: usize, i: usize) -> T {
        self.updates[self.order[at] as usize * self.inner + i]
    }
}
