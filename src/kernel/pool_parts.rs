//! Pooling over large windows, in parts: what is found in each part of a window, and what these give.

use bytemuck::{cast_slice, cast_slice_mut};

use crate::error::RunError;
use crate::ir::{DType, PoolKind, Shape};
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::pool::{counts, each_tap, pool_code, result_code};
use crate::kernel::reduce::wgsl::beats_code;
use crate::kernel::spec::{Fusing, InputNames, KernelSpec, Need, Sizes, all_inputs, names, product};
use crate::kernel::split::{InParts, Levels, Part, Pass, PassInput, PassInputs};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, PoolKernel, Step, Variants};

/// Windows of at most this many taps are done by one thread.
const SHORT: usize = 1 << 14;
/// Taps that a thread takes of a larger window, unless there would be too many threads to merge.
const TAPS: usize = 1 << 12;

/// A launch of a pool with large windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolPartsKernel {
    pub pass: PoolPass,
    pub pool: PoolKernel,
}

/// What a launch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PoolPass {
    /// Finds the largest element, its position (−1 if there is none) or the sum of each part of each window:
    /// `[parts, outputs]`.
    Find,
    /// Merges what was found. Inputs: x and the parts.
    Merge,
}

/// The launches of a pool with large windows.
pub(crate) fn levels(pool: &PoolKernel) -> Option<Levels> {
    if most_taps(pool) <= SHORT {
        return None;
    }
    let find = PoolPartsKernel { pass: PoolPass::Find, pool: pool.clone() };
    let shape = Shape::from([find.parts(), find.outputs()]);
    let dtype = if pool.kind == PoolKind::ArgMax { DType::I32 } else { pool.class.dtype() };
    let inputs = PassInputs::from_slice(&[PassInput::Input(0)]);
    Some(Levels {
        passes: vec![Pass { kernel: find.into(), inputs, shape, dtype }],
        last: PoolPartsKernel { pass: PoolPass::Merge, pool: pool.clone() }.into(),
        inputs: PassInputs::from_slice(&[PassInput::Input(0), PassInput::Result(0)]),
        start: None,
        device_only: true,
    })
}

/// The most taps of a window that are inside the input.
fn most_taps(pool: &PoolKernel) -> usize {
    let taps = |axis: usize| pool.window.size[axis].min(pool.input[axis].div_ceil(pool.window.dilation[axis]));
    [0, 1, 2].map(taps).into_iter().fold(1, usize::saturating_mul)
}

impl PoolPartsKernel {
    fn outputs(&self) -> usize {
        self.pool.planes * product(&self.pool.output)
    }

    /// Taps of a part. About as many parts as taps in a part, if there are very many.
    fn taps(&self) -> usize {
        most_taps(&self.pool).isqrt().max(TAPS)
    }

    fn parts(&self) -> usize {
        most_taps(&self.pool).div_ceil(self.taps())
    }
}

impl KernelSpec for PoolPartsKernel {
    fn name(&self) -> &'static str {
        "pool_parts"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[(self.pass == PoolPass::Merge, "parts")])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::AFTER
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        match self.pass {
            PoolPass::Find => self.outputs().saturating_mul(most_taps(&self.pool)),
            PoolPass::Merge => self.outputs() * self.parts(),
        }
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
        run(self, inputs, out, pool);
        Ok(0)
    }
}

fn lower(step: &Step, kernel: &PoolPartsKernel, caps: &Caps) -> Launch {
    let (pool, outputs) = (&kernel.pool, kernel.outputs());
    let mut builder = Builder::new(step);
    pool_code(&mut builder, pool);
    builder.params.size("outputs", outputs).size("taps", kernel.taps());
    match kernel.pass {
        PoolPass::Find => {
            beats_code(&mut builder, ">", pool.class);
            builder.code(match pool.kind {
                PoolKind::Max => "fn found(state: State) -> T { return state.best; }",
                PoolKind::ArgMax => {
                    "fn found(state: State) -> i32 { return select(-1, i32(state.place), state.inside > 0u); }"
                }
                PoolKind::Average { .. } => "fn found(state: State) -> T { return state.sum; }",
            });
            let body = include_str!("../../assets/kernels/pool_parts.wgsl");
            builder.finish_threads(body, kernel.parts() * outputs, caps)
        }
        PoolPass::Merge => {
            beats_code(&mut builder, ">", pool.class);
            result_code(&mut builder, pool.kind);
            let merge = match pool.kind {
                PoolKind::Max => {
                    "    let value = load_parts(at);
    if is_first || beats(value, merged.best) {
        merged.best = value;
    }"
                }
                PoolKind::ArgMax => {
                    "    let place = load_parts(at);
    if place >= 0 {
        let value = load_x(taps.image + u32(place));
        if is_first || beats(value, merged.best) {
            merged.best = value;
            merged.place = u32(place);
        }
    }"
                }
                PoolKind::Average { .. } => "    merged.sum += load_parts(at);",
            };
            builder.code(&format!(
                "fn merge(state: State, taps: Taps, at: u32, is_first: bool) -> State {{
    var merged = state;
{merge}
    return merged;
}}"
            ));
            builder.finish_threads(include_str!("../../assets/kernels/pool_parts_merge.wgsl"), outputs, caps)
        }
    }
}

/// The CPU twin. Inputs: x, and the parts if they are merged. A part has the taps of its share of all taps of a window.
fn run(kernel: &PoolPartsKernel, inputs: &[Input], out: &mut [u32], threads: &CpuPool) {
    let Some(x) = inputs.first() else { return };
    let (pool, outputs, taps) = (&kernel.pool, kernel.outputs(), kernel.taps());
    let (plane, source) = (product(&pool.output), product(&pool.input));
    with_class!(pool.class, T => {
        let x = x.contiguous::<T>(threads);
        let lowest = cast_slice::<u32, T>(&[pool.lowest])[0];
        match kernel.pass {
            PoolPass::Find => {
                let (mut best, mut place) = (vec![lowest; kernel.parts() * outputs], vec![-1i32; kernel.parts() * outputs]);
                let mut sum = vec![T::ZERO; kernel.parts() * outputs];
                for image in 0..pool.planes {
                    let mut seen = vec![0; plane];
                    each_tap(pool, |to, from| {
                        let value = x[image * source + from];
                        let at = seen[to] / taps * outputs + image * plane + to;
                        seen[to] += 1;
                        if place[at] < 0 || value > best[at] || (value.is_nan() && !best[at].is_nan()) {
                            (best[at], place[at]) = (value, from as i32);
                        }
                        sum[at] = sum[at].add(value);
                    });
                }
                match pool.kind {
                    PoolKind::Max => out.copy_from_slice(cast_slice(&best)),
                    PoolKind::ArgMax => out.copy_from_slice(cast_slice(&place)),
                    PoolKind::Average { .. } => out.copy_from_slice(cast_slice(&sum)),
                }
            }
            PoolPass::Merge => {
                let Some(parts) = inputs.get(1).map(|parts| parts.contiguous_words(threads)) else { return };
                let of = |element: usize| parts.iter().skip(element).step_by(outputs).copied();
                match pool.kind {
                    PoolKind::Max => {
                        let out: &mut [T] = cast_slice_mut(out);
                        for (element, out) in out.iter_mut().enumerate() {
                            *out = of(element).fold(lowest, |best, word| best.larger(cast_slice::<u32, T>(&[word])[0]));
                        }
                    }
                    PoolKind::ArgMax => {
                        for (element, out) in out.iter_mut().enumerate() {
                            let image = element / plane * source;
                            let mut best: Option<(T, u32)> = None;
                            for place in of(element).filter(|&place| place as i32 >= 0) {
                                let value = x[image + place as usize];
                                let wins = best.is_none_or(|(best, _)| value > best || (value.is_nan() && !best.is_nan()));
                                if wins {
                                    best = Some((value, place));
                                }
                            }
                            *out = best.map_or(0, |best| best.1);
                        }
                    }
                    PoolKind::Average { include_pad } => {
                        let counts = counts(pool, include_pad);
                        let out: &mut [T] = cast_slice_mut(out);
                        for (element, out) in out.iter_mut().enumerate() {
                            let sum = of(element).fold(T::ZERO, |sum, word| sum.add(cast_slice::<u32, T>(&[word])[0]));
                            *out = sum.div_count(counts[element % plane]);
                        }
                    }
                }
            }
        }
    });
}
