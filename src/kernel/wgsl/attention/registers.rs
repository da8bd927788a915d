//! Attention on a software adapter: scores of a tile of queries by a tile of keys stay in registers, from the products to the weights.
//!
//! There a load costs as much as a hundred multiplications, whether lanes read the same element or not. So a workgroup is one subgroup whose lanes
//! have different queries, load different keys and values, and hand these on to each other. Sums of weighted values are kept in workgroup memory
//! between tiles of keys: each lane has its own, so no barrier is needed, and any number of columns goes through one loop.

use core::fmt::Write;

use super::super::{Builder, grid};
use crate::kernel::{AttentionKernel, Caps, Launch};

/// From so many queries on, twice as many to a tile are worth the time the driver takes to compile them.
const MANY_QUERIES: usize = 256;
/// Bytes of workgroup memory for sums, at most.
const SUM_BYTES: u32 = 32768;
/// Keys that turn from products to scores, and from scores to weights, at a time.
const SCORED: usize = 2;
const WEIGHED: usize = 4;

/// The sizes that make a text.
struct Tile {
    lanes: usize,
    /// Queries of a lane: `quads` vectors of `width`.
    width: usize,
    quads: usize,
    keys: usize,
    columns: usize,
    causal: bool,
}

impl Tile {
    fn new(kernel: &AttentionKernel, lanes: usize, caps: &Caps) -> Self {
        let (width, quads) = match kernel.queries {
            n if n <= lanes => (1, 1),
            n if n < MANY_QUERIES => (4, 1),
            _ => (4, 2),
        };
        let keys = match kernel.keys {
            ..=16 => 16,
            17..=32 => 32,
            33.. => 64,
        };
        let columns = (caps.workgroup_memory.min(SUM_BYTES) as usize / (4 * lanes * width * quads)).max(1);
        Self { lanes, width, quads, keys, columns, causal: kernel.causal }
    }

    fn queries(&self) -> usize {
        self.lanes * self.width * self.quads
    }

    /// What takes each component out of a vector.
    fn suffixes(&self) -> &'static [&'static str] {
        if self.width == 1 { &[""] } else { &[".x", ".y", ".z", ".w"] }
    }

    /// A vector whose components `component` makes, from their suffix and number.
    fn vector(&self, ty: &str, component: impl Fn(&str, usize) -> String) -> String {
        let components: Vec<String> = self.suffixes().iter().enumerate().map(|(i, c)| component(c, i)).collect();
        format!("{ty}({})", components.join(", "))
    }
}

pub(super) fn lower(mut builder: Builder, kernel: &AttentionKernel, lanes: usize, caps: &Caps) -> Launch {
    let tile = Tile::new(kernel, lanes, caps);
    if tile.width == 1 {
        builder.alias("F", "f32").alias("U", "u32");
    } else {
        builder.alias("F", "vec4<f32>").alias("U", "vec4<u32>");
    }
    let (blocks, chunks) = (kernel.queries.div_ceil(tile.queries()), kernel.value.div_ceil(tile.columns));
    let work = kernel.batch * kernel.heads * blocks * chunks;
    builder.params.size("chunks", chunks).size("blocks", blocks).size("work", work);
    builder.finish(&text(&tile), grid(work, caps))
}

/// The body. It is spelled out, as drivers keep only variables that are never indexed in registers: `s3_1` is the score of the tile's fourth key
/// for the lane's second vector of queries.
fn text(tile: &Tile) -> String {
    let &Tile { lanes, quads, keys, columns, causal, .. } = tile;
    let queries = tile.queries();
    let scores = tile.vector("F", |c, _| format!("score_of(product{c}, batch, head, query{c}, key, sees{c})"));
    let mut text = format!(
        "/// The lane's sums of weighted values, by column and vector of queries.
var<workgroup> sums: array<F, {}>;
fn query_element(query: u32, at: u32) -> f32 {{
    var element = 0.0;
    if (query < params.queries) {{
        element = load_q(at);
    }}
    return element;
}}
fn key_element(key: u32, seen: u32, at: u32) -> f32 {{
    var element = 0.0;
    if (key < seen) {{
        element = load_k(at);
    }}
    return element;
}}
fn value_element(key: u32, seen: u32, at: u32) -> f32 {{
    var element = 0.0;
    if (key < seen) {{
        element = load_v(at);
    }}
    return element;
}}
fn score_of(product: f32, batch: u32, head: u32, query: u32, key: u32, sees: u32) -> f32 {{
    var score = params.hidden;
    if (key < sees) {{
        score = adjust(product, batch, head, query, key);
    }}
    return score;
}}
fn scores_of(product: F, batch: u32, head: u32, query: U, key: u32, sees: U) -> F {{
    return {scores};
}}
fn weights_of(score: F, largest: F) -> F {{
    let difference = score - largest;
    return select(exp(difference), F(), difference < F(-103.0));
}}
@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {{
    let work = workgroup_index(wid, nwg);
    if (work >= params.work) {{
        return;
    }}
    let chunk = work % params.chunks * {columns}u;
    var rest = work / params.chunks;
    let first_query = rest % params.blocks * {queries}u;
    rest = rest / params.blocks;
    let head = rest % params.heads;
    let batch = rest / params.heads;
    let group = head * params.groups / params.heads;
    let q_start = params.q_offset + batch * u32(params.q_batch) + head * u32(params.q_head);
    let k_start = params.k_offset + batch * u32(params.k_batch) + group * u32(params.k_head);
    let v_start = params.v_offset + batch * u32(params.v_batch) + group * u32(params.v_head) + chunk * u32(params.v_column);
    let columns = min({columns}u, params.value - chunk);
    // What the last query of the tile sees, any query sees at most; what the first sees, all see.
    let seen = visible(min(first_query + {queries}u, params.queries) - 1u);
    let seen_by_all = visible(first_query);
",
        columns * quads * lanes
    );
    // Writing to a string cannot fail.
    for q in 0..quads {
        let own = tile.vector("U", |_, i| format!("first_query + lane + {}u", (q * tile.width + i) * lanes));
        let sees = tile.vector("U", |c, _| format!("select(0u, visible(query{q}{c}), query{q}{c} < params.queries)"));
        let _ = writeln!(
            text,
            "    let query{q} = {own};
    let q_at{q} = q_start + query{q} * u32(params.q_row);
    let sees{q} = {sees};
    var largest{q} = F(LOWEST);
    var sum{q} = F();"
        );
    }
    // Also where no key is seen, so that zeros are written.
    let _ = writeln!(text, "    for (var first = 0u; first < max(seen, 1u); first += {keys}u) {{");
    products(&mut text, tile);
    for q in 0..quads {
        let _ = writeln!(text, "        let before{q} = largest{q};");
    }
    turn(&mut text, tile, SCORED, |i, q| {
        format!(
            "            let t{i}_{q} = scores_of(s{i}_{q}, batch, head, query{q}, first + r + {i}u, sees{q});
            largest{q} = max(largest{q}, t{i}_{q});\n"
        )
    });
    for q in 0..quads {
        let _ = writeln!(
            text,
            "        let rescale{q} = weights_of(before{q}, largest{q});\n        sum{q} *= rescale{q};"
        );
    }
    turn(&mut text, tile, WEIGHED, |i, q| {
        format!(
            "            let t{i}_{q} = weights_of(s{i}_{q}, largest{q});
            sum{q} += t{i}_{q};\n"
        )
    });
    for q in 0..quads {
        let _ = writeln!(text, "        let inverse{q} = select(F(), 1.0 / sum{q}, sum{q} != F());");
    }
    let _ = writeln!(text, "        let last = first + {keys}u >= seen;");
    if causal {
        let _ = writeln!(text, "        if (first + {keys}u <= seen_by_all) {{");
        weighted_values(&mut text, tile, false);
        text.push_str("        } else {\n");
        weighted_values(&mut text, tile, true);
        text.push_str("        }\n");
    } else {
        weighted_values(&mut text, tile, false);
    }
    text.push_str("    }\n}\nfn store(query: U, head: u32, column: u32, v: F) {\n");
    for c in tile.suffixes() {
        let at = format!("(head * params.queries + query{c}) * params.value + column");
        let _ = writeln!(text, "    if (query{c} < params.queries) {{ store_y({at}, v{c}); }}");
    }
    text.push_str("}\n");
    text
}

/// Products of queries and keys, into `s…`.
fn products(text: &mut String, tile: &Tile) {
    let &Tile { lanes, quads, keys, .. } = tile;
    for (r, q) in pairs(keys, quads) {
        let _ = writeln!(text, "        var s{r}_{q} = F();");
    }
    text.push_str("        for (var d = 0u; d < params.qk; d++) {\n");
    for q in 0..quads {
        let read = tile.vector("F", |c, _| format!("query_element(query{q}{c}, at{q}{c})"));
        let _ = writeln!(
            text,
            "            let at{q} = q_at{q} + d * u32(params.q_column);\n            let q{q} = {read};"
        );
    }
    text.push_str("            let at = k_start + (first + lane) * u32(params.k_row) + d * u32(params.k_column);\n");
    for share in 0..keys / lanes {
        let ahead = share * lanes;
        let _ = writeln!(
            text,
            "            let k{share} = key_element(first + lane + {ahead}u, seen, at + {ahead}u * u32(params.k_row));"
        );
    }
    for r in 0..keys {
        let _ = writeln!(text, "            let b{r} = subgroupBroadcast(k{}, {}u);", r / lanes, r % lanes);
        for q in 0..quads {
            let _ = writeln!(text, "            s{r}_{q} += b{r} * q{q};");
        }
    }
    text.push_str("        }\n");
}

/// A loop that changes all scores, `count` keys at a time: `change` makes `t…` of the first of the `s…`, which move up; the `t…` go to the end.
/// So they come around, in order, and the driver compiles `count` changes only.
fn turn(text: &mut String, tile: &Tile, count: usize, change: impl Fn(usize, usize) -> String) {
    let &Tile { quads, keys, .. } = tile;
    let _ = writeln!(text, "        for (var r = 0u; r < {keys}u; r += {count}u) {{");
    for (i, q) in pairs(count, quads) {
        text.push_str(&change(i, q));
    }
    for (r, q) in pairs(keys - count, quads) {
        let _ = writeln!(text, "            s{r}_{q} = s{}_{q};", r + count);
    }
    for (i, q) in pairs(count, quads) {
        let _ = writeln!(text, "            s{}_{q} = t{i}_{q};", keys - count + i);
    }
    text.push_str("        }\n");
}

/// Adds up the values of the tile's keys by weight, column by column. If `guarded`, a key that some query may not see adds nothing to it, not
/// even a NaN.
fn weighted_values(text: &mut String, tile: &Tile, guarded: bool) {
    let &Tile { lanes, quads, keys, .. } = tile;
    text.push_str(
        "        for (var column = 0u; column < columns; column++) {
            let at = v_start + (first + lane) * u32(params.v_row) + column * u32(params.v_column);\n",
    );
    for share in 0..keys / lanes {
        let ahead = share * lanes;
        let _ = writeln!(
            text,
            "            let v{share} = value_element(first + lane + {ahead}u, seen, at + {ahead}u * u32(params.v_row));"
        );
    }
    for q in 0..quads {
        let _ = writeln!(
            text,
            "            let sum_at{q} = (column * {quads}u + {q}u) * {lanes}u + lane;
            var t{q} = F();
            if (first > 0u) {{
                t{q} = sums[sum_at{q}] * rescale{q};
            }}"
        );
    }
    for r in 0..keys {
        let _ = writeln!(text, "            let b{r} = subgroupBroadcast(v{}, {}u);", r / lanes, r % lanes);
        for q in 0..quads {
            let product = format!("b{r} * s{r}_{q}");
            let _ = match guarded {
                true => writeln!(text, "            t{q} += select({product}, F(), s{r}_{q} == F());"),
                false => writeln!(text, "            t{q} += {product};"),
            };
        }
    }
    text.push_str("            if (last) {\n");
    for q in 0..quads {
        let _ = writeln!(
            text,
            "                store(query{q}, batch * params.heads + head, chunk + column, t{q} * inverse{q});"
        );
    }
    text.push_str("            } else {\n");
    for q in 0..quads {
        let _ = writeln!(text, "                sums[sum_at{q}] = t{q};");
    }
    text.push_str("            }\n        }\n");
}

/// All `(r, q)` with `r < rows` and `q < quads`.
fn pairs(rows: usize, quads: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |r| (0..quads).map(move |q| (r, q)))
}
