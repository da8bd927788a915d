// Attention for few queries, as in decoding. A workgroup processes one query of a head and visits the keys LANES at a
// time. PARTS threads share the product of a key, so that neighbouring threads read neighbouring elements. Then each
// thread scores one key, and all threads sum values: a thread processes every 64th column of the chunk and every (LANES
// / 64)th key.

const SLICES: u32 = LANES / 64u;
// Columns per thread.
const EACH: u32 = COLUMNS / 64u;
const PARTS: u32 = 8u;
// One more than the parts, to avoid bank conflicts.
const PITCH: u32 = 9u;

/// Partial products of the tile's keys.
var<workgroup> parts: array<f32, LANES * PITCH>;

/// Scores of the tile's keys, then their exponentials.
var<workgroup> scores: array<f32, LANES>;
/// For tree reductions over threads.
var<workgroup> tree: array<f32, LANES>;

fn run(work: u32, lane: u32) {
    let place = place_of(work);
    let query = place.query;
    let q_start = place.q + query * u32(params.q_row);

    var total: array<f32, EACH>;
    var largest = LOWEST;
    // Sum over the keys that this thread scored.
    var sum = 0.0;
    let seen = visible(query);
    for (var first = 0u; first < seen; first += LANES) {
        for (var j = lane / PARTS; j < min(LANES, seen - first); j += LANES / PARTS) {
            let at = place.k + (first + j) * u32(params.k_row);
            var part = 0.0;
            for (var d = lane % PARTS; d < params.qk; d += PARTS) {
                part += load_q(q_start + d * u32(params.q_column)) * load_k(at + d * u32(params.k_column));
            }
            parts[j * PITCH + lane % PARTS] = part;
        }
        workgroupBarrier();
        let key = first + lane;
        var score = params.hidden;
        if key < seen {
            var product = 0.0;
            for (var part = 0u; part < PARTS; part++) {
                product += parts[lane * PITCH + part];
            }
            score = adjust(product, place.batch, place.head, query, key);
        }
        tree[lane] = score;
        workgroupBarrier();
        for (var half = LANES / 2u; half > 0u; half /= 2u) {
            if lane < half {
                tree[lane] = max(tree[lane], tree[lane + half]);
            }
            workgroupBarrier();
        }
        let before = largest;
        largest = max(before, tree[0]);
        let scale = weigh(before, largest);
        let e = weigh(score, largest);
        sum = sum * scale + e;
        scores[lane] = e;
        workgroupBarrier();

        for (var c = 0u; c < EACH; c++) {
            total[c] *= scale;
        }
        let end = min(LANES, seen - first);
        for (var j = lane / 64u; j < end; j += SLICES) {
            let weight = scores[j];
            let at = place.v + (first + j) * u32(params.v_row);
            for (var c = 0u; c < EACH; c++) {
                let column = place.column + c * 64u + lane % 64u;
                if column < params.value {
                    total[c] += weight * load_v(at + column * u32(params.v_column));
                }
            }
        }
        workgroupBarrier();
    }

    tree[lane] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane < half {
            tree[lane] += tree[lane + half];
        }
        workgroupBarrier();
    }
    let sum_of_all = tree[0];
    let inverse = select(0.0, 1.0 / sum_of_all, sum_of_all != 0.0);
    for (var c = 0u; c < EACH; c++) {
        workgroupBarrier();
        scores[lane] = total[c];
        workgroupBarrier();
        let column = place.column + c * 64u + lane;
        if lane < 64u && column < params.value {
            var value = 0.0;
            for (var slice = 0u; slice < SLICES; slice++) {
                value += scores[slice * 64u + lane];
            }
            store_y(work / params.chunks * params.value + column, value * inverse);
        }
    }
}
