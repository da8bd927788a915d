// Row `r` of [outer, n, inner] is the n elements at [r / inner, .., r % inner]. The state S, `start`, `merge` and `result` say what is found.

fn found(row: u32, p: u32) -> S {
    let at = (row / params.inner * params.n + p) * params.inner + row % params.inner;
    return start(load_x(params.x_offset + at), p);
}

fn run(row: u32, lane: u32) {
    // The first element is the initial value, so nothing needs a neutral one. A lane that has no element takes one that nobody asks for.
    var own = found(row, min(lane, params.n - 1u));
    var p = lane + STEP;
    // Four at a time, as a tree: independent loads, and sums that lose less.
    for (; p + 3u * STEP < params.n; p += 4u * STEP) {
        let low = merge(found(row, p), found(row, p + STEP));
        let high = merge(found(row, p + 2u * STEP), found(row, p + 3u * STEP));
        own = merge(own, merge(low, high));
    }
    for (; p < params.n; p += STEP) {
        own = merge(own, found(row, p));
    }
    let all = fold(lane, own, min(params.n, STEP));
    if (lane == 0u) {
        y[params.y_offset + row] = result(all);
    }
}
