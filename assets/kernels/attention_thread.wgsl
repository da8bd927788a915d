// Attention without barriers, for software adapters. A thread processes one query and COLUMNS columns of the values,
// and visits the keys four at a time.

fn run(work: u32) {
    // Neighbouring threads process queries of the same head, so they read the same keys at the same time.
    let chunks = work / params.blocks;
    let place = place_at(chunks % params.chunks, work % params.blocks, chunks / params.chunks);
    let query = place.query;
    let q_start = place.q + query * u32(params.q_row);
    let columns = min(COLUMNS, params.value - place.column);

    var total: array<f32, COLUMNS>;
    var largest = LOWEST;
    var sum = 0.0;
    let seen = visible(query);
    for (var first = 0u; first < seen; first += 4u) {
        // Keys past the last one repeat it and are hidden.
        let key = min(first + vec4(0u, 1u, 2u, 3u), vec4(seen - 1u));
        let k_at = place.k + key * u32(params.k_row);
        var products = vec4(0.0);
        for (var d = 0u; d < params.qk; d++) {
            let at = k_at + d * u32(params.k_column);
            let keys = vec4(load_k(at.x), load_k(at.y), load_k(at.z), load_k(at.w));
            products += load_q(q_start + d * u32(params.q_column)) * keys;
        }
        var score = vec4(
            adjust(products.x, place.batch, place.head, query, key.x),
            adjust(products.y, place.batch, place.head, query, key.y),
            adjust(products.z, place.batch, place.head, query, key.z),
            adjust(products.w, place.batch, place.head, query, key.w),
        );
        score = select(vec4(params.hidden), score, first + vec4(0u, 1u, 2u, 3u) < vec4(seen));
        let before = largest;
        largest = max(max(max(score.x, score.y), max(score.z, score.w)), before);
        let scale = weigh(before, largest);
        let weights = vec4(
            weigh(score.x, largest),
            weigh(score.y, largest),
            weigh(score.z, largest),
            weigh(score.w, largest),
        );
        sum = sum * scale + weights.x + weights.y + weights.z + weights.w;
        let v_at = place.v + place.column * u32(params.v_column) + key * u32(params.v_row);
        for (var c = 0u; c < columns; c++) {
            let at = v_at + c * u32(params.v_column);
            let values = vec4(load_v(at.x), load_v(at.y), load_v(at.z), load_v(at.w));
            total[c] = total[c] * scale + dot(weights, values);
        }
    }

    let inverse = select(0.0, 1.0 / sum, sum != 0.0);
    let row = ((place.batch * params.heads + place.head) * params.queries + query) * params.value + place.column;
    for (var c = 0u; c < columns; c++) {
        store_y(row + c, total[c] * inverse);
    }
}
