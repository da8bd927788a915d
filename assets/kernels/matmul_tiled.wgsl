// Each workgroup makes a 64 x 64 tile of y from 16-deep tiles of a and b in workgroup memory, 4 x 4 elements a thread.
// A_FAST and B_FAST are 1 where neighbours along k (a) or along n (b) are neighbours in memory; threads load along that direction.

const TILE: u32 = 64u;
const DEPTH: u32 = 16u;
// One vec4 more than the tile, against bank conflicts of the transposed store.
const PITCH: u32 = 68u;

var<workgroup> tile_a: array<T, 1088>;
var<workgroup> tile_b: array<T, 1088>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let tiles_n = (params.n + TILE - 1u) / TILE;
    let tiles_m = (params.m + TILE - 1u) / TILE;
    let group = workgroup_index(wid, nwg);
    if (group >= params.batches * tiles_m * tiles_n) {
        return;
    }
    let batch = group / (tiles_m * tiles_n);
    let row0 = (group / tiles_n) % tiles_m * TILE;
    let col0 = group % tiles_n * TILE;
    let base = batch_offset(batch);

    let ty = lid / 16u * 4u;
    let tx = lid % 16u * 4u;
    var acc0 = vec4<T>();
    var acc1 = vec4<T>();
    var acc2 = vec4<T>();
    var acc3 = vec4<T>();
    for (var k0 = 0u; k0 < params.k; k0 += DEPTH) {
        for (var s = lid; s < TILE * DEPTH; s += 256u) {
            let ak = select(s / TILE, s % DEPTH, A_FAST == 1u);
            let ai = select(s % TILE, s / DEPTH, A_FAST == 1u);
            var a = T();
            var b = T();
            if (row0 + ai < params.m && k0 + ak < params.k) {
                a = load_a(base.x + (row0 + ai) * params.a_row + (k0 + ak) * params.a_col);
            }
            tile_a[ak * PITCH + ai] = a;
            let bk = select(s % DEPTH, s / TILE, B_FAST == 1u);
            let bj = select(s / DEPTH, s % TILE, B_FAST == 1u);
            if (col0 + bj < params.n && k0 + bk < params.k) {
                b = load_b(base.y + (k0 + bk) * params.b_row + (col0 + bj) * params.b_col);
            }
            tile_b[bk * PITCH + bj] = b;
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            let p = k * PITCH + ty;
            let q = k * PITCH + tx;
            let b = vec4<T>(tile_b[q], tile_b[q + 1u], tile_b[q + 2u], tile_b[q + 3u]);
            // What lies beyond the end is 0 in both, which adds nothing.
            acc0 = combine(acc0, vec4<T>(tile_a[p]), b);
            acc1 = combine(acc1, vec4<T>(tile_a[p + 1u]), b);
            acc2 = combine(acc2, vec4<T>(tile_a[p + 2u]), b);
            acc3 = combine(acc3, vec4<T>(tile_a[p + 3u]), b);
        }
        workgroupBarrier();
    }
    let acc = array<vec4<T>, 4>(acc0, acc1, acc2, acc3);
    for (var i = 0u; i < 4u; i++) {
        let row = row0 + ty + i;
        if (row < params.m) {
            let at = (batch * params.m + row) * params.n + col0 + tx;
            let left = params.n - min(params.n, col0 + tx);
            let v = acc[i];
            if (left > 0u) { store_y(at, v.x); }
            if (left > 1u) { store_y(at + 1u, v.y); }
            if (left > 2u) { store_y(at + 2u, v.z); }
            if (left > 3u) { store_y(at + 3u, v.w); }
        }
    }
}
