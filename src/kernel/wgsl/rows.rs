//! Code shared by kernels over rows: which threads process a row, and how its elements are accessed four at a time.
//!
//! | adapter | rows | processed by |
//! |---|---|---|
//! | software | many or short | one thread each: a CPU vector holds several rows |
//! | software | few and long | one subgroup each, so that every core has work |
//! | GPU | short, or many that are interleaved | one thread each |
//! | GPU | others | one workgroup each, reduced within subgroups first if their size is known |

use super::{Builder, grid};
use crate::ir::Operand;
use crate::kernel::{Caps, Launch, Variant, Variants};

/// Threads that share a row. Keep in sync with `row_workgroup.wgsl` and `row_subgroups.wgsl`.
const LANES: u32 = 128;

/// Maximum number of row elements for one thread on a software adapter. Mesa's llvmpipe silently ends the loops of a
/// thread after 65,535 iterations in total.
pub(crate) const THREAD_ROW: usize = 1 << 15;

/// Rows of `n` elements with stride `inner`.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub rows: usize,
    pub n: usize,
    pub inner: usize,
    /// The fields of the state `S` that the lanes of a row reduce. Empty if it is a single number.
    pub fields: &'static [&'static str],
}

/// Threads per workgroup if threads work independently. A software adapter distributes workgroups over cores, so there
/// should be many.
pub(crate) fn threads(caps: &Caps) -> u32 {
    if caps.software { 8 } else { 64 }
}

impl Rows {
    /// Whether all quads of a contiguous operand with these rows are aligned to four elements.
    pub(crate) fn aligned(&self, operand: &Operand) -> bool {
        self.inner == 1 && self.n.is_multiple_of(4) && operand.layout.offset.is_multiple_of(4)
    }

    /// `chunk(at, p)`: elements `p` to `p + 3` of the row of `x` that begins at `at`.
    pub(crate) fn loads(&self, builder: &mut Builder) {
        builder.code(match self.inner {
            1 => "fn chunk(at: u32, p: u32) -> vec4<T> { return load_x4(at + p); }",
            _ => {
                "fn chunk(at: u32, p: u32) -> vec4<T> {
    let first = at + p * params.inner;
    return vec4<T>(
        load_x(first),
        load_x(first + params.inner),
        load_x(first + 2u * params.inner),
        load_x(first + 3u * params.inner),
    );
}"
            }
        });
    }

    /// `put_chunk(at, p, v)`: stores the same elements of `y`.
    pub(crate) fn stores(&self, builder: &mut Builder) {
        builder.code(match self.inner {
            1 => "fn put_chunk(at: u32, p: u32, v: vec4<f32>) { store_y4(at + p, v); }",
            _ => {
                "fn put_chunk(at: u32, p: u32, v: vec4<f32>) {
    let first = at + p * params.inner;
    store_y(first, v.x);
    store_y(first + params.inner, v.y);
    store_y(first + 2u * params.inner, v.z);
    store_y(first + 3u * params.inner, v.w);
}"
            }
        });
    }

    /// The variants for a row on this device, the default first.
    pub(crate) fn variants(&self, caps: &Caps) -> Variants {
        let words = self.fields.len().max(1) as u32;
        let room = caps.invocations >= LANES && caps.workgroup_memory >= LANES * words * 4;
        let one = matches!(caps.subgroup, Some(4 | 8 | 16));
        let several = room && matches!(caps.subgroup, Some(4 | 8 | 16 | 32 | 64));
        // Longer rows need more threads.
        let by_thread = self.n <= THREAD_ROW;
        let by_subgroup = one && (self.n <= THREAD_ROW * caps.subgroup.unwrap_or(1) as usize || !room);
        let short = match caps.software {
            true => self.n <= 64 || self.rows >= 64 && by_thread,
            false => self.n <= 64 || self.rows >= 1024 && self.inner > 1,
        };
        let first = match caps.software {
            _ if short => Variant::RowThread,
            true if by_subgroup => Variant::RowSubgroup,
            false if several => Variant::RowSubgroups,
            _ if room => Variant::RowWorkgroup,
            _ => Variant::RowThread,
        };
        let fit = [
            (by_thread, Variant::RowThread),
            (by_subgroup, Variant::RowSubgroup),
            (several, Variant::RowSubgroups),
            (room, Variant::RowWorkgroup),
        ];
        let others = fit.into_iter().filter(|&(fits, variant)| fits && variant != first).map(|(_, variant)| variant);
        core::iter::once(first).chain(others).collect()
    }

    /// Finishes the text of a kernel whose body has `S`, `merge` and `run(row, lane)`, which is called by each of STEP
    /// lanes. `variant` is one of [`Rows::variants`].
    pub(crate) fn finish(&self, mut builder: Builder, variant: Variant, body: &str, caps: &Caps) -> Launch {
        builder.variant(variant);
        builder.params.size("rows", self.rows).size("n", self.n).size("inner", self.inner);
        let (who, groups) = match variant {
            Variant::RowThread => {
                let threads = threads(caps);
                builder.constant("THREADS", threads);
                let text = include_str!("../../../assets/kernels/lib/row_thread.wgsl");
                (text, self.rows.div_ceil(threads as usize))
            }
            Variant::RowSubgroup => (include_str!("../../../assets/kernels/lib/row_subgroup.wgsl"), self.rows),
            Variant::RowSubgroups => (include_str!("../../../assets/kernels/lib/row_subgroups.wgsl"), self.rows),
            _ => (include_str!("../../../assets/kernels/lib/row_workgroup.wgsl"), self.rows),
        };
        if let (Variant::RowSubgroup | Variant::RowSubgroups, Some(size)) = (variant, caps.subgroup) {
            builder.constant("SUBGROUP", size).code(&self.other());
        }
        builder.finish(&[who, "\n", body].concat(), grid(groups, caps))
    }

    /// `other(s, mask)`: the state of the lane whose index differs in the bits of `mask`.
    fn other(&self) -> String {
        let member = |field: &&str| format!("subgroupShuffleXor(s.{field}, mask)");
        let value = match self.fields {
            [] => "subgroupShuffleXor(s, mask)".to_owned(),
            fields => format!("S({})", fields.iter().map(member).collect::<Vec<_>>().join(", ")),
        };
        format!("fn other(s: S, mask: u32) -> S {{ return {value}; }}")
    }
}
