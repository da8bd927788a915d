// Few rows (ROWS, at most 4) times many quantised columns. A workgroup computes COLS columns. The words of each are
// split over SLICES threads, whose sums are merged in a fixed order. Neighbouring threads process neighbouring words.

var<workgroup> partial: array<vec4<f32>, COLS * SLICES>;

fn quad_x(i: u32) -> vec4<f32> {
    return vec4<f32>(load_x(i), load_x(i + 1u), load_x(i + 2u), load_x(i + 3u));
}

// The product of the elements in `word` with those of row `row` at `k`, before scaling.
fn product(row: u32, k: u32, word: u32) -> f32 {
    let at = params.x_offset + row * params.k + k;
    var sum = dot(quad0(word), quad_x(at));
    if (QUADS == 2u) { sum += dot(quad1(word), quad_x(at + BLOCK / 2u)); }
    return sum;
}

@compute @workgroup_size(COLS * SLICES)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let group = workgroup_index(wid, nwg);
    if (group * COLS >= params.n) {
        return;
    }
    let slice = lid % SLICES;
    let column = group * COLS + lid / SLICES;
    var sum = vec4<f32>();
    if (column < params.n) {
        let first = params.first_block + column * params.blocks;
        for (var i = slice; i < params.words; i += SLICES) {
            let block = i / WORDS;
            let word = weight[quants(first + block) + i % WORDS];
            let k = block * BLOCK + i % WORDS * 4u;
            var part = vec4<f32>(product(0u, k, word));
            if (ROWS > 1u) { part.y = product(1u, k, word); }
            if (ROWS > 2u) { part.z = product(2u, k, word); }
            if (ROWS > 3u) { part.w = product(3u, k, word); }
            sum += part * scale(first + block);
        }
    }
    if (SLICES > 1u) {
        partial[lid] = sum;
        for (var half = SLICES / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if (slice < half) {
                sum += partial[lid + half];
                partial[lid] = sum;
            }
        }
    }
    if (slice == 0u && column < params.n) {
        store_y(column, sum.x);
        if (ROWS > 1u) { store_y(params.n + column, sum.y); }
        if (ROWS > 2u) { store_y(2u * params.n + column, sum.z); }
        if (ROWS > 3u) { store_y(3u * params.n + column, sum.w); }
    }
}
