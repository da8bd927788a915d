//! Matrix products, in three forms: few rows or columns; tiles in workgroup memory for GPUs; tiles in registers alone for software
//! adapters, where barriers cost more than they save.

use core::fmt::Write;

use super::{Builder, grid};
use crate::kernel::{Caps, Launch, MatMulKernel, wgsl_type};
use crate::plan::Step;
use crate::record::InnerOp;
use crate::tensor::{Layout, Strides};

/// Rows or columns that count as few.
const FEW: usize = 4;
/// Elements per side of a workgroup's tile in [`tiled`].
const TILE: usize = 64;
/// Threads of a workgroup in [`tiled`] and [`few`].
const THREADS: u32 = 256;
/// Bytes of workgroup memory that [`tiled`] uses.
const TILE_BYTES: u32 = 2 * 1088 * 4;

/// The launch of a matrix product.
pub(super) fn lower(step: &Step, kernel: &MatMulKernel, caps: &Caps) -> Option<Launch> {
    let [a, b] = &step.inputs[..] else { return None };
    let (Some(a), Some(b)) = (Matrix::of(&a.layout), Matrix::of(&b.layout)) else { return None };
    let mut builder = Builder::new(step, "matmul");
    let ty = wgsl_type(kernel.class);
    builder.alias("T", ty).code(match kernel.inner {
        InnerOp::Product => "fn combine(sum: vec4<T>, a: vec4<T>, b: vec4<T>) -> vec4<T> { return sum + a * b; }",
        InnerOp::SquaredDifference => {
            "fn combine(sum: vec4<T>, a: vec4<T>, b: vec4<T>) -> vec4<T> { let d = a - b; return sum + d * d; }"
        }
    });
    let batches: usize = kernel.batch.iter().product();
    builder.params.size("batches", batches).size("k", kernel.k);
    batch_offset(&mut builder, kernel, &a, &b);
    let tiles_fit = caps.invocations >= THREADS && caps.workgroup_memory >= TILE_BYTES;
    let subgroup = caps.subgroup.filter(|size| caps.software && matches!(size, 4 | 8 | 16));
    Some(
        if kernel.m <= FEW
            && kernel.n > FEW
            && let Some(lanes) = subgroup
        {
            few_rows(builder, kernel, &a, &b, batches, lanes as usize, caps)
        } else if kernel.m.min(kernel.n) <= FEW {
            few(builder, kernel, &a, &b, batches, caps)
        } else if tiles_fit && !caps.software {
            tiled(builder, kernel, &a, &b, batches, caps)
        } else {
            registers(builder, kernel, &a, &b, batches, caps)
        },
    )
}

/// The strides of an operand: its batch axes, then its rows and columns.
struct Matrix {
    batch: Strides,
    row: isize,
    col: isize,
}

impl Matrix {
    fn of(layout: &Layout) -> Option<Self> {
        let (batch, [row, col]) = layout.strides.split_last_chunk::<2>()?;
        Some(Self { batch: batch.into(), row: *row, col: *col })
    }
}

/// `batch_offset(batch)`: where the matrices of a batch begin, offsets included. Strides are words that wrap, so negative ones come out right.
fn batch_offset(builder: &mut Builder, kernel: &MatMulKernel, a: &Matrix, b: &Matrix) {
    let mut text = String::from(
        "fn batch_offset(batch: u32) -> vec2<u32> {
    var rest = batch;
    var at = vec2<u32>(params.a_offset, params.b_offset);
",
    );
    for axis in (0..kernel.batch.len()).rev() {
        builder.params.size(&format!("batch{axis}"), kernel.batch[axis]);
        builder.params.size(&format!("a_batch{axis}"), a.batch.get(axis).map_or(0, |s| *s as usize));
        builder.params.size(&format!("b_batch{axis}"), b.batch.get(axis).map_or(0, |s| *s as usize));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    at += rest % params.batch{axis} * vec2<u32>(params.a_batch{axis}, params.b_batch{axis});
    rest = rest / params.batch{axis};"
        );
    }
    text.push_str("    return at;\n}");
    builder.code(&text);
}

/// The sizes and strides that tiles need.
fn matrix_params(builder: &mut Builder, kernel: &MatMulKernel, a: &Matrix, b: &Matrix) {
    builder.params.size("m", kernel.m).size("n", kernel.n);
    builder.params.size("a_row", a.row as usize).size("a_col", a.col as usize);
    builder.params.size("b_row", b.row as usize).size("b_col", b.col as usize);
}

/// Tiles in workgroup memory.
fn tiled(mut builder: Builder, kernel: &MatMulKernel, a: &Matrix, b: &Matrix, batches: usize, caps: &Caps) -> Launch {
    matrix_params(&mut builder, kernel, a, b);
    builder.constant("A_FAST", u32::from(a.row != 1)).constant("B_FAST", u32::from(b.row != 1));
    let tiles = batches * kernel.m.div_ceil(TILE) * kernel.n.div_ceil(TILE);
    builder.finish(include_str!("../../../assets/kernels/matmul_tiled.wgsl"), grid(tiles, caps))
}

/// Few rows, or few columns with the operands changed about.
fn few(mut builder: Builder, kernel: &MatMulKernel, a: &Matrix, b: &Matrix, batches: usize, caps: &Caps) -> Launch {
    let rows_are_few = kernel.m <= kernel.n;
    let (few, many, left_few, left_k, right_k, right_many, y_few, y_many) = if rows_are_few {
        (kernel.m, kernel.n, a.row, a.col, b.row, b.col, kernel.n, 1)
    } else {
        (kernel.n, kernel.m, b.col, b.row, a.col, a.row, 1, kernel.n)
    };
    builder.code(match rows_are_few {
        true => "fn left(i: u32) -> T { return load_a(i); }\nfn right(i: u32) -> T { return load_b(i); }",
        false => "fn left(i: u32) -> T { return load_b(i); }\nfn right(i: u32) -> T { return load_a(i); }",
    });
    let strides = [("left_few", left_few), ("left_k", left_k), ("right_k", right_k), ("right_many", right_many)];
    for (name, stride) in strides {
        builder.params.size(name, stride as usize);
    }
    builder.params.size("many", many).size("y_few", y_few).size("y_many", y_many);
    let k_fast = right_k == 1 && right_many != 1;
    let room = caps.invocations >= THREADS && caps.workgroup_memory >= THREADS * 16;
    let (columns, slices) = match (caps.software || !room, k_fast) {
        (true, _) => (64, 1),
        (false, true) => (4, 64),
        (false, false) => (64, 4),
    };
    builder.constant("ROWS", few as u32).constant("COLS", columns).constant("SLICES", slices);
    builder.constant("K_FAST", u32::from(k_fast));
    let body = include_str!("../../../assets/kernels/matmul_few.wgsl");
    let body = match rows_are_few {
        true => body.to_owned(),
        // The parts of the batch offset change places too.
        false => body.replace("let base = batch_offset(batch);", "let base = batch_offset(batch).yx;"),
    };
    builder.finish(&body, grid(batches * many.div_ceil(columns as usize), caps))
}

/// Few rows on a software adapter: a workgroup is one subgroup, each lane has four columns. A lane loads one element of each row of `a` for
/// as many steps of k as there are lanes, and gets the others from its neighbours, so nearly all loads are of `b`.
fn few_rows(
    mut builder: Builder,
    kernel: &MatMulKernel,
    a: &Matrix,
    b: &Matrix,
    batches: usize,
    lanes: usize,
    caps: &Caps,
) -> Launch {
    matrix_params(&mut builder, kernel, a, b);
    let (rows, columns) = (kernel.m, 4 * lanes);
    let mut text = format!(
        "fn columns(cols: vec4<u32>, k: u32) -> vec4<T> {{
    let at = cols + k * params.b_row;
    return vec4<T>(load_b(at.x), load_b(at.y), load_b(at.z), load_b(at.w));
}}
@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {{
    let tiles = (params.n + {columns}u - 1u) / {columns}u;
    let group = workgroup_index(wid, nwg);
    if (group >= params.batches * tiles) {{
        return;
    }}
    let batch = group / tiles;
    let col = group % tiles * {columns}u + lane * 4u;
    let base = batch_offset(batch);
    // What lies beyond the end repeats the last column, and is not stored.
    let cols = base.y + min(col + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.n - 1u)) * params.b_col;
    let whole = params.k - params.k % {lanes}u;
"
    );
    // Writing to a string cannot fail.
    for row in 0..rows {
        let _ = writeln!(text, "    var acc{row} = vec4<T>();\n    let row{row} = base.x + {row}u * params.a_row;");
    }
    let _ = writeln!(text, "    for (var k = 0u; k < whole; k += {lanes}u) {{");
    for row in 0..rows {
        let _ = writeln!(text, "        let a{row} = load_a(row{row} + (k + lane) * params.a_col);");
    }
    for i in 0..lanes {
        let _ = writeln!(text, "        let b{i} = columns(cols, k + {i}u);");
        for row in 0..rows {
            let a = format!("subgroupBroadcast(a{row}, {i}u)");
            let _ = writeln!(text, "        acc{row} = combine(acc{row}, vec4<T>({a}), b{i});");
        }
    }
    text.push_str("    }\n    for (var k = whole; k < params.k; k++) {\n        let b = columns(cols, k);\n");
    for row in 0..rows {
        let a = format!("load_a(row{row} + k * params.a_col)");
        let _ = writeln!(text, "        acc{row} = combine(acc{row}, vec4<T>({a}), b);");
    }
    text.push_str("    }\n    for (var c = 0u; c < min(4u, params.n - min(col, params.n)); c++) {\n");
    for row in 0..rows {
        let _ = writeln!(
            text,
            "        store_y((batch * {rows}u + {row}u) * params.n + col + c, acc{row}[c]);"
        );
    }
    text.push_str("    }\n}\n");
    builder.finish(&text, grid(batches * kernel.n.div_ceil(columns), caps))
}

/// Tiles in registers, without workgroup memory. The text is spelled out, as drivers keep only variables that are never indexed in
/// registers. With subgroups of a known size, a workgroup is one subgroup: every lane has four columns of all the tile's rows, loads an
/// equal share of the tile's column of `a` and gets the rest from its neighbours.
fn registers(
    mut builder: Builder,
    kernel: &MatMulKernel,
    a: &Matrix,
    b: &Matrix,
    batches: usize,
    caps: &Caps,
) -> Launch {
    matrix_params(&mut builder, kernel, a, b);
    let subgroup = caps.subgroup.filter(|size| matches!(size, 4 | 8 | 16)).map(|size| size as usize);
    let lanes = subgroup.unwrap_or(8);
    // More rows than the matrix has would be computed for nothing.
    let rows: usize = match (subgroup, kernel.m) {
        (Some(_), 17..) => 32,
        (Some(_), 9..) => 16,
        _ => 8,
    };
    let columns = 4 * lanes;
    let shares = if subgroup.is_some() { rows.div_ceil(lanes) } else { rows };
    let mut text = String::new();
    let id = if subgroup.is_some() { "subgroup_invocation_id" } else { "local_invocation_index" };
    let _ = write!(
        text,
        "@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin({id}) lane: u32) {{
    let tiles_n = (params.n + {columns}u - 1u) / {columns}u;
    let tiles_m = (params.m + {rows}u - 1u) / {rows}u;
    let group = workgroup_index(wid, nwg);
    if (group >= params.batches * tiles_m * tiles_n) {{
        return;
    }}
    let batch = group / (tiles_m * tiles_n);
    let top = (group / tiles_n) % tiles_m * {rows}u;
    let col = group % tiles_n * {columns}u + lane;
    let base = batch_offset(batch);
    // What lies beyond the end repeats the last row or column, and is not stored.
    let last_row = params.m - 1u;
    let cols = base.y + min(vec4<u32>(col, col + {lanes}u, col + {lanes}u * 2u, col + {lanes}u * 3u), vec4<u32>(params.n - 1u)) * params.b_col;
"
    );
    for share in 0..shares {
        let row = if subgroup.is_some() { format!("{}u + lane", share * lanes) } else { format!("{share}u") };
        let _ = writeln!(text, "    let row{share} = base.x + min(top + {row}, last_row) * params.a_row;");
    }
    for row in 0..rows {
        let _ = writeln!(text, "    var acc{row} = vec4<T>();");
    }
    text.push_str("    for (var k = 0u; k < params.k; k++) {\n        let kb = k * params.b_row;\n        let ka = k * params.a_col;\n");
    text.push_str(
        "        let b = vec4<T>(load_b(cols.x + kb), load_b(cols.y + kb), load_b(cols.z + kb), load_b(cols.w + kb));\n",
    );
    for share in 0..shares {
        let _ = writeln!(text, "        let a{share} = load_a(row{share} + ka);");
    }
    for row in 0..rows {
        let a = match subgroup {
            Some(_) => format!("subgroupBroadcast(a{}, {}u)", row / lanes, row % lanes),
            None => format!("a{row}"),
        };
        let _ = writeln!(text, "        acc{row} = combine(acc{row}, vec4<T>({a}), b);");
    }
    text.push_str("    }\n");
    for row in 0..rows {
        let _ = writeln!(text, "    store(batch, top + {row}u, col, acc{row});");
    }
    let _ = write!(
        text,
        "}}
fn store(batch: u32, row: u32, col: u32, v: vec4<T>) {{
    if (row >= params.m) {{
        return;
    }}
    let at = (batch * params.m + row) * params.n;
    for (var c = 0u; c < 4u; c++) {{
        if (col + c * {lanes}u < params.n) {{
            store_y(at + col + c * {lanes}u, v[c]);
        }}
    }}
}}
"
    );
    let tiles = batches * kernel.m.div_ceil(rows) * kernel.n.div_ceil(columns);
    builder.finish(&text, grid(tiles, caps))
}
