// Four neighbouring columns of [outer, n, inner] at a time; `inner` is a multiple of four. The state S, `start`, `merge` and `result` say
// what is found. A quad of columns is split into SLICES, each of every SLICES-th row.

struct Four {
    x: S,
    y: S,
    z: S,
    w: S,
}

fn merge4(a: Four, b: Four) -> Four {
    return Four(merge(a.x, b.x), merge(a.y, b.y), merge(a.z, b.z), merge(a.w, b.w));
}

fn found(base: u32, p: u32) -> Four {
    let v = load_x4(base + p * params.inner);
    return Four(start(v.x, p), start(v.y, p), start(v.z, p), start(v.w, p));
}

// What one slice of the quad found.
fn slice_of(quad: u32, slice: u32) -> Four {
    let quads = params.inner / 4u;
    let base = params.x_offset + quad / quads * params.n * params.inner + quad % quads * 4u;
    // The first row is the initial value, so nothing needs a neutral one. A slice that has no row takes one that nobody asks for.
    var own = found(base, min(slice, params.n - 1u));
    var p = slice + SLICES;
    // Four at a time, as a tree: independent loads, and sums that lose less.
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

fn put(quad: u32, all: Four) {
    store_y(quad * 4u, result(all.x));
    store_y(quad * 4u + 1u, result(all.y));
    store_y(quad * 4u + 2u, result(all.z));
    store_y(quad * 4u + 3u, result(all.w));
}
