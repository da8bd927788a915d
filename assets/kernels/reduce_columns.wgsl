// Reduces four neighbouring columns of [outer, n, inner] at a time. `inner` is a multiple of four. The state S,
// `start`, `merge` and `result` define the reduction.

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

// Position of the first row of the quad.
fn base_of(quad: u32) -> u32 {
    let quads = params.inner / 4u;
    return params.x_offset + quad / quads * params.n * params.inner + quad % quads * 4u;
}

fn put(quad: u32, all: Four) {
    store_y(quad * 4u, result(all.x));
    store_y(quad * 4u + 1u, result(all.y));
    store_y(quad * 4u + 2u, result(all.z));
    store_y(quad * 4u + 3u, result(all.w));
}
