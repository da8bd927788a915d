// Attention for many queries: a workgroup takes 32 queries of a head and 64 columns of the values, and walks the keys 32 at a time. Scores
// never leave workgroup memory: the softmax is kept up to date as keys pass (running maximum and sum), and the sums so far are rescaled.

const QUERIES: u32 = 32u;
const KEYS: u32 = 32u;
const DEPTH: u32 = 16u;
const COLUMNS: u32 = 64u;

/// 16 of the query and key columns at a time; a row is one longer than its data, so that columns fall in different banks.
var<workgroup> query_tile: array<f32, 544>;
var<workgroup> key_tile: array<f32, 544>;
/// Scores of 32 queries by 32 keys, then their exponentials.
var<workgroup> scores: array<f32, 1056>;
/// 16 keys by 64 columns.
var<workgroup> value_tile: array<f32, 1024>;
/// Of each query: the largest score so far, the sum of exponentials, and what to rescale older sums by.
var<workgroup> maxima: array<f32, 32>;
var<workgroup> sums: array<f32, 32>;
var<workgroup> rescale: array<f32, 32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let work = workgroup_index(wid, nwg);
    if work >= params.work {
        return;
    }
    let chunk = work % params.chunks * COLUMNS;
    var rest = work / params.chunks;
    let first_query = rest % params.blocks * QUERIES;
    rest = rest / params.blocks;
    let head = rest % params.heads;
    let batch = rest / params.heads;
    let group = head * params.groups / params.heads;
    let q_start = params.q_offset + batch * u32(params.q_batch) + head * u32(params.q_head);
    let k_start = params.k_offset + batch * u32(params.k_batch) + group * u32(params.k_head);
    let v_start = params.v_offset + batch * u32(params.v_batch) + group * u32(params.v_head);

    // A thread has four queries in a row, and of keys and columns every eighth.
    let own_query = lane / 8u * 4u;
    let own_column = lane % 8u;
    var total: array<array<vec4<f32>, 2>, 4>;
    if lane < QUERIES {
        maxima[lane] = LOWEST;
        sums[lane] = 0.0;
    }

    // What the last query of the block sees, any query sees at most; what the first sees, all see.
    let seen = visible(min(first_query + QUERIES, params.queries) - 1u);
    let seen_by_all = visible(first_query);
    for (var first_key = 0u; first_key < seen; first_key += KEYS) {
        // Set by hand: naga does not reset a variable declared in a loop without a value.
        var score = array<vec4<f32>, 4>();
        for (var depth = 0u; depth < params.qk; depth += DEPTH) {
            workgroupBarrier();
            for (var i = lane; i < QUERIES * DEPTH; i += 64u) {
                let row = i / DEPTH;
                let d = depth + i % DEPTH;
                var q_value = 0.0;
                var k_value = 0.0;
                if d < params.qk {
                    if first_query + row < params.queries {
                        q_value = load_q(q_start + (first_query + row) * u32(params.q_row) + d * u32(params.q_column));
                    }
                    if first_key + row < seen {
                        k_value = load_k(k_start + (first_key + row) * u32(params.k_row) + d * u32(params.k_column));
                    }
                }
                query_tile[row * 17u + i % DEPTH] = q_value;
                key_tile[row * 17u + i % DEPTH] = k_value;
            }
            workgroupBarrier();
            for (var d = 0u; d < DEPTH; d++) {
                let at = own_column * 17u + d;
                let keys = vec4(key_tile[at], key_tile[at + 136u], key_tile[at + 272u], key_tile[at + 408u]);
                let row = own_query * 17u + d;
                score[0] += query_tile[row] * keys;
                score[1] += query_tile[row + 17u] * keys;
                score[2] += query_tile[row + 34u] * keys;
                score[3] += query_tile[row + 51u] * keys;
            }
        }
        for (var i = 0u; i < 4u; i++) {
            let query = first_query + own_query + i;
            let sees = visible(query);
            for (var j = 0u; j < 4u; j++) {
                let column = own_column + 8u * j;
                let key = first_key + column;
                var value = params.hidden;
                if query < params.queries && key < sees {
                    value = adjust(score[i][j], batch, head, query, key);
                }
                scores[(own_query + i) * 33u + column] = value;
            }
        }
        workgroupBarrier();
        if lane < QUERIES {
            let row = lane * 33u;
            let before = maxima[lane];
            var largest = before;
            for (var j = 0u; j < KEYS; j++) {
                largest = max(largest, scores[row + j]);
            }
            var sum = 0.0;
            for (var j = 0u; j < KEYS; j++) {
                let e = weigh(scores[row + j], largest);
                scores[row + j] = e;
                sum += e;
            }
            let scale = weigh(before, largest);
            maxima[lane] = largest;
            sums[lane] = sums[lane] * scale + sum;
            rescale[lane] = scale;
        }
        workgroupBarrier();
        for (var i = 0u; i < 4u; i++) {
            let scale = rescale[own_query + i];
            total[i][0] *= scale;
            total[i][1] *= scale;
        }
        for (var half = 0u; half < KEYS; half += 16u) {
            for (var i = lane; i < 16u * COLUMNS; i += 64u) {
                let key = first_key + half + i / COLUMNS;
                let column = chunk + i % COLUMNS;
                var value = 0.0;
                if key < seen && column < params.value {
                    value = load_v(v_start + key * u32(params.v_row) + column * u32(params.v_column));
                }
                value_tile[i] = value;
            }
            workgroupBarrier();
            for (var j = 0u; j < 16u; j++) {
                let at = j * COLUMNS + own_column;
                let low = vec4(value_tile[at], value_tile[at + 8u], value_tile[at + 16u], value_tile[at + 24u]);
                let high = vec4(value_tile[at + 32u], value_tile[at + 40u], value_tile[at + 48u], value_tile[at + 56u]);
                for (var i = 0u; i < 4u; i++) {
                    let e = scores[(own_query + i) * 33u + half + j];
                    // A key some query may not see adds nothing to it, not even a NaN.
                    if first_key + KEYS <= seen_by_all || e != 0.0 {
                        total[i][0] += e * low;
                        total[i][1] += e * high;
                    }
                }
            }
            workgroupBarrier();
        }
    }
    workgroupBarrier();

    for (var i = 0u; i < 4u; i++) {
        let query = first_query + own_query + i;
        if query < params.queries {
            let sum = sums[own_query + i];
            let inverse = select(0.0, 1.0 / sum, sum != 0.0);
            let row = ((batch * params.heads + head) * params.queries + query) * params.value;
            for (var j = 0u; j < 8u; j++) {
                let column = chunk + own_column + 8u * j;
                if column < params.value {
                    store_y(row + column, total[i][j / 4u][j % 4u] * inverse);
                }
            }
        }
    }
}
