//! Matrix products with quantised weights on the GPU. Plain blocks and bytes have four forms: for few rows, with threads that share a column or
//! lanes that share `x`; tiles in workgroup memory for GPUs; and tiles in registers for software adapters. All
//! dequantise the words they load and sum in `f32`. The blocks of GGUF files are decoded four elements at a time: for few
//! rows by threads that share a column, otherwise in the same tiles, or by threads with a column each.

use core::fmt::Write;

use crate::ir::{BlockFormat, DType, GgufType};
use crate::kernel::wgsl::{Builder, gguf_blocks, grid};
use crate::kernel::{Caps, Launch, QuantMatMulKernel, Step};

/// Maximum number of rows for the `few` form.
const FEW: usize = 4;
/// Maximum number of rows for the `lanes` form, which keeps them in registers.
const FEW_BY_LANES: usize = 8;
/// Elements per side of a workgroup's tile in [`tiled`].
const TILE: usize = 64;
/// Threads of a workgroup in [`tiled`] and [`few`].
const THREADS: u32 = 256;
/// Bytes of workgroup memory that [`tiled`] uses.
const TILE_BYTES: u32 = 2 * 1088 * 4;

/// How the words of the weights are read. Plain bytes are blocks of one word without a scale.
#[derive(Clone, Copy)]
struct Words {
    /// Elements per block.
    block: usize,
    /// Words per block.
    words: usize,
    /// Groups of four elements per word. The second group lies half a block further.
    quads: usize,
    scaled: bool,
}

/// The launch of a product.
pub(crate) fn lower(step: &Step, kernel: &QuantMatMulKernel, caps: &Caps) -> Option<Launch> {
    if let DType::Gguf(kind) = kernel.weight {
        return lower_gguf(step, kernel, kind, caps);
    }
    let words = match kernel.weight.block_format() {
        Some(format) => Words { block: format.elements, words: format.words(), quads: 8 / format.bits, scaled: true },
        None => Words { block: 4, words: 1, quads: 1, scaled: false },
    };
    let mut builder = Builder::new(step);
    weight_code(&mut builder, kernel, words);
    let first = step.inputs.get(1)?.layout.offset / words.block;
    let blocks = kernel.k / words.block;
    builder.params.size("n", kernel.n).size("k", kernel.k);
    builder.params.size("first_block", first).size("blocks", blocks).size("words", blocks * words.words);
    let subgroup = caps.subgroup.filter(|size| caps.software && matches!(size, 4 | 8 | 16));
    let tiles_fit = caps.invocations >= THREADS && caps.workgroup_memory >= TILE_BYTES;
    Some(match subgroup {
        Some(size) if kernel.m <= FEW_BY_LANES => lanes(builder, kernel, words, size as usize, caps),
        _ if kernel.m <= FEW => few(builder, kernel, caps),
        _ if tiles_fit && !caps.software => {
            builder.code(
                "// Number of elements of a block in the first quads of all its words.
const SPAN: u32 = WORDS * 4u;
// Four elements of column `column`, starting at `k`.
fn quad(column: u32, k: u32) -> vec4<f32> {
    let block = params.first_block + column * params.blocks + k / BLOCK;
    let e = k % BLOCK;
    let word = weight[quants(block) + e % SPAN / 4u];
    if (QUADS == 2u && e >= SPAN) {
        return quad1(word) * scale(block);
    }
    return quad0(word) * scale(block);
}",
            );
            tiled(builder, kernel, caps)
        }
        _ => registers(builder, kernel, words, subgroup.map(|size| size as usize), caps),
    })
}

/// Adds constants and these functions: `quants(block)` returns the first word with quants of a block; `scale(block)`
/// its scale; `quad0(word)` and `quad1(word)` the four elements of a word that belong to the first half of the block
/// (or to all of it) and to the second half.
fn weight_code(builder: &mut Builder, kernel: &QuantMatMulKernel, words: Words) {
    builder.constant("BLOCK", words.block as u32).constant("WORDS", words.words as u32);
    builder.constant("QUADS", words.quads as u32);
    let q = kernel.weight.name();
    builder.code(&match words.scaled {
        true => format!(
            "fn quants(block: u32) -> u32 {{ return {q}_quants(block); }}
fn scale(block: u32) -> f32 {{ return {q}_scale(weight[{q}_scales(block)], block); }}"
        ),
        false => {
            "fn quants(block: u32) -> u32 { return block; }\nfn scale(block: u32) -> f32 { return 1.0; }".to_owned()
        }
    });
    builder.code(match words.quads {
        1 => {
            "fn quad0(word: u32) -> vec4<f32> { return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u)); }
fn quad1(word: u32) -> vec4<f32> { return vec4<f32>(); }"
        }
        _ => {
            "fn nibbles(word: u32) -> vec4<f32> { return vec4<f32>(bitcast<vec4<i32>>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u))) - 8.0; }
fn quad0(word: u32) -> vec4<f32> { return nibbles(word); }
fn quad1(word: u32) -> vec4<f32> { return nibbles(word >> 4u); }"
        }
    });
}

/// The launch of a product with blocks of a GGUF file.
fn lower_gguf(step: &Step, kernel: &QuantMatMulKernel, kind: GgufType, caps: &Caps) -> Option<Launch> {
    let mut builder = Builder::new(step);
    let format = BlockFormat::of_gguf(kind);
    let (elements, quad) = (format.elements, gguf_blocks::quad("weight", kind));
    builder.params.size("n", kernel.n).size("k", kernel.k);
    let first = step.inputs.get(1)?.layout.offset / elements;
    builder.params.size("first_block", first).size("blocks", kernel.k / elements);
    builder.code(&format!(
        "// Four elements of column `column`, starting at `k`.
fn quad(column: u32, k: u32) -> vec4<f32> {{ return {quad}(params.first_block + column * params.blocks + k / {elements}u, k % {elements}u); }}"
    ));
    let tiles_fit = caps.invocations >= THREADS && caps.workgroup_memory >= TILE_BYTES;
    Some(match kernel.m {
        ..=FEW => {
            let (columns, slices) = few_threads(caps);
            builder.constant("ROWS", kernel.m as u32).constant("COLS", columns).constant("SLICES", slices);
            let body = include_str!("../../../assets/kernels/quant_matmul_few_quads.wgsl");
            builder.finish(body, grid(kernel.n.div_ceil(columns as usize), caps))
        }
        _ if tiles_fit && !caps.software => tiled(builder, kernel, caps),
        _ => {
            builder.params.size("m", kernel.m);
            let body = include_str!("../../../assets/kernels/quant_matmul_rows.wgsl");
            builder.finish_threads(body, kernel.m.div_ceil(8) * kernel.n, caps)
        }
    })
}

/// Columns per workgroup and threads per column, for few rows.
fn few_threads(caps: &Caps) -> (u32, u32) {
    let room = caps.invocations >= THREADS && caps.workgroup_memory >= THREADS * 16;
    if caps.software || !room { (64, 1) } else { (4, 64) }
}

/// Tiles in workgroup memory.
fn tiled(mut builder: Builder, kernel: &QuantMatMulKernel, caps: &Caps) -> Launch {
    builder.params.size("m", kernel.m);
    let tiles = kernel.m.div_ceil(TILE) * kernel.n.div_ceil(TILE);
    builder.finish(include_str!("../../../assets/kernels/quant_matmul_tiled.wgsl"), grid(tiles, caps))
}

/// Few rows. Neighbouring threads read neighbouring words of a weight row.
fn few(mut builder: Builder, kernel: &QuantMatMulKernel, caps: &Caps) -> Launch {
    let (columns, slices) = few_threads(caps);
    builder.constant("ROWS", kernel.m as u32).constant("COLS", columns).constant("SLICES", slices);
    let body = include_str!("../../../assets/kernels/quant_matmul_few.wgsl");
    builder.finish(body, grid(kernel.n.div_ceil(columns as usize), caps))
}

/// Few rows on a software adapter. A workgroup is one subgroup, and each lane processes four columns, four words at a
/// time. All lanes together load the matching elements of `x` and share them.
fn lanes(builder: Builder, kernel: &QuantMatMulKernel, words: Words, lanes: usize, caps: &Caps) -> Launch {
    let (rows, columns) = (kernel.m, 4);
    let width = columns * lanes;
    let mut text = format!(
        "@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {{
    let group = workgroup_index(wid, nwg);
    if (group * {width}u >= params.n) {{
        return;
    }}
    let col = group * {width}u + lane;
"
    );
    // Writing to a string cannot fail.
    for c in 0..columns {
        // Columns past the end repeat the last one and are not stored.
        let column = format!("min(col + {}u, params.n - 1u)", c * lanes);
        let _ = writeln!(text, "    let col{c} = params.first_block + {column} * params.blocks;");
        for row in 0..rows {
            let _ = writeln!(text, "    var acc{c}_{row} = 0.0;");
        }
    }
    // Adds four words of every column to the given sums, from word `w` on. The words begin at `start` in the weights
    // and at `k` in `x`.
    let chunk = |sums: &str| {
        let mut text = String::from("            let at = params.x_offset + k + w * 4u + lane;\n");
        let each = || (0..rows).flat_map(|row| (0..words.quads).map(move |quad| (row, quad)));
        for ((row, quad), i) in each().flat_map(|at| (0..16 / lanes).map(move |i| (at, i))) {
            let from = format!("at + {row}u * params.k + {quad}u * (BLOCK / 2u) + {}u", i * lanes);
            let _ = writeln!(text, "            let x{row}_{quad}_{i} = load_x({from});");
        }
        for i in 0..4 {
            for c in 0..columns {
                let _ = writeln!(text, "            let w{i}_{c} = weight[start{c} + w + {i}u];");
                for quad in 0..words.quads {
                    let _ = writeln!(text, "            let q{i}_{c}_{quad} = quad{quad}(w{i}_{c});");
                }
            }
            for (row, quad) in each() {
                let of_lane = |e: usize| format!("subgroupBroadcast(x{row}_{quad}_{}, {}u)", e / lanes, e % lanes);
                let four: Vec<_> = (4 * i..4 * i + 4).map(of_lane).collect();
                let _ = writeln!(text, "            let v{i}_{row}_{quad} = vec4<f32>({});", four.join(", "));
                for c in 0..columns {
                    let _ = writeln!(text, "            {sums}{c}_{row} += dot(q{i}_{c}_{quad}, v{i}_{row}_{quad});");
                }
            }
        }
        text
    };
    if words.scaled {
        text.push_str("    for (var block = 0u; block < params.blocks; block++) {\n        let k = block * BLOCK;\n");
        for c in 0..columns {
            let _ = writeln!(text, "        let start{c} = quants(col{c} + block);");
            for row in 0..rows {
                let _ = writeln!(text, "        var part{c}_{row} = 0.0;");
            }
        }
        let _ = writeln!(text, "        for (var w = 0u; w < WORDS; w += 4u) {{\n{}        }}", chunk("part"));
        for c in 0..columns {
            let _ = writeln!(text, "        let scale{c} = scale(col{c} + block);");
            for row in 0..rows {
                let _ = writeln!(text, "        acc{c}_{row} += part{c}_{row} * scale{c};");
            }
        }
        text.push_str("    }\n");
    } else {
        // The row length is arbitrary, so some words may be left over.
        text.push_str("    {\n        let k = 0u;\n        let whole = params.words - params.words % 4u;\n");
        for c in 0..columns {
            let _ = writeln!(text, "        let start{c} = quants(col{c});");
        }
        let _ = writeln!(text, "        for (var w = 0u; w < whole; w += 4u) {{\n{}        }}", chunk("acc"));
        text.push_str("        for (var w = whole; w < params.words; w++) {\n");
        for row in 0..rows {
            let _ = writeln!(text, "            let v{row} = quad_x(params.x_offset + {row}u * params.k + w * 4u);");
        }
        for (c, row) in (0..columns).flat_map(|c| (0..rows).map(move |row| (c, row))) {
            let _ = writeln!(text, "            acc{c}_{row} += dot(quad0(weight[start{c} + w]), v{row});");
        }
        text.push_str("        }\n    }\n");
    }
    for (c, row) in (0..columns).flat_map(|c| (0..rows).map(move |row| (c, row))) {
        let column = format!("col + {}u", c * lanes);
        let _ =
            writeln!(text, "    if ({column} < params.n) {{ store_y({row}u * params.n + {column}, acc{c}_{row}); }}");
    }
    text.push_str(
        "}
fn quad_x(i: u32) -> vec4<f32> { return vec4<f32>(load_x(i), load_x(i + 1u), load_x(i + 2u), load_x(i + 3u)); }
",
    );
    builder.finish(&text, grid(kernel.n.div_ceil(width), caps))
}

/// Tiles in registers without workgroup memory, as for float products. Every lane processes four columns for all rows
/// of the tile and dequantises one word of each at a time. If the subgroup size is known, it loads an equal share of
/// the tile's column of `x`.
fn registers(
    mut builder: Builder,
    kernel: &QuantMatMulKernel,
    words: Words,
    subgroup: Option<usize>,
    caps: &Caps,
) -> Launch {
    builder.params.size("m", kernel.m);
    let lanes = subgroup.unwrap_or(8);
    // Tiles with more rows than the matrix waste work.
    let rows: usize = match (subgroup, kernel.m) {
        (Some(_), 17..) => 32,
        (Some(_), 9..) => 16,
        _ => 8,
    };
    let columns = 4 * lanes;
    let shares = if subgroup.is_some() { rows.div_ceil(lanes) } else { rows };
    let id = if subgroup.is_some() { "subgroup_invocation_id" } else { "local_invocation_index" };
    let mut text = format!(
        "@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin({id}) lane: u32) {{
    let tiles_n = (params.n + {columns}u - 1u) / {columns}u;
    let tiles_m = (params.m + {rows}u - 1u) / {rows}u;
    let group = workgroup_index(wid, nwg);
    if (group >= tiles_m * tiles_n) {{
        return;
    }}
    let top = group / tiles_n * {rows}u;
    let col = group % tiles_n * {columns}u + lane;
    // Rows and columns past the end repeat the last one and are not stored.
    let last_row = params.m - 1u;
    let cols = params.first_block + min(vec4<u32>(col, col + {lanes}u, col + {lanes}u * 2u, col + {lanes}u * 3u), vec4<u32>(params.n - 1u)) * params.blocks;
"
    );
    // Writing to a string cannot fail.
    for share in 0..shares {
        let row = if subgroup.is_some() { format!("{}u + lane", share * lanes) } else { format!("{share}u") };
        let _ = writeln!(text, "    let row{share} = params.x_offset + min(top + {row}, last_row) * params.k;");
    }
    for row in 0..rows {
        let _ = writeln!(text, "    var acc{row} = vec4<f32>();");
    }
    text.push_str("    for (var block = 0u; block < params.blocks; block++) {\n        let b = cols + block;\n");
    if words.scaled {
        text.push_str("        let s = vec4<f32>(scale(b.x), scale(b.y), scale(b.z), scale(b.w));\n");
    }
    text.push_str(
        "        let start = vec4<u32>(quants(b.x), quants(b.y), quants(b.z), quants(b.w));
        for (var word = 0u; word < WORDS; word++) {
            let w = vec4<u32>(weight[start.x + word], weight[start.y + word], weight[start.z + word], weight[start.w + word]);
            let k = block * BLOCK + word * 4u;
",
    );
    for quad in 0..words.quads {
        for (i, c) in ["x", "y", "z", "w"].iter().enumerate() {
            let _ = writeln!(text, "            let q{quad}_{i} = quad{quad}(w.{c});");
        }
        for (e, part) in ["x", "y", "z", "w"].iter().enumerate() {
            let lanes_of: Vec<_> = (0..4).map(|i| format!("q{quad}_{i}.{part}")).collect();
            let scaled = if words.scaled { " * s" } else { "" };
            let at = format!("{quad}_{e}");
            let _ = writeln!(text, "            let w{at} = vec4<f32>({}){scaled};", lanes_of.join(", "));
            for share in 0..shares {
                let _ = writeln!(
                    text,
                    "            let x{at}_{share} = load_x(row{share} + k + {quad}u * (BLOCK / 2u) + {e}u);"
                );
            }
            for row in 0..rows {
                let x = match subgroup {
                    Some(_) => format!("subgroupBroadcast(x{at}_{}, {}u)", row / lanes, row % lanes),
                    None => format!("x{at}_{row}"),
                };
                let _ = writeln!(text, "            acc{row} += {x} * w{at};");
            }
        }
    }
    text.push_str("        }\n    }\n");
    for row in 0..rows {
        let _ = writeln!(text, "    store(top + {row}u, col, acc{row});");
    }
    let _ = write!(
        text,
        "}}
fn store(row: u32, col: u32, v: vec4<f32>) {{
    if (row >= params.m) {{
        return;
    }}
    for (var c = 0u; c < 4u; c++) {{
        if (col + c * {lanes}u < params.n) {{
            store_y(row * params.n + col + c * {lanes}u, v[c]);
        }}
    }}
}}
"
    );
    builder.finish(&text, grid(kernel.m.div_ceil(rows) * kernel.n.div_ceil(columns), caps))
}
