//! Reductions over the middle of `[outer, n, inner]`, and the choice between a thread and a workgroup for each row that all row kernels share.

use super::scalar::Library;
use super::{Builder, grid};
use crate::kernel::{Caps, Launch, ReduceKernel, wgsl_type};
use crate::plan::Step;
use crate::record::ReduceKind;
use crate::tensor::Class;

/// Threads that share a row, as in `row_workgroup.wgsl`.
const LANES: u32 = 128;
/// Bytes that they fold in: at most two words each.
const FOLD_BYTES: u32 = LANES * 8;

/// Ends the text of a kernel over `rows` of `n` elements, `inner` apart, whose body has `S`, `merge` and `run`.
pub(super) fn finish_rows(builder: Builder, body: &str, [rows, n, inner]: [usize; 3], caps: &Caps) -> Launch {
    let room = caps.invocations >= LANES && caps.workgroup_memory >= FOLD_BYTES;
    // Sharing pays for long rows, unless there are rows enough to keep everyone busy and threads read neighbours (or are software).
    let busy = rows >= 1024 && (caps.software || inner > 1);
    if n <= 64 || busy || !room {
        let text = [include_str!("../../../assets/kernels/lib/row_thread.wgsl"), "\n", body].concat();
        builder.finish(&text, grid(rows.div_ceil(64), caps))
    } else {
        let text = [include_str!("../../../assets/kernels/lib/row_workgroup.wgsl"), "\n", body].concat();
        builder.finish(&text, grid(rows, caps))
    }
}

/// The launch of a reduction.
pub(super) fn lower(step: &Step, kernel: &ReduceKernel, caps: &Caps) -> Option<Launch> {
    let rows = kernel.outer * kernel.inner;
    if rows == 0 || kernel.n == 0 {
        return None;
    }
    let mut builder = Builder::new(step, "reduce");
    builder.params.size("rows", rows).size("n", kernel.n).size("inner", kernel.inner);
    builder.alias("T", wgsl_type(kernel.class));
    let mut library = Library::default();
    builder.code(&state(kernel.kind, kernel.class, &mut library));
    builder.code(&library.text());
    let body = include_str!("../../../assets/kernels/reduce.wgsl");
    Some(finish_rows(builder, body, [rows, kernel.n, kernel.inner], caps))
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
