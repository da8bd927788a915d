// Each row of [rows, n], normalised, then times `weight_at(p)` plus `bias_at(p)`. KIND: 0 layer, 1 root of mean square, 2 length.

alias S = f32;

fn merge(a: S, b: S) -> S {
    return a + b;
}

fn run(row: u32, lane: u32) {
    let x_at = params.x_offset + row * params.n;
    let y_at = row * params.n;
    let lanes = min(params.n, STEP);
    var mean = 0.0;
    if (KIND == 0u) {
        var sum = 0.0;
        for (var p = lane; p < params.n; p += STEP) {
            sum += load_x(x_at + p);
        }
        mean = fold(lane, sum, lanes) / f32(params.n);
    }
    // Squares of what is left after the mean is gone, so nothing cancels.
    var squares = 0.0;
    for (var p = lane; p < params.n; p += STEP) {
        let d = load_x(x_at + p) - mean;
        squares += d * d;
    }
    let all = fold(lane, squares, lanes);
    var scale = 0.0;
    if (KIND == 2u) {
        scale = 1.0 / max_f32(sqrt(all), params.epsilon);
    } else {
        scale = 1.0 / sqrt(all / f32(params.n) + params.epsilon);
    }
    for (var p = lane; p < params.n; p += STEP) {
        store_y(y_at + p, (load_x(x_at + p) - mean) * scale * weight_at(p) + bias_at(p));
    }
}
