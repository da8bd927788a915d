// Attention for few queries, as in decoding: a workgroup takes one query of a head and walks the keys LANES at a time. PARTS threads share the
// product of a key, so that neighbours read neighbouring elements; then each thread scores one key, and all add up values: a thread has every
// 64th column of the chunk and, of the keys, every (LANES / 64)th.

const SLICES: u32 = LANES / 64u;
const PARTS: u32 = 8u;
// One more than the parts, against bank conflicts.
const PITCH: u32 = 9u;

/// Parts of the products of the tile's keys.
var<workgroup> parts: array<f32, LANES * PITCH>;

/// Scores of the tile's keys, then their exponentials.
var<workgroup> scores: array<f32, LANES>;
/// For trees over threads.
var<workgroup> tree: array<f32, LANES>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let work = workgroup_index(wid, nwg);
    if work >= params.work {
        return;
    }
    let chunk = work % params.chunks * (COLUMNS * 64u);
    let row = work / params.chunks;
    let query = row % params.queries;
    let head = row / params.queries % params.heads;
    let batch = row / params.queries / params.heads;
    let group = head * params.groups / params.heads;
    let q_start = params.q_offset + batch * u32(params.q_batch) + head * u32(params.q_head) + query * u32(params.q_row);
    let k_start = params.k_offset + batch * u32(params.k_batch) + group * u32(params.k_head);
    let v_start = params.v_offset + batch * u32(params.v_batch) + group * u32(params.v_head);

    var total: array<f32, COLUMNS>;
    var largest = LOWEST;
    // Of the keys this thread scored.
    var sum = 0.0;
    let seen = visible(query);
    for (var first = 0u; first < seen; first += LANES) {
        for (var j = lane / PARTS; j < min(LANES, seen - first); j += LANES / PARTS) {
            let at = k_start + (first + j) * u32(params.k_row);
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
            score = adjust(product, batch, head, query, key);
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

        for (var c = 0u; c < COLUMNS; c++) {
            total[c] *= scale;
        }
        let end = min(LANES, seen - first);
        for (var j = lane / 64u; j < end; j += SLICES) {
            let weight = scores[j];
            let at = v_start + (first + j) * u32(params.v_row);
            for (var c = 0u; c < COLUMNS; c++) {
                let column = chunk + c * 64u + lane % 64u;
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
    for (var c = 0u; c < COLUMNS; c++) {
        workgroupBarrier();
        scores[lane] = total[c];
        workgroupBarrier();
        let column = chunk + c * 64u + lane;
        if lane < 64u && column < params.value {
            var value = 0.0;
            for (var slice = 0u; slice < SLICES; slice++) {
                value += scores[slice * 64u + lane];
            }
            store_y(row * params.value + column, value * inverse);
        }
    }
}
