// Row `r` of [outer, n, inner] has the n elements at [r / inner, .., r % inner]. The state S, `start`, `merge` and
// `result` define the reduction.

fn one(base: u32, p: u32) -> S {
    return start(load_x(base + p * params.inner), p);
}

// As a tree, for smaller rounding errors.
fn four(base: u32, p: u32) -> S {
    let v = chunk(base, p);
    return merge(merge(start(v.x, p), start(v.y, p + 1u)), merge(start(v.z, p + 2u), start(v.w, p + 3u)));
}

fn run(row: u32, lane: u32) {
    let base = params.x_offset + row / params.inner * params.n * params.inner + row % params.inner;
    let whole = params.n - params.n % 4u;
    // The first element is the initial value, so no neutral element is needed. A lane without elements computes a state
    // that is not used.
    var own: S;
    var p = lane * 4u;
    var left = whole + lane;
    if (p < whole) {
        own = four(base, p);
    } else {
        own = one(base, min(left, params.n - 1u));
        left += STEP;
    }
    p += STEP * 4u;
    // Two at a time, for independent loads.
    for (; p + STEP * 4u < whole; p += STEP * 8u) {
        own = merge(own, merge(four(base, p), four(base, p + STEP * 4u)));
    }
    for (; p < whole; p += STEP * 4u) {
        own = merge(own, four(base, p));
    }
    for (; left < params.n; left += STEP) {
        own = merge(own, one(base, left));
    }
    let all = fold(lane, own);
    if (lane == 0u) {
        store_y(row, result(all));
    }
}
