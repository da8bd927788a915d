// Each workgroup computes a 64 x 64 tile of y from tiles of depth 16 of x and of dequantised weights in workgroup
// memory, with 4 x 4 elements per thread. A thread dequantises four neighbouring elements of a weight row at a time.

const TILE: u32 = 64u;
const DEPTH: u32 = 16u;
// One vec4 of padding, to avoid bank conflicts of the transposed store.
const PITCH: u32 = 68u;

var<workgroup> tile_x: array<f32, 1088>;
var<workgroup> tile_w: array<f32, 1088>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let tiles_n = (params.n + TILE - 1u) / TILE;
    let tiles_m = (params.m + TILE - 1u) / TILE;
    let group = workgroup_index(wid, nwg);
    if (group >= tiles_m * tiles_n) {
        return;
    }
    let row0 = group / tiles_n * TILE;
    let col0 = group % tiles_n * TILE;
    let ty = lid / 16u * 4u;
    let tx = lid % 16u * 4u;
    let own_col = lid / 4u;
    let own_k = lid % 4u * 4u;
    var acc0 = vec4<f32>();
    var acc1 = vec4<f32>();
    var acc2 = vec4<f32>();
    var acc3 = vec4<f32>();
    for (var k0 = 0u; k0 < params.k; k0 += DEPTH) {
        for (var s = lid; s < TILE * DEPTH; s += 256u) {
            let row = row0 + s / DEPTH;
            let k = k0 + s % DEPTH;
            var v = 0.0;
            if (row < params.m && k < params.k) {
                v = load_x(params.x_offset + row * params.k + k);
            }
            tile_x[s % DEPTH * PITCH + s / DEPTH] = v;
        }
        var w = vec4<f32>();
        if (col0 + own_col < params.n && k0 + own_k < params.k) {
            w = quad(col0 + own_col, k0 + own_k);
        }
        tile_w[own_k * PITCH + own_col] = w.x;
        tile_w[(own_k + 1u) * PITCH + own_col] = w.y;
        tile_w[(own_k + 2u) * PITCH + own_col] = w.z;
        tile_w[(own_k + 3u) * PITCH + own_col] = w.w;
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            let p = k * PITCH + ty;
            let q = k * PITCH + tx;
            let b = vec4<f32>(tile_w[q], tile_w[q + 1u], tile_w[q + 2u], tile_w[q + 3u]);
            // Elements past the end are 0 in both tiles and add nothing.
            acc0 += tile_x[p] * b;
            acc1 += tile_x[p + 1u] * b;
            acc2 += tile_x[p + 2u] * b;
            acc3 += tile_x[p + 3u] * b;
        }
        workgroupBarrier();
    }
    let acc = array<vec4<f32>, 4>(acc0, acc1, acc2, acc3);
    for (var i = 0u; i < 4u; i++) {
        let row = row0 + ty + i;
        if (row < params.m) {
            let at = row * params.n + col0 + tx;
            let left = params.n - min(params.n, col0 + tx);
            let v = acc[i];
            if (left > 0u) { store_y(at, v.x); }
            if (left > 1u) { store_y(at + 1u, v.y); }
            if (left > 2u) { store_y(at + 2u, v.z); }
            if (left > 3u) { store_y(at + 3u, v.w); }
        }
    }
}
