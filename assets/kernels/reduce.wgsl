// Row `r` of [outer, n, inner] is the n elements at [r / inner, .., r % inner]. The state S, `start`, `merge` and `result` say what is found.

fn found(base: u32, p: u32) -> S {
    return start(load_x(base + p * params.inner), p);
}

fn run(row: u32, lane: u32) {
    let base = params.x_offset + row / params.inner * params.n * params.inner + row % params.inner;
    // The first element is the initial value, so nothing needs a neutral one. A lane that has no element takes one that nobody asks for.
    var own = found(base, min(lane, params.n - 1u));
    var p = lane + STEP;
    // Four at a time, as a tree: independent loads, and sums that lose less.
    for (; p + 3u * STEP < params.n; p += 4u * STEP) {
        let low = merge(found(base, p), found(base, p + STEP));
        let high = merge(found(base, p + 2u * STEP), found(base, p + 3u * STEP));
        own = merge(own, merge(low, high));
    }
    for (; p < params.n; p += STEP) {
        own = merge(own, found(base, p));
    }
    let all = fold(lane, own, min(params.n, STEP));
    if (lane == 0u) {
        store_y(row, result(all));
    }
}
