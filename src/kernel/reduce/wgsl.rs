//! Reductions over the middle axis of `[outer, n, inner]`, on the GPU.

use crate::ir::{Class, ReduceKind};
use crate::kernel::wgsl::rows::Rows;
use crate::kernel::wgsl::{Builder, grid, rows};
use crate::kernel::{Caps, Launch, ReduceKernel, Step, Variant, Variants, choose, wgsl_type};

/// The launch of a reduction. Neighbouring columns are processed in quads. Everything else uses the common code for
/// [`Rows`].
pub(crate) fn lower(step: &Step, kernel: &ReduceKernel, caps: &Caps) -> Option<Launch> {
    let ReduceKernel { kind, class, outer, n, inner } = *kernel;
    let rows = Rows { rows: outer * inner, n, inner, fields: fields(kind) };
    if rows.rows == 0 || n == 0 {
        return None;
    }
    let begins = step.inputs[0].layout.offset.is_multiple_of(4);
    let variant = choose(&variants(kernel, caps), caps)?;
    let columns = Columns::of(variant);
    let aligned = if columns.is_some() { begins } else { rows.aligned(&step.inputs[0]) };
    let mut builder = Builder::with_quads(step, &[("x", aligned)], caps);
    builder.alias("T", wgsl_type(class));
    state_code(&mut builder, kind, class);
    Some(match columns {
        Some(columns) => {
            builder.variant(variant);
            columns.finish(builder, &rows, caps)
        }
        None => {
            rows.loads(&mut builder);
            rows.finish(builder, variant, include_str!("../../../assets/kernels/reduce.wgsl"), caps)
        }
    })
}

/// The forms of a reduction on this device, the default first.
pub(crate) fn variants(kernel: &ReduceKernel, caps: &Caps) -> Variants {
    let ReduceKernel { kind, outer, n, inner, .. } = *kernel;
    let rows = Rows { rows: outer * inner, n, inner, fields: fields(kind) };
    let mut list = Columns::variants(&rows, caps);
    list.extend(rows.variants(caps));
    list
}

/// Which threads process quads of columns.
enum Columns {
    /// A thread processes this many quads. Used if there are enough of them, and on software adapters, where one CPU
    /// vector runs several threads.
    Thread(usize),
    /// Several threads share a quad, each with a slice of the rows.
    Workgroup,
}

impl Columns {
    /// The forms that process columns in quads, the default first. Empty if there are too few quads to keep the lanes
    /// busy.
    fn variants(rows: &Rows, caps: &Caps) -> Variants {
        let quads = rows.rows / 4;
        let bytes = 256 * 16 * rows.fields.len().max(1) as u32;
        let room = caps.invocations >= 256 && caps.workgroup_memory >= bytes;
        let first = if !rows.inner.is_multiple_of(4) {
            None
        } else if caps.software {
            // Rows of a matrix lie far apart. Reading long ranges of each compensates for that.
            match quads {
                256.. => Some(Variant::ColumnThread(4)),
                64.. => Some(Variant::ColumnThread(1)),
                _ => None,
            }
        } else if quads >= 16384 || rows.n < 64 {
            Some(Variant::ColumnThread(1))
        } else {
            (room && quads >= 16).then_some(Variant::ColumnWorkgroup)
        };
        let Some(first) = first else { return Variants::new() };
        let fit = [
            (true, Variant::ColumnThread(1)),
            (quads >= 64, Variant::ColumnThread(4)),
            (room, Variant::ColumnWorkgroup),
        ];
        let others = fit.into_iter().filter(|&(fits, variant)| fits && variant != first).map(|(_, variant)| variant);
        core::iter::once(first).chain(others).collect()
    }

    /// `None` if columns are not processed in quads.
    fn of(variant: Variant) -> Option<Self> {
        match variant {
            Variant::ColumnThread(each) => Some(Self::Thread(each.into())),
            Variant::ColumnWorkgroup => Some(Self::Workgroup),
            _ => None,
        }
    }

    fn finish(&self, mut builder: Builder, rows: &Rows, caps: &Caps) -> Launch {
        let quads = rows.rows / 4;
        builder.params.size("quads", quads).size("n", rows.n).size("inner", rows.inner);
        let body = include_str!("../../../assets/kernels/reduce_columns.wgsl");
        let (who, per_group) = match *self {
            Self::Thread(each) => {
                let threads = rows::threads(caps) as usize;
                (columns_thread(each, threads), each * threads)
            }
            Self::Workgroup => (include_str!("../../../assets/kernels/lib/columns_workgroup.wgsl").to_owned(), 16),
        };
        builder.finish(&[&who, "\n", body].concat(), grid(quads.div_ceil(per_group), caps))
    }
}

/// The entry point of threads that process `each` quads of columns. Neighbouring threads process neighbouring quads.
/// Fully unrolled because drivers only keep variables in registers that are never indexed.
fn columns_thread(each: usize, threads: usize) -> String {
    let each_quad = |line: &dyn Fn(usize) -> String| (0..each).map(line).collect::<String>();
    let starts = each_quad(&|i| {
        format!(
            "    let quad{i} = first + {}u;
    let base{i} = base_of(min(quad{i}, params.quads - 1u));
    var own{i} = found(base{i}, 0u);\n",
            i * threads
        )
    });
    let pairs = each_quad(&|i| {
        format!("        own{i} = merge4(own{i}, merge4(found(base{i}, p), found(base{i}, p + 1u)));\n")
    });
    let last = each_quad(&|i| format!("        own{i} = merge4(own{i}, found(base{i}, p));\n"));
    let puts = each_quad(&|i| format!("    if (quad{i} < params.quads) {{\n        put(quad{i}, own{i});\n    }}\n"));
    format!(
        "@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{
    let first = workgroup_index(wid, nwg) * {}u + lid;
    if (first >= params.quads) {{
        return;
    }}
    // Quads past the end repeat the last one and are not stored.
{starts}    var p = 1u;
    for (; p + 1u < params.n; p += 2u) {{
{pairs}    }}
    if (p < params.n) {{
{last}    }}
{puts}}}
",
        each * threads
    )
}

/// The members of the state.
fn fields(kind: ReduceKind) -> &'static [&'static str] {
    match kind {
        ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => &["v", "p"],
        _ => &[],
    }
}

/// Generates the state of a reduction, how an element starts it, how two states merge, and the result.
fn state_code(builder: &mut Builder, kind: ReduceKind, class: Class) {
    let float = class == Class::Float;
    let extreme = |name: &str| if float { format!("{name}_f32(a, b)") } else { format!("{name}(a, b)") };
    let (start, merge, result) = match kind {
        ReduceKind::Sum => ("v", "a + b".to_owned(), "s"),
        ReduceKind::Mean => ("v", "a + b".to_owned(), "s / T(params.n)"),
        ReduceKind::SumSquares => ("v * v", "a + b".to_owned(), "s"),
        ReduceKind::Prod => ("v", "a * b".to_owned(), "s"),
        ReduceKind::Max => ("v", extreme("max"), "s"),
        ReduceKind::Min => ("v", extreme("min"), "s"),
        ReduceKind::ArgMax { last } => return positions_code(builder, ">", last, class),
        ReduceKind::ArgMin { last } => return positions_code(builder, "<", last, class),
    };
    if float && matches!(kind, ReduceKind::Max | ReduceKind::Min) {
        builder.need("min_max");
    }
    builder.code(&format!(
        "alias S = T;
fn start(v: T, p: u32) -> S {{ return {start}; }}
fn merge(a: S, b: S) -> S {{ return {merge}; }}
fn result(s: S) -> T {{ return {result}; }}"
    ));
}

/// `beats(a, b)`: whether `a` is better than `b`, compared with `better` (`<` or `>`). NaN beats every number.
pub(crate) fn beats_code(builder: &mut Builder, better: &str, class: Class) {
    let result = match class {
        Class::Float => format!("!is_nan(b) & (is_nan(a) | (a {better} b))"),
        Class::Int | Class::Uint => format!("a {better} b"),
    };
    if class == Class::Float {
        builder.need("is_nan");
    }
    builder.code(&format!("fn beats(a: T, b: T) -> bool {{ return {result}; }}"));
}

/// Generates the state of a search for the best position. Among equal elements it finds the first, or the last.
fn positions_code(builder: &mut Builder, better: &str, last: bool, class: Class) {
    beats_code(builder, better, class);
    let nans = if class == Class::Float { "(is_nan(a.v) & is_nan(b.v))" } else { "false" };
    let sooner = if last { ">" } else { "<" };
    builder.code(&format!(
        "struct S {{
    v: T,
    p: u32,
}}
fn start(v: T, p: u32) -> S {{ return S(v, p); }}
fn merge(a: S, b: S) -> S {{
    let equal = {nans} | (a.v == b.v);
    let take = beats(b.v, a.v) | (equal & (b.p {sooner} a.p));
    return S(select(a.v, b.v, take), select(a.p, b.p, take));
}}
fn result(s: S) -> i32 {{ return i32(s.p); }}"
    ));
}
