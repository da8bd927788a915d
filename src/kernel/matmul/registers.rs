//! Matrix products that use only registers, for software adapters: no workgroup memory and no barriers. The shader is
//! fully unrolled because drivers only keep variables in registers that are never indexed.
//!
//! A workgroup is one subgroup, or as many threads as a subgroup would have. A lane computes four neighbouring columns
//! (or several such quads) for all rows of the tile. Loads are the main cost, and every lane pays for its own. Every
//! element of the tile's rows and columns is therefore loaded once by one lane, four at a time where four neighbours
//! along k or along the columns are contiguous. Lanes share what they loaded by broadcast.
//!
//! | rows | columns | tile | lanes load |
//! |---|---|---|---|
//! | up to 16 | 1024 or more | rows × 128: long ranges at each step of k | a row each |
//! | up to 32 | any | rows × 64 | a row each |
//! | more | any | 32 × 64 | a row each, several times |
//! | 96 or more | 96 or more | 64 × 64 | a row each, several times |
//! | any, subgroups of unknown size | any | 8 × 32 | all rows |

use core::fmt::Write;

use crate::kernel::matmul::wgsl::{Along, FEW, PUT, Product, Side};
use crate::kernel::wgsl::{Builder, grid};
use crate::kernel::{Caps, Launch, Variant, Variants};

/// Minimum number of rows and columns for which the largest tile pays. A driver takes a second to compile it.
const LARGE: usize = 96;

/// How a product is tiled.
struct Tile {
    lanes: usize,
    rows: usize,
    /// Quads of columns per lane.
    quads: usize,
    /// Whether each lane loads one row and broadcasts it, instead of loading all rows.
    shared: bool,
}

/// The subgroup size, if lanes can share loads.
fn lanes(caps: &Caps) -> Option<usize> {
    caps.subgroup.filter(|size| matches!(size, 4 | 8 | 16)).map(|size| size as usize)
}

/// The tiles for a product of the given numbers of rows and columns, the default first.
pub(crate) fn variants([rows, columns]: [usize; 2], caps: &Caps) -> Variants {
    let Some(lanes) = lanes(caps) else {
        return Variants::from_slice(&[Variant::Registers { rows: rows.clamp(1, 8) as u8, quads: 1 }]);
    };
    let tile = match rows {
        // Exactly as many rows as there are: there are few such variants, and no work is wasted.
        ..=FEW => rows.max(1),
        LARGE.. if columns >= LARGE => 64,
        _ => rows.next_power_of_two().clamp(8, 32),
    };
    let quads = match columns {
        1024.. if tile <= 16 => 4,
        _ if columns > 4 * lanes => 2,
        _ => 1,
    };
    let mut list = Variants::from_slice(&[Variant::Registers { rows: tile as u8, quads }]);
    // Larger tiles first, because loads cost more than arithmetic.
    let all = [tile as u8, 64, 32, 16, 8].into_iter().flat_map(|rows| [2, 1, 4].map(|quads| (rows, quads)));
    for (tile, quads) in all {
        // Larger tiles exceed the registers and take too long to compile.
        let fits = usize::from(tile) * usize::from(quads) <= 128;
        // Tiles of which half would be unused do not pay.
        let pays = usize::from(tile) < 2 * rows.max(1) && (quads == 1 || 4 * lanes * usize::from(quads) < 2 * columns);
        let variant = Variant::Registers { rows: tile, quads };
        if fits && pays && !list.contains(&variant) && list.len() < 8 {
            list.push(variant);
        }
    }
    list
}

impl Tile {
    fn of(rows: u8, quads: u8, caps: &Caps) -> Self {
        let lanes = lanes(caps);
        Self { lanes: lanes.unwrap_or(8), rows: rows.into(), quads: quads.into(), shared: lanes.is_some() }
    }

    /// Number of row loads at a step of k.
    fn shares(&self) -> usize {
        if self.shared { self.rows.div_ceil(self.lanes) } else { self.rows }
    }

    /// The expression for an element of a row: `member` of the loaded value.
    fn element(&self, row: usize, member: &str) -> String {
        match self.shared {
            true => format!("subgroupBroadcast(a{}{member}, {}u)", row / self.lanes, row % self.lanes),
            false => format!("a{row}{member}"),
        }
    }

    /// Number of columns between two quads of a lane.
    fn pitch(&self) -> usize {
        4 * self.lanes
    }
}

/// The launch of a product. `builder` has quads for both operands according to their [`Along`], and for the output.
pub(crate) fn lower(mut builder: Builder, product: &Product, rows: u8, quads: u8, caps: &Caps) -> Launch {
    let Product { left, right, batches, .. } = product;
    let tile = Tile::of(rows, quads, caps);
    let columns = tile.pitch() * tile.quads;
    product.params(&mut builder);
    let mut text = format!(
        "const ROWS: u32 = {}u;\nconst COLUMNS: u32 = {columns}u;\nconst PITCH: u32 = {}u;\n",
        tile.rows,
        tile.pitch()
    );
    text.push_str(PUT);
    // Writing to a string cannot fail.
    let id = if tile.shared { "subgroup_invocation_id" } else { "local_invocation_index" };
    let _ = write!(
        text,
        "
@compute @workgroup_size({})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin({id}) lane: u32) {{
    let tiles_right = (params.right_lines + COLUMNS - 1u) / COLUMNS;
    let tiles_left = (params.left_lines + ROWS - 1u) / ROWS;
    let group = workgroup_index(wid, nwg);
    if (group >= params.batches * tiles_left * tiles_right) {{
        return;
    }}
    let batch = group / (tiles_left * tiles_right);
    let top = (group / tiles_right) % tiles_left * ROWS;
    let column = group % tiles_right * COLUMNS + lane * 4u;
    let base = sides_offset(batch);
    // Rows and columns past the end repeat the last one and are not stored.
",
        tile.lanes
    );
    positions(&mut text, &tile, right);
    for row in 0..tile.rows {
        for quad in 0..tile.quads {
            let _ = writeln!(text, "    var acc{row}_{quad} = vec4<T>();");
        }
    }
    text.push_str("    let whole = params.k - params.k % 4u;\n    for (var k = 0u; k < whole; k += 4u) {\n");
    main_loop(&mut text, &tile, left, right);
    text.push_str("    }\n    for (var k = whole; k < params.k; k++) {\n");
    for share in 0..tile.shares() {
        let _ = writeln!(text, "        let a{share} = left(row{share} + k * params.left_k);");
    }
    for quad in 0..tile.quads {
        let _ = writeln!(text, "        let b{quad} = {};", columns_at(right, quad, "k"));
    }
    for row in 0..tile.rows {
        let a = tile.element(row, "");
        combine(&mut text, &tile, row, &a, |quad| format!("b{quad}"));
    }
    text.push_str("    }\n");
    store(&mut text, &tile);
    text.push_str("}\n");
    let tiles = left.lines.div_ceil(tile.rows) * right.lines.div_ceil(columns);
    builder.finish(&text, grid(batches * tiles, caps))
}

/// Generates the start positions of the lane's rows and columns.
fn positions(text: &mut String, tile: &Tile, right: &Side) {
    for share in 0..tile.shares() {
        let row = if tile.shared { format!("{}u + lane", share * tile.lanes) } else { format!("{share}u") };
        let _ = writeln!(
            text,
            "    let row{share} = base.x + min(top + {row}, params.left_lines - 1u) * params.left_line;"
        );
    }
    for quad in 0..tile.quads {
        if right.along == Along::Lines {
            let column = format!("min(column + {quad}u * PITCH, params.right_lines - 4u)");
            let _ = writeln!(text, "    let at{quad} = base.y + {column};");
            continue;
        }
        for c in 0..4 {
            let column = format!("min(column + {quad}u * PITCH + {c}u, params.right_lines - 1u)");
            let _ = writeln!(text, "    let at{quad}_{c} = base.y + {column} * params.right_line;");
        }
    }
}

/// The elements of a lane's quad of columns at step `k`, unless they come from quads along k.
fn columns_at(right: &Side, quad: usize, k: &str) -> String {
    let step = format!("({k}) * params.right_k");
    match right.along {
        Along::Lines => format!("right4(at{quad} + {step})"),
        Along::K | Along::Neither => {
            let one = |c: usize| format!("right(at{quad}_{c} + {step})");
            format!("vec4<T>({}, {}, {}, {})", one(0), one(1), one(2), one(3))
        }
    }
}

/// Processes four steps of k. Each lane first loads its share of the rows.
fn main_loop(text: &mut String, tile: &Tile, left: &Side, right: &Side) {
    let four = |one: &dyn Fn(usize) -> String| format!("vec4<T>({}, {}, {}, {})", one(0), one(1), one(2), one(3));
    for share in 0..tile.shares() {
        let value = match left.along {
            Along::K => format!("left4(row{share} + k)"),
            Along::Lines | Along::Neither => four(&|step| format!("left(row{share} + (k + {step}u) * params.left_k)")),
        };
        let _ = writeln!(text, "        let a{share} = {value};");
    }
    if right.along == Along::K {
        for (quad, c) in (0..tile.quads).flat_map(|quad| (0..4).map(move |c| (quad, c))) {
            let _ = writeln!(text, "        let column{quad}_{c} = right4(at{quad}_{c} + k);");
        }
    }
    const MEMBERS: [&str; 4] = [".x", ".y", ".z", ".w"];
    for (step, member) in MEMBERS.into_iter().enumerate() {
        for quad in 0..tile.quads {
            let value = match right.along {
                Along::K => four(&|c| format!("column{quad}_{c}{member}")),
                Along::Lines | Along::Neither => columns_at(right, quad, &format!("k + {step}u")),
            };
            let _ = writeln!(text, "        let b{step}_{quad} = {value};");
        }
    }
    // Row by row instead of step by step, so that the sums of a row stay in registers for all four steps.
    for row in 0..tile.rows {
        for (step, member) in MEMBERS.into_iter().enumerate() {
            combine(text, tile, row, &tile.element(row, member), |quad| format!("b{step}_{quad}"));
        }
    }
}

/// Adds the products of one element of a row with all columns of the lane.
fn combine(text: &mut String, tile: &Tile, row: usize, a: &str, b: impl Fn(usize) -> String) {
    let _ = writeln!(text, "        {{\n            let a = vec4<T>({a});");
    for quad in 0..tile.quads {
        let (acc, b) = (format!("acc{row}_{quad}"), b(quad));
        let _ = writeln!(text, "            {acc} = combine({acc}, a, {b});");
    }
    text.push_str("        }\n");
}

/// Stores the results in a loop that selects the variable. The epilogue then occurs once in the shader instead of once
/// per variable, which drivers would take seconds to compile.
fn store(text: &mut String, tile: &Tile) {
    let count = tile.rows * tile.quads;
    let _ =
        writeln!(text, "    for (var i = 0u; i < {count}u; i++) {{\n        var v: vec4<T>;\n        switch (i) {{");
    for i in 0..count {
        let _ = writeln!(text, "            case {i}u: {{ v = acc{}_{}; }}", i / tile.quads, i % tile.quads);
    }
    let quads = tile.quads;
    let _ = writeln!(
        text,
        "            default: {{ }}
        }}
        put(batch, top + i / {quads}u, column + i % {quads}u * PITCH, v);
    }}"
    );
}
