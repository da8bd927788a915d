// Attention for many queries. A workgroup processes QUERIES (32) queries of a head and COLUMNS (64) columns of the
// values, and visits the keys 32 at a time. Scores stay in workgroup memory. The softmax is updated incrementally
// (running maximum and sum), and the sums so far are rescaled. Vectors hold four neighbouring queries, keys or columns.

const KEYS: u32 = 32u;
const DEPTH: u32 = 16u;
// Vectors between rows of 32 elements, with one vector of padding to avoid bank conflicts.
const PITCH: u32 = 9u;

/// 16 elements of the queries and of the keys, by element.
var<workgroup> query_tile: array<vec4<f32>, 144>;
var<workgroup> key_tile: array<vec4<f32>, 144>;
/// Scores of the queries, then their exponentials, by key.
var<workgroup> scores: array<vec4<f32>, 288>;
/// 16 rows of columns, by key.
var<workgroup> value_tile: array<vec4<f32>, 256>;
/// For each query: the largest score so far, the sum of exponentials, and the factor that rescales older sums.
var<workgroup> maxima: array<vec4<f32>, 8>;
var<workgroup> sums: array<vec4<f32>, 8>;
var<workgroup> rescale: array<vec4<f32>, 8>;

fn run(work: u32, lane: u32) {
    let place = place_of(work);
    let first_query = place.query;

    // A thread processes four queries, four keys, and eight columns in two quads that lie half a chunk apart.
    let ty = lane / 8u;
    let tx = lane % 8u;
    var total: array<array<vec4<f32>, 2>, 4>;
    if lane < QUERIES {
        maxima[lane / 4u][lane % 4u] = LOWEST;
        sums[lane / 4u][lane % 4u] = 0.0;
    }

    // No query of the block sees more keys than its last one, and all see the keys that its first one sees.
    let seen = visible(min(first_query + QUERIES, params.queries) - 1u);
    let seen_by_all = visible(first_query);
    for (var first_key = 0u; first_key < seen; first_key += KEYS) {
        // For the four queries, by key. Initialised explicitly, because naga does not reset a variable that is declared
        // in a loop without a value.
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
                        q_value = load_q(place.q + (first_query + row) * u32(params.q_row) + d * u32(params.q_column));
                    }
                    if first_key + row < seen {
                        k_value = load_k(place.k + (first_key + row) * u32(params.k_row) + d * u32(params.k_column));
                    }
                }
                query_tile[i % DEPTH * PITCH + row / 4u][row % 4u] = q_value;
                key_tile[i % DEPTH * PITCH + row / 4u][row % 4u] = k_value;
            }
            workgroupBarrier();
            for (var d = 0u; d < DEPTH; d++) {
                let queries = query_tile[d * PITCH + ty];
                let keys = key_tile[d * PITCH + tx];
                score[0] += keys.x * queries;
                score[1] += keys.y * queries;
                score[2] += keys.z * queries;
                score[3] += keys.w * queries;
            }
        }
        for (var j = 0u; j < 4u; j++) {
            let key = first_key + tx * 4u + j;
            var values = vec4(params.hidden);
            for (var i = 0u; i < 4u; i++) {
                let query = first_query + ty * 4u + i;
                if query < params.queries && key < visible(query) {
                    values[i] = adjust(score[j][i], place.batch, place.head, query, key);
                }
            }
            scores[(tx * 4u + j) * PITCH + ty] = values;
        }
        workgroupBarrier();
        if lane < QUERIES {
            let at = lane / 4u;
            let member = lane % 4u;
            let before = maxima[at][member];
            var largest = before;
            for (var j = 0u; j < KEYS; j++) {
                largest = max(largest, scores[j * PITCH + at][member]);
            }
            var sum = 0.0;
            for (var j = 0u; j < KEYS; j++) {
                let e = weigh(scores[j * PITCH + at][member], largest);
                scores[j * PITCH + at][member] = e;
                sum += e;
            }
            let scale = weigh(before, largest);
            maxima[at][member] = largest;
            sums[at][member] = sums[at][member] * scale + sum;
            rescale[at][member] = scale;
        }
        workgroupBarrier();
        let scale = rescale[ty];
        for (var i = 0u; i < 4u; i++) {
            total[i][0] *= scale[i];
            total[i][1] *= scale[i];
        }
        for (var half = 0u; half < KEYS; half += 16u) {
            for (var i = lane; i < 16u * COLUMNS; i += 64u) {
                let key = first_key + half + i / COLUMNS;
                let column = place.column + i % COLUMNS;
                var value = 0.0;
                if key < seen && column < params.value {
                    value = load_v(place.v + key * u32(params.v_row) + column * u32(params.v_column));
                }
                value_tile[i / 4u][i % 4u] = value;
            }
            workgroupBarrier();
            for (var j = 0u; j < 16u; j++) {
                let low = value_tile[j * (COLUMNS / 4u) + tx];
                let high = value_tile[j * (COLUMNS / 4u) + tx + 8u];
                let weights = scores[(half + j) * PITCH + ty];
                for (var i = 0u; i < 4u; i++) {
                    // A key that a query must not see adds nothing to it, not even a NaN.
                    if first_key + KEYS <= seen_by_all || weights[i] != 0.0 {
                        total[i][0] += weights[i] * low;
                        total[i][1] += weights[i] * high;
                    }
                }
            }
            workgroupBarrier();
        }
    }
    workgroupBarrier();

    for (var i = 0u; i < 4u; i++) {
        let query = first_query + ty * 4u + i;
        if query < params.queries {
            let sum = sums[ty][i];
            let inverse = select(0.0, 1.0 / sum, sum != 0.0);
            let row = ((place.batch * params.heads + place.head) * params.queries + query) * params.value;
            for (var j = 0u; j < 8u; j++) {
                let column = place.column + j / 4u * 32u + tx * 4u + j % 4u;
                if column < params.value {
                    store_y(row + column, total[i][j / 4u][j % 4u] * inverse);
                }
            }
        }
    }
}
