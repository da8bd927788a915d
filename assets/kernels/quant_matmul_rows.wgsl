// A thread computes one column for eight rows, without workgroup memory. It decodes four elements of the column at a time
// and uses them for all rows. Rows past the end repeat the last one and are not stored.

fn quad_x(i: u32) -> vec4<f32> {
    return vec4<f32>(load_x(i), load_x(i + 1u), load_x(i + 2u), load_x(i + 3u));
}

fn run(thread: u32) {
    let column = thread % params.n;
    let top = thread / params.n * 8u;
    var sums: array<f32, 8>;
    for (var k = 0u; k < params.k; k += 4u) {
        let w = quad(column, k);
        for (var r = 0u; r < 8u; r++) {
            sums[r] += dot(w, quad_x(params.x_offset + min(top + r, params.m - 1u) * params.k + k));
        }
    }
    for (var r = 0u; r < 8u && top + r < params.m; r++) {
        store_y((top + r) * params.n + column, sums[r]);
    }
}
