//! What kernels over rows share: who works on a row, and how its elements are reached four at a time.
//!
//! | adapter | rows | who |
//! |---|---|---|
//! | software | many or short | a thread each: one vector of the CPU has several rows |
//! | software | few and long | a subgroup each, so that every core has some |
//! | GPU | short, or many whose neighbours lie side by side | a thread each |
//! | GPU | others | a workgroup each; its subgroups fold first where their size is known |

use super::{Builder, grid};
use crate::ir::Operand;
use crate::kernel::{Caps, Launch, Variant, Variants};

/// Threads that share a row, as in `row_workgroup.wgsl` and `row_subgroups.wgsl`.
const LANES: u32 = 128;

/// Elements of a row that one thread of a software adapter takes. Mesa's llvmpipe ends a thread's loops, without a
/// word, after 65,535 turns in all.
pub(crate) const THREAD_ROW: usize = 1 << 15;

/// Rows of `n` elements that lie `inner` apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub rows: usize,
    pub n: usize,
    pub inner: usize,
    /// The members of the state `S` that the row's lanes fold; none if it is a single number.
    pub fields: &'static [&'static str],
}

/// Threads of a workgroup whose threads do not work together. A software adapter shares out workgroups, so they should
/// be many.
pub(crate) fn threads(caps: &Caps) -> u32 {
    if caps.software { 8 } else { 64 }
}

impl Rows {
    /// Whether all quads of a contiguous operand with these rows begin at multiples of four.
    pub(crate) fn aligned(&self, operand: &Operand) -> bool {
        self.inner == 1 && self.n.is_multiple_of(4) && operand.layout.offset.is_multiple_of(4)
    }

    /// `chunk(at, p)`: elements `p` to `p + 3` of the row whose first is at `at` of `x`.
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

    /// `put_chunk(at, p, v)`: the same elements of `y`.
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

    /// Who may work on a row on this device, the default first.
    pub(crate) fn variants(&self, caps: &Caps) -> Variants {
        let words = self.fields.len().max(1) as u32;
        let room = caps.invocations >= LANES && caps.workgroup_memory >= LANES * words * 4;
        let one = matches!(caps.subgroup, Some(4 | 8 | 16));
        let several = room && matches!(caps.subgroup, Some(4 | 8 | 16 | 32 | 64));
        // Longer rows are not for so few.
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

    /// Ends the text of a kernel whose body has `S`, `merge` and `run(row, lane)`, which each of STEP lanes calls.
    /// `variant` is one of [`Rows::variants`].
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

    /// `other(s, mask)`: the state of the lane whose number differs in the bits of `mask`.
    fn other(&self) -> String {
        let member = |field: &&str| format!("subgroupShuffleXor(s.{field}, mask)");
        let value = match self.fields {
            [] => "subgroupShuffleXor(s, mask)".to_owned(),
            fields => format!("S({})", fields.iter().map(member).collect::<Vec<_>>().join(", ")),
        };
        format!("fn other(s: S, mask: u32) -> S {{ return {value}; }}")
    }
}
