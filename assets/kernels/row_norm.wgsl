// Normalises each row of [rows, n], then multiplies by `weight_at(p)` and adds `bias_at(p)`. KIND: 0 layer norm, 1 root
// mean square, 2 length. x is read twice: once for the statistics of the row, once for the result.

// Number of elements, their mean, and the sum of squared deviations from the mean, so that nothing cancels. Kinds that
// do not subtract the mean have 0 for the mean and the count.
struct S {
    count: f32,
    mean: f32,
    squares: f32,
}

fn merge(a: S, b: S) -> S {
    let count = a.count + b.count;
    let part = b.count / max(count, 1.0);
    let d = b.mean - a.mean;
    return S(count, a.mean + d * part, a.squares + b.squares + d * d * a.count * part);
}

fn four(v: vec4<f32>) -> S {
    if (KIND != 0u) {
        return S(0.0, 0.0, dot(v, v));
    }
    let mean = dot(v, vec4<f32>(0.25));
    let d = v - mean;
    return S(4.0, mean, dot(d, d));
}

fn one(v: f32) -> S {
    if (KIND != 0u) {
        return S(0.0, 0.0, v * v);
    }
    return S(1.0, v, 0.0);
}

fn run(row: u32, lane: u32) {
    let y_at = row * params.n;
    let x_at = params.x_offset + y_at;
    let whole = params.n - params.n % 4u;
    var own = S(0.0, 0.0, 0.0);
    for (var p = lane * 4u; p < whole; p += STEP * 4u) {
        own = merge(own, four(chunk(x_at, p)));
    }
    for (var p = whole + lane; p < params.n; p += STEP) {
        own = merge(own, one(load_x(x_at + p)));
    }
    let all = fold(lane, own);
    var scale = 0.0;
    if (KIND == 2u) {
        scale = 1.0 / max_f32(sqrt(all.squares), params.epsilon);
    } else {
        scale = 1.0 / sqrt(all.squares / f32(params.n) + params.epsilon);
    }
    for (var p = lane * 4u; p < whole; p += STEP * 4u) {
        put_chunk(y_at, p, (chunk(x_at, p) - all.mean) * scale * weight4_at(p) + bias4_at(p));
    }
    for (var p = whole + lane; p < params.n; p += STEP) {
        store_y(y_at + p, (load_x(x_at + p) - all.mean) * scale * weight_at(p) + bias_at(p));
    }
}
