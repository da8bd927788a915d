// A workgroup processes 16 quads of columns in 16 slices each. The slices are merged in a fixed order.
const SLICES: u32 = 16u;

var<workgroup> folded: array<Four, 256>;

// The state of one slice of the quad.
fn slice_of(quad: u32, slice: u32) -> Four {
    let base = base_of(quad);
    // The first row is the initial value, so no neutral element is needed. A slice without rows computes a state that
    // is not used.
    var own = found(base, min(slice, params.n - 1u));
    var p = slice + SLICES;
    // Four at a time, as a tree: independent loads, and sums with smaller rounding errors.
    for (; p + 3u * SLICES < params.n; p += 4u * SLICES) {
        let low = merge4(found(base, p), found(base, p + SLICES));
        let high = merge4(found(base, p + 2u * SLICES), found(base, p + 3u * SLICES));
        own = merge4(own, merge4(low, high));
    }
    for (; p < params.n; p += SLICES) {
        own = merge4(own, found(base, p));
    }
    return own;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let quad = workgroup_index(wid, nwg) * 16u + lid % 16u;
    let slice = lid / 16u;
    // Quads past the end repeat the last one and are not stored.
    folded[lid] = slice_of(min(quad, params.quads - 1u), slice);
    for (var half = 8u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (slice < half && slice + half < params.n) {
            folded[lid] = merge4(folded[lid], folded[lid + half * 16u]);
        }
    }
    if (slice == 0u && quad < params.quads) {
        put(quad, folded[lid]);
    }
}
