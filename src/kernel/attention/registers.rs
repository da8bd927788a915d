//! Attention on a software adapter: the scores of a tile of queries by a tile of keys stay in registers from the
//! products to the weights.
//!
//! On such adapters a load costs as much as a hundred multiplications, even if all lanes read the same element. A
//! workgroup is therefore one subgroup whose lanes own different queries, load different keys and values, and broadcast
//! these to each other. Between tiles of keys, the sums of weighted values are kept in workgroup memory. Each lane has
//! its own part, so no barrier is needed, and one loop handles any number of columns.

use core::fmt::Write;

use super::wgsl::place_code;
use crate::kernel::wgsl::{Builder, grid};
use crate::kernel::{AttentionKernel, Caps, Launch, Step};

/// Maximum number of bytes of workgroup memory for the sums.
const SUM_BYTES: u32 = 32768;
/// Number of keys that are turned from products to scores, and from scores to weights, at a time.
const SCORED: usize = 2;
const WEIGHED: usize = 4;
/// Suffixes that select the components of a vector.
const MEMBERS: [&str; 4] = [".x", ".y", ".z", ".w"];

/// The sizes that determine the shader.
pub(crate) struct Tile {
    lanes: usize,
    /// Component suffixes of a lane's queries: one query, or a vector of four.
    queries: &'static [&'static str],
    keys: usize,
    /// Number of value columns that fit the workgroup memory, a multiple of four.
    columns: usize,
    causal: bool,
    /// Elements of a query and of a key that are loaded at a time: one, or four neighbours.
    depth: &'static [&'static str],
    /// The same for the columns of the values.
    span: &'static [&'static str],
    /// Whether loads of four elements are always aligned to four: for q, k and v.
    aligned: [bool; 3],
}

impl Tile {
    pub(crate) fn new(step: &Step, kernel: &AttentionKernel, lanes: usize, caps: &Caps) -> Self {
        // One element at a time, or four if every row consists of whole quads.
        let by_four = |four: bool| if four { &MEMBERS[..] } else { &[""][..] };
        let rows_of_quads = |input: usize, columns: usize| {
            columns.is_multiple_of(4) && step.inputs[input].layout.strides.last() == Some(&1)
        };
        let aligned = |input: usize| {
            let layout = &step.inputs[input].layout;
            let (_, outer) = layout.strides.split_last().unwrap_or((&0, &[]));
            layout.offset.is_multiple_of(4) && outer.iter().all(|stride| stride.rem_euclid(4) == 0)
        };
        let queries = by_four(kernel.queries > lanes);
        let depth = by_four(rows_of_quads(0, kernel.qk) && rows_of_quads(1, kernel.qk));
        let span = by_four(rows_of_quads(2, kernel.value));
        // Loading four elements at a time makes the shader four times as long. Half the keys are then nearly as fast
        // and compile sooner.
        let most_keys = if depth.len() + span.len() > 2 { 32 } else { 64 };
        Self {
            lanes,
            queries,
            keys: kernel.keys.next_power_of_two().clamp(16, most_keys),
            columns: (caps.workgroup_memory.min(SUM_BYTES) as usize / (16 * lanes * queries.len())).max(1) * 4,
            causal: kernel.causal,
            depth,
            span,
            aligned: [0, 1, 2].map(aligned),
        }
    }

    /// The operands that are read four at a time, and whether they are aligned.
    pub(crate) fn quads(&self) -> Vec<(&'static str, bool)> {
        let [q, k, v] = self.aligned;
        let products = [("q", q), ("k", k)].into_iter().filter(|_| self.depth.len() == 4);
        products.chain(Some(("v", v)).filter(|_| self.span.len() == 4)).collect()
    }

    /// A value of type `F` or `U` with one component per query of a lane. `component` gets the suffix and the index of
    /// the query.
    fn each_query(&self, ty: &str, component: impl Fn(&str, usize) -> String) -> String {
        let components: Vec<String> = self.queries.iter().enumerate().map(|(i, c)| component(c, i)).collect();
        format!("{ty}({})", components.join(", "))
    }
}

pub(crate) fn lower(mut builder: Builder, kernel: &AttentionKernel, tile: &Tile, caps: &Caps) -> Launch {
    let (float, uint) = if tile.queries.len() == 1 { ("f32", "u32") } else { ("vec4<f32>", "vec4<u32>") };
    builder.alias("F", float).alias("U", uint);
    let loads = [("query", "q", tile.depth), ("key", "k", tile.depth), ("value", "v", tile.span)];
    for (name, input, members) in loads {
        let (ty, four) = if members.len() == 1 { ("f32", "") } else { ("vec4<f32>", "4") };
        builder.code(&format!(
            "fn {name}_elements(row: u32, rows: u32, at: u32) -> {ty} {{
    var elements = {ty}();
    if (row < rows) {{
        elements = load_{input}{four}(at);
    }}
    return elements;
}}"
        ));
    }
    let work = place_code(&mut builder, kernel, tile.lanes * tile.queries.len(), tile.columns);
    builder.params.size("work", work);
    builder.finish(&text(tile), grid(work, caps))
}

/// The shader body. It is fully unrolled because drivers only keep variables in registers that are never indexed: `s3`
/// holds the scores of the tile's fourth key for the lane's queries.
fn text(tile: &Tile) -> String {
    let &Tile { lanes, keys, columns, causal, .. } = tile;
    let scores = tile.each_query("F", |c, _| format!("score_of(product{c}, batch, head, query{c}, key, sees{c})"));
    let own = tile.each_query("U", |_, i| format!("first_query + lane + {}u", i * lanes));
    let sees = tile.each_query("U", |c, _| format!("select(0u, visible(query{c}), query{c} < params.queries)"));
    let mut text = format!(
        "/// The lane's sums of weighted values, by column.
var<workgroup> sums: array<F, {}>;
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
    let place = place_of(work);
    let first_query = place.query;
    let q_start = place.q;
    let k_start = place.k;
    let v_start = place.v + place.column * u32(params.v_column);
    let columns = min(COLUMNS, params.value - place.column);
    // No query of the tile sees more keys than its last one, and all see the keys that its first one sees.
    let seen = visible(min(first_query + QUERIES, params.queries) - 1u);
    let seen_by_all = visible(first_query);
    let query = {own};
    let sees = {sees};
    var largest = F(LOWEST);
    var sum = F();
    // Runs at least once, so that zeros are written if no key is visible.
    for (var first = 0u; first < max(seen, 1u); first += {keys}u) {{
",
        columns * lanes
    );
    products(&mut text, tile);
    text.push_str("        let before = largest;\n");
    turn(&mut text, keys, SCORED, |i| {
        format!(
            "            let t{i} = scores_of(s{i}, place.batch, place.head, query, first + r + {i}u, sees);
            largest = max(largest, t{i});\n"
        )
    });
    text.push_str("        let rescale = weights_of(before, largest);\n        sum *= rescale;\n");
    turn(&mut text, keys, WEIGHED, |i| {
        format!("            let t{i} = weights_of(s{i}, largest);\n            sum += t{i};\n")
    });
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "        let inverse = select(F(), 1.0 / sum, sum != F());
        let last = first + {keys}u >= seen;"
    );
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
    for c in tile.queries {
        let at = format!("(head * params.queries + query{c}) * params.value + column");
        let _ = writeln!(text, "    if (query{c} < params.queries) {{ store_y({at}, v{c}); }}");
    }
    text.push_str("}\n");
    text
}

/// Computes the products of queries and keys into `s…`.
fn products(text: &mut String, tile: &Tile) {
    let &Tile { lanes, keys, depth, .. } = tile;
    for r in 0..keys {
        let _ = writeln!(text, "        var s{r} = F();");
    }
    let _ = writeln!(text, "        for (var d = 0u; d < params.qk; d += {}u) {{", depth.len());
    text.push_str("            let q_at = q_start + query * u32(params.q_row) + d * u32(params.q_column);\n");
    for (i, c) in tile.queries.iter().enumerate() {
        let rows = format!("query{c}, params.queries");
        let _ = writeln!(text, "            let e{i} = query_elements({rows}, q_at{c});");
    }
    shared_loads(text, tile, "key", "k", "d");
    for (step, member) in depth.iter().enumerate() {
        let elements = tile.each_query("F", |_, i| format!("e{i}{member}"));
        let _ = writeln!(text, "            let q{step} = {elements};");
        for r in 0..keys {
            let key = format!("subgroupBroadcast(k{}{member}, {}u)", r / lanes, r % lanes);
            let _ = writeln!(text, "            s{r} += {key} * q{step};");
        }
    }
    text.push_str("        }\n");
}

/// Loads each lane's share of the tile's rows of keys or values into `k…` or `v…`, at the column held by the variable
/// `column`.
fn shared_loads(text: &mut String, tile: &Tile, name: &str, input: &str, column: &str) {
    let at =
        format!("{input}_start + (first + lane) * u32(params.{input}_row) + {column} * u32(params.{input}_column)");
    let _ = writeln!(text, "            let {input}_at = {at};");
    for share in 0..tile.keys / tile.lanes {
        let ahead = share * tile.lanes;
        let at = format!("{input}_at + {ahead}u * u32(params.{input}_row)");
        let _ =
            writeln!(text, "            let {input}{share} = {name}_elements(first + lane + {ahead}u, seen, {at});");
    }
}

/// A loop that updates all scores, `count` keys at a time. `change` computes `t…` from the first `s…`. The remaining
/// `s…` then move up and the `t…` go to the end, so after the loop all are back in order. The driver only compiles
/// `count` updates.
fn turn(text: &mut String, keys: usize, count: usize, change: impl Fn(usize) -> String) {
    let _ = writeln!(text, "        for (var r = 0u; r < {keys}u; r += {count}u) {{");
    for i in 0..count {
        text.push_str(&change(i));
    }
    for r in 0..keys - count {
        let _ = writeln!(text, "            s{r} = s{};", r + count);
    }
    for i in 0..count {
        let _ = writeln!(text, "            s{} = t{i};", keys - count + i);
    }
    text.push_str("        }\n");
}

/// Sums the values of the tile's keys by weight, column by column. If `guarded`, a key that a query must not see adds
/// nothing to it, not even a NaN.
fn weighted_values(text: &mut String, tile: &Tile, guarded: bool) {
    let &Tile { lanes, keys, span, .. } = tile;
    let _ = writeln!(text, "        for (var column = 0u; column < columns; column += {}u) {{", span.len());
    shared_loads(text, tile, "value", "v", "column");
    for (i, member) in span.iter().enumerate() {
        let _ = writeln!(
            text,
            "            let sum_at{i} = (column + {i}u) * {lanes}u + lane;
            var t{i} = F();
            if (first > 0u) {{
                t{i} = sums[sum_at{i}] * rescale;
            }}"
        );
        for r in 0..keys {
            let product = format!("subgroupBroadcast(v{}{member}, {}u) * s{r}", r / lanes, r % lanes);
            let _ = match guarded {
                true => writeln!(text, "            t{i} += select({product}, F(), s{r} == F());"),
                false => writeln!(text, "            t{i} += {product};"),
            };
        }
    }
    text.push_str("            if (last) {\n");
    for i in 0..span.len() {
        let at = format!("place.batch * params.heads + place.head, place.column + column + {i}u");
        let _ = writeln!(text, "                store(query, {at}, t{i} * inverse);");
    }
    text.push_str("            } else {\n");
    for i in 0..span.len() {
        let _ = writeln!(text, "                sums[sum_at{i}] = t{i};");
    }
    text.push_str("            }\n        }\n");
}
