// Over the middle of [outer, n, inner]; row `r` is the n elements at [r / inner, .., r % inner]. LOG is 1 for the logarithm of the result.

// The largest element and the sum of all exponentials relative to it.
struct S {
    top: f32,
    sum: f32,
}

fn merge(a: S, b: S) -> S {
    let top = max_f32(a.top, b.top);
    // Equal tops need no factor, and infinite ones would give no number.
    let fa = select(exp_f32(a.top - top), 1.0, a.top == top);
    let fb = select(exp_f32(b.top - top), 1.0, b.top == top);
    return S(top, a.sum * fa + b.sum * fb);
}

fn run(row: u32, lane: u32) {
    let base = row / params.inner * params.n * params.inner + row % params.inner;
    let x_at = params.x_offset + base;
    let y_at = params.y_offset + base;
    var own = S(load_x(x_at + min(lane, params.n - 1u) * params.inner), 0.0);
    for (var p = lane + STEP; p < params.n; p += STEP) {
        own.top = max_f32(own.top, load_x(x_at + p * params.inner));
    }
    for (var p = lane; p < params.n; p += STEP) {
        let v = load_x(x_at + p * params.inner);
        // Spelled out for the top itself: a lane that saw only -inf has a share all the same, which the row's top makes 0.
        let e = select(exp_f32(v - own.top), 1.0, v == own.top);
        own.sum += e;
        if (LOG == 0u) {
            y[y_at + p * params.inner] = e;
        }
    }
    let all = fold(lane, own, min(params.n, STEP));
    // A row of nothing but -inf, or with +inf in it, is no distribution.
    let sum = select(all.sum, from_bits(0x7fc00000u), is_inf(all.top));
    if (LOG == 1u) {
        let log_sum = log_f32(sum);
        for (var p = lane; p < params.n; p += STEP) {
            let d = load_x(x_at + p * params.inner) - all.top;
            y[y_at + p * params.inner] = d - log_sum;
        }
    } else {
        // From the lane's own top to the row's; each lane rescales what it wrote itself.
        let scale = select(exp_f32(own.top - all.top), 1.0, own.top == all.top) / sum;
        for (var p = lane; p < params.n; p += STEP) {
            y[y_at + p * params.inner] *= scale;
        }
    }
}
