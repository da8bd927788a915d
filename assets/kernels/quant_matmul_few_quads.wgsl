// Few rows (ROWS, at most 4) times many columns of blocks that are decoded four elements at a time. A workgroup computes
// COLS columns. The elements of each are split over SLICES threads, whose sums are merged in a fixed order. Neighbouring
// threads process neighbouring elements.

var<workgroup> partial: array<vec4<f32>, COLS * SLICES>;

fn quad_x(i: u32) -> vec4<f32> {
    return vec4<f32>(load_x(i), load_x(i + 1u), load_x(i + 2u), load_x(i + 3u));
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
        for (var k = slice * 4u; k < params.k; k += SLICES * 4u) {
            let w = quad(column, k);
            let at = params.x_offset + k;
            sum.x += dot(w, quad_x(at));
            if (ROWS > 1u) { sum.y += dot(w, quad_x(at + params.k)); }
            if (ROWS > 2u) { sum.z += dot(w, quad_x(at + 2u * params.k)); }
            if (ROWS > 3u) { sum.w += dot(w, quad_x(at + 3u * params.k)); }
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
