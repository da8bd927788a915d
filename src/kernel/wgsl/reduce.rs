//! Reductions over the middle of `[outer, n, inner]`.

use super::rows::{self, Rows};
use super::scalar::Library;
use super::{Builder, grid};
use crate::kernel::{Caps, Launch, ReduceKernel, wgsl_type};
use crate::plan::Step;
use crate::record::ReduceKind;
use crate::tensor::Class;

/// The launch of a reduction. Columns that lie side by side are taken by quads, rows and what else there is as all kernels take [`Rows`].
pub(super) fn lower(step: &Step, kernel: &ReduceKernel, caps: &Caps) -> Option<Launch> {
    let ReduceKernel { kind, class, outer, n, inner } = *kernel;
    let rows = Rows { rows: outer * inner, n, inner, fields: fields(kind) };
    if rows.rows == 0 || n == 0 {
        return None;
    }
    let begins = step.inputs[0].layout.offset.is_multiple_of(4);
    let columns = Columns::of(&rows, caps);
    let aligned = if columns.is_some() { begins } else { rows.aligned(&step.inputs[0]) };
    let mut builder = Builder::with_quads(step, "reduce", &[("x", aligned)], caps);
    builder.alias("T", wgsl_type(class));
    let mut library = Library::default();
    builder.code(&state(kind, class, &mut library));
    builder.code(&library.text());
    Some(match columns {
        Some(columns) => columns.finish(builder, &rows, caps),
        None => {
            rows.loads(&mut builder);
            rows.finish(builder, include_str!("../../../assets/kernels/reduce.wgsl"), caps)
        }
    })
}

/// Who works on a quad of columns.
enum Columns {
    /// A thread: where there are quads enough, or on software adapters, where a vector of the CPU has several.
    Thread,
    /// Several threads, each with a slice of the rows.
    Workgroup,
}

impl Columns {
    /// `None` if columns are not taken by quads: there are none, or so few that too many lanes would be idle.
    fn of(rows: &Rows, caps: &Caps) -> Option<Self> {
        let quads = rows.rows / 4;
        let bytes = 256 * 16 * rows.fields.len().max(1) as u32;
        let room = caps.invocations >= 256 && caps.workgroup_memory >= bytes;
        if !rows.inner.is_multiple_of(4) {
            None
        } else if caps.software {
            (quads >= 64).then_some(Self::Thread)
        } else if quads >= 16384 || rows.n < 64 {
            Some(Self::Thread)
        } else {
            (room && quads >= 16).then_some(Self::Workgroup)
        }
    }

    fn finish(&self, mut builder: Builder, rows: &Rows, caps: &Caps) -> Launch {
        let quads = rows.rows / 4;
        builder.params.size("quads", quads).size("n", rows.n).size("inner", rows.inner);
        let (who, groups) = match self {
            Self::Thread => {
                let threads = rows::threads(caps);
                builder.constant("THREADS", threads);
                let text = include_str!("../../../assets/kernels/lib/columns_thread.wgsl");
                (text, quads.div_ceil(threads as usize))
            }
            Self::Workgroup => (include_str!("../../../assets/kernels/lib/columns_workgroup.wgsl"), quads.div_ceil(16)),
        };
        let body = include_str!("../../../assets/kernels/reduce_columns.wgsl");
        builder.finish(&[who, "\n", body].concat(), grid(groups, caps))
    }
}

/// The members of the state.
fn fields(kind: ReduceKind) -> &'static [&'static str] {
    match kind {
        ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => &["v", "p"],
        _ => &[],
    }
}

/// What a reduction finds: its state, how an element starts it, how two merge, what it results in.
fn state(kind: ReduceKind, class: Class, library: &mut Library) -> String {
    let float = class == Class::Float;
    let extreme = |name: &str| if float { format!("{name}_f32(a, b)") } else { format!("{name}(a, b)") };
    let (start, merge, result) = match kind {
        ReduceKind::Sum => ("v", "a + b".to_owned(), "s"),
        ReduceKind::Mean => ("v", "a + b".to_owned(), "s / T(params.n)"),
        ReduceKind::SumSquares => ("v * v", "a + b".to_owned(), "s"),
        ReduceKind::Prod => ("v", "a * b".to_owned(), "s"),
        ReduceKind::Max => ("v", extreme("max"), "s"),
        ReduceKind::Min => ("v", extreme("min"), "s"),
        ReduceKind::ArgMax { last } => return positions(">", last, float, library),
        ReduceKind::ArgMin { last } => return positions("<", last, float, library),
    };
    if float && matches!(kind, ReduceKind::Max | ReduceKind::Min) {
        library.need("min_max");
    }
    format!(
        "alias S = T;
fn start(v: T, p: u32) -> S {{ return {start}; }}
fn merge(a: S, b: S) -> S {{ return {merge}; }}
fn result(s: S) -> T {{ return {result}; }}"
    )
}

/// The state of a search for the best position. NaN is best of all; among equals the first, or the last.
fn positions(better: &str, last: bool, float: bool, library: &mut Library) -> String {
    library.need("is_nan");
    let nan = |x: &str| if float { format!("is_nan({x}.v)") } else { "false".to_owned() };
    let (an, bn) = (nan("a"), nan("b"));
    let sooner = if last { ">" } else { "<" };
    format!(
        "struct S {{
    v: T,
    p: u32,
}}
fn start(v: T, p: u32) -> S {{ return S(v, p); }}
fn merge(a: S, b: S) -> S {{
    let an = {an};
    let bn = {bn};
    let beats = (bn && !an) || (!an && b.v {better} a.v);
    let equal = (an && bn) || a.v == b.v;
    if (beats || (equal && b.p {sooner} a.p)) {{
        return b;
    }}
    return a;
}}
fn result(s: S) -> i32 {{ return i32(s.p); }}"
    )
}
