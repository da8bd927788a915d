// Fills the tile of one side with SIDE_LINES lines starting at `first` and 16 steps of k starting at `k0`. Elements
// past the end are 0. A vector of the tile holds four neighbouring lines at one step of k. Each step has one vector of
// padding to avoid bank conflicts. Each of SLICES has its own tile, filled by its own 64 threads. SIDE_ALONG: 0 quads
// along k, 1 quads along the lines, 2 neighbours along k, 3 neighbours along the lines.

const SIDE_PITCH: u32 = SIDE_LINES / 4u + 1u;

var<workgroup> SIDE_tile: array<vec4<T>, SLICES * 16u * SIDE_PITCH>;

fn fill_SIDE(base: u32, first: u32, k0: u32, slice: u32, lid: u32) {
    let start = slice * 16u * SIDE_PITCH;
    if (SIDE_ALONG == 0u) {
        for (var s = lid; s < SIDE_LINES * 4u; s += 64u) {
            let line = s / 4u;
            let k = s % 4u * 4u;
            let at = base + (first + line) * params.SIDE_line + k0 + k;
            var v = vec4<T>();
            if (first + line < params.SIDE_lines) {
                if (k0 + k + 3u < params.k) {
                    v = SIDE4(at);
                } else {
                    if (k0 + k < params.k) { v.x = SIDE(at); }
                    if (k0 + k + 1u < params.k) { v.y = SIDE(at + 1u); }
                    if (k0 + k + 2u < params.k) { v.z = SIDE(at + 2u); }
                }
            }
            let to = start + k * SIDE_PITCH + line / 4u;
            SIDE_tile[to][line % 4u] = v.x;
            SIDE_tile[to + SIDE_PITCH][line % 4u] = v.y;
            SIDE_tile[to + 2u * SIDE_PITCH][line % 4u] = v.z;
            SIDE_tile[to + 3u * SIDE_PITCH][line % 4u] = v.w;
        }
    } else if (SIDE_ALONG == 1u) {
        for (var s = lid; s < SIDE_LINES * 4u; s += 64u) {
            let k = s / (SIDE_LINES / 4u);
            let four = s % (SIDE_LINES / 4u);
            var v = vec4<T>();
            if (first + four * 4u < params.SIDE_lines && k0 + k < params.k) {
                v = SIDE4(base + first + four * 4u + (k0 + k) * params.SIDE_k);
            }
            SIDE_tile[start + k * SIDE_PITCH + four] = v;
        }
    } else {
        for (var s = lid; s < SIDE_LINES * 16u; s += 64u) {
            let k = select(s / SIDE_LINES, s % 16u, SIDE_ALONG == 2u);
            let line = select(s % SIDE_LINES, s / 16u, SIDE_ALONG == 2u);
            var v = T();
            if (first + line < params.SIDE_lines && k0 + k < params.k) {
                v = SIDE(base + (first + line) * params.SIDE_line + (k0 + k) * params.SIDE_k);
            }
            SIDE_tile[start + k * SIDE_PITCH + line / 4u][line % 4u] = v;
        }
    }
}
