// Softmax over the middle axis of [outer, n, inner]. Row `r` has the n elements at [r / inner, .., r % inner]. LOG is 1
// for log-softmax. x is read twice: once for the maximum and the sum together, once for the result.

// The largest element and the sum of all exponentials relative to it. Initially -inf and 0.
struct S {
    top: f32,
    sum: f32,
}

// The exponential of v relative to that of the maximum. The maximum itself is handled separately, because it may be
// infinite.
fn share(v: f32, top: f32) -> f32 {
    return select(exp_f32(v - top), 1.0, v == top);
}

fn merge(a: S, b: S) -> S {
    let top = max_f32(a.top, b.top);
    return S(top, a.sum * share(a.top, top) + b.sum * share(b.top, top));
}

fn run(row: u32, lane: u32) {
    let y_at = row / params.inner * params.n * params.inner + row % params.inner;
    let x_at = params.x_offset + y_at;
    let whole = params.n - params.n % 4u;
    var own = S(from_bits(0xff800000u), 0.0);
    for (var p = lane * 4u; p < whole; p += STEP * 4u) {
        let v = chunk(x_at, p);
        let top = max_f32(own.top, max_f32(max_f32(v.x, v.y), max_f32(v.z, v.w)));
        let sum = share(v.x, top) + share(v.y, top) + (share(v.z, top) + share(v.w, top));
        own = S(top, own.sum * share(own.top, top) + sum);
    }
    for (var p = whole + lane; p < params.n; p += STEP) {
        own = merge(own, S(load_x(x_at + p * params.inner), 1.0));
    }
    let all = fold(lane, own);
    // A row that is entirely -inf, or contains +inf, has no softmax.
    let sum = select(all.sum, from_bits(0x7fc00000u), is_inf(all.top));
    let scale = select(1.0 / sum, log_f32(sum), LOG == 1u);
    for (var p = lane * 4u; p < whole; p += STEP * 4u) {
        let v = chunk(x_at, p);
        put_chunk(
            y_at,
            p,
            vec4<f32>(
                result(v.x, all.top, scale),
                result(v.y, all.top, scale),
                result(v.z, all.top, scale),
                result(v.w, all.top, scale),
            ),
        );
    }
    for (var p = whole + lane; p < params.n; p += STEP) {
        store_y(y_at + p * params.inner, result(load_x(x_at + p * params.inner), all.top, scale));
    }
}

fn result(v: f32, top: f32, scale: f32) -> f32 {
    if (LOG == 1u) {
        return v - top - scale;
    }
    return share(v, top) * scale;
}
