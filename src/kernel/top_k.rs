//! The `k` best elements of each row.

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::{Class, DType, Node, Shape};
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::sort::{SortKernel, SortPass, sorted};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, rows_of};
use crate::kernel::split::{InParts, Levels, Part, Pass, PassInput, PassInputs, by_rows};
use crate::kernel::wgsl::{Builder, grid};
use crate::kernel::{Caps, Launch, Step, Variants};

/// `[rows, n]` to `i32 [rows, k]`: positions, best first. Equal values are ordered by position. NaN is the largest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TopKKernel {
    pub class: Class,
    pub largest: bool,
    pub rows: usize,
    pub n: usize,
    pub k: usize,
}

impl TopKKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &k: &usize, &largest: &bool) -> Self {
        let x = &inputs[0];
        let (rows, n) = rows_of(&x.layout.shape);
        Self { class: x.dtype.class(), largest, rows, n, k }
    }
}

impl KernelSpec for TopKKernel {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        // Each round reads the whole row.
        Fusing::both(self.k.max(2), self.rows)
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        by_rows(step, self.rows, self.n, self.k, |rows| Self { rows, ..self.clone() })
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        // Rounds look at the whole row again for each of the best, so many are found by sorting. Threads of rounds must not
        // have long loops either.
        const ROUNDS: usize = 16;
        const SHORT: usize = 1024;
        const TURNS: usize = 1 << 15;
        let turns = self.k.saturating_mul(self.n / 64 + 10);
        if (self.n <= SHORT || self.k <= ROUNDS) && turns <= TURNS {
            return None;
        }
        let keys = SortPass::Keys { class: self.class, largest: self.largest };
        let keys = Pass {
            kernel: SortKernel { pass: keys, rows: self.rows, n: self.n }.into(),
            inputs: PassInputs::from_slice(&[PassInput::Input(0)]),
            shape: Shape::from([self.rows, self.n]),
            dtype: DType::U32,
        };
        let (passes, last, inputs) = sorted(vec![keys], (self.rows, self.n), u32::BITS, self.k);
        Some(Levels { passes, last, inputs, start: None, device_only: true })
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
        top_k(self, inputs, cast_slice_mut(out), pool);
        Ok(0)
    }
}

/// `next_best`: finds the best element of a round.
const NEXT: &str = include_str!("../../assets/kernels/top_k_next.wgsl");

pub(crate) fn lower(step: &Step, kernel: &TopKKernel, caps: &Caps) -> Launch {
    let TopKKernel { rows, n, k, .. } = *kernel;
    let mut builder = Builder::new(step);
    key_code(&mut builder, kernel.class, kernel.largest);
    builder.params.size("rows", rows).size("n", n).size("k", k);
    // Rounds cost `k · n` per row. Counting ranks costs `n · n`, but is fully parallel and needs no barriers.
    if k * 4 >= n || n <= 64 {
        builder.finish_threads(include_str!("../../assets/kernels/top_k_rank.wgsl"), rows * n, caps)
    } else if caps.software && rows >= 16 && k * n < 1 << 15 {
        builder.code(NEXT);
        builder.finish_threads(include_str!("../../assets/kernels/top_k_row.wgsl"), rows, caps)
    } else {
        let lanes = if n >= 1024 && caps.invocations >= 256 { 256 } else { 64 };
        builder.constant("LANES", lanes).code(NEXT);
        builder.finish(include_str!("../../assets/kernels/top_k.wgsl"), grid(rows, caps))
    }
}

/// `key(i)`: element `i` as an unsigned number that is larger for better elements. −0 equals 0, and NaN is larger than
/// infinity.
pub(crate) fn key_code(builder: &mut Builder, class: Class, largest: bool) {
    builder.code("fn key(i: u32) -> u32 {");
    builder.code(match class {
        Class::Float => {
            "    let bits = bitcast<u32>(load_x(i));
    let magnitude = bits & 0x7fffffffu;
    var order = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    if magnitude > 0x7f800000u {
        order = 0xffffffffu;
    }"
        }
        Class::Int => "    let order = bitcast<u32>(load_x(i)) ^ 0x80000000u;",
        Class::Uint => "    let order = load_x(i);",
    });
    builder.code(if largest { "    return order;\n}" } else { "    return ~order;\n}" });
}

/// Up to this many are kept sorted while a row is read. More are selected from the whole row.
const FEW: usize = 32;

/// The CPU twin. Input: x.
pub(crate) fn top_k(kernel: &TopKKernel, inputs: &[Input], out: &mut [i32], pool: &CpuPool) {
    let [x] = inputs else { return };
    let (n, k) = (kernel.n, kernel.k.min(kernel.n));
    if k == 0 {
        return;
    }
    with_class!(kernel.class, T => {
        let x = x.contiguous::<T>(pool);
        pool.each_unit(out, kernel.k, n * 8, |first, out| {
            let mut keys = Vec::with_capacity(if k <= FEW { k } else { n });
            for (out, x) in out.chunks_mut(kernel.k).zip(x[first * n..].chunks(n)) {
                // The value in the high bits and the position in the low bits: one comparison orders by value, then by
                // position.
                let ranked = x.iter().enumerate().map(|(i, v)| {
                    let key = if kernel.largest { !v.key() } else { v.key() };
                    u64::from(key) << 32 | i as u64
                });
                keys.clear();
                if k <= FEW {
                    keys.resize(k, u64::MAX);
                    for key in ranked {
                        insert(&mut keys, key);
                    }
                } else {
                    keys.extend(ranked);
                    if k < n {
                        keys.select_nth_unstable(k - 1);
                        keys.truncate(k);
                    }
                    keys.sort_unstable();
                }
                out.iter_mut().zip(&keys).for_each(|(o, &key)| *o = key as u32 as i32);
            }
        });
    });
}

/// Inserts a key into the sorted best keys and drops the last one. Most keys are worse than all of them.
#[inline(always)]
fn insert(best: &mut [u64], key: u64) {
    let Some(last) = best.len().checked_sub(1).filter(|&last| key < best[last]) else { return };
    let place = best[..last].partition_point(|&other| other < key);
    best.copy_within(place..last, place + 1);
    best[place] = key;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Class, Layout};
    use crate::kernel::host::memory::Elements;

    #[test]
    fn positions_come_best_first_and_equals_in_order() {
        for (rows, n, k) in [(1, 1, 1), (3, 7, 7), (65, 63, 5), (2, 65, 64), (4, 1757, 32), (4, 1757, 33)] {
            let x: Vec<f32> = (0..rows * n)
                .map(|i| match i * 29 % 23 {
                    0 => f32::NAN,
                    1 => -0.0,
                    2 => f32::NEG_INFINITY,
                    v => (v / 3) as f32 - 2.0,
                })
                .collect();
            for largest in [true, false] {
                let mut out = vec![-1; rows * k];
                let input = Input { elements: Elements::F32(&x), layout: Layout::contiguous([rows * n]) };
                top_k(&TopKKernel { class: Class::Float, largest, rows, n, k }, &[input], &mut out, &CpuPool::new(2));
                for (row, out) in x.chunks(n).zip(out.chunks(k)) {
                    let mut order: Vec<i32> = (0..n as i32).collect();
                    order.sort_by(|&a, &b| {
                        let (a, b) = (row[a as usize], row[b as usize]);
                        let up = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
                        if largest { up.reverse() } else { up }
                    });
                    assert_eq!(out, &order[..k]);
                }
            }
        }
    }
}
