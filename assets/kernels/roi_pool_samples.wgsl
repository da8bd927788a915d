// Samples between the elements of a cell, averaged or compared.

// Start of a cell, distance of samples and their number, along one axis.
struct Samples {
    start: f32,
    step: f32,
    count: u32,
}

fn samples_of(start: f32, end: f32, cell: u32, cells: u32) -> Samples {
    let length = select(max(end - start, 1.0), end - start, HALF_PIXEL == 1u);
    let size = length / f32(cells);
    let adaptive = min(to_u32(ceil(size)), MOST_SAMPLES);
    let count = select(adaptive, params.samples, params.samples > 0u);
    return Samples(start + f32(cell) * size, size / f32(max(count, 1u)), count);
}

// The two elements around a position of an axis, and the weight of the second.
struct Pair {
    low: u32,
    high: u32,
    weight: f32,
}

fn pair_of(at: f32, n: u32) -> Pair {
    let inside = max(at, 0.0);
    let low = u32(inside);
    if low + 1u >= n {
        return Pair(n - 1u, n - 1u, 0.0);
    }
    return Pair(low, low + 1u, inside - f32(low));
}

// The four elements around a position, times their weights. Zeros more than one element outside.
fn corners(x: u32, row: f32, column: f32) -> vec4<f32> {
    let is_inside = row >= -1.0 && row <= f32(params.height) && column >= -1.0 && column <= f32(params.width);
    if !is_inside {
        return vec4<f32>(0.0);
    }
    let i = pair_of(row, params.height);
    let j = pair_of(column, params.width);
    let h = 1.0 - i.weight;
    let w = 1.0 - j.weight;
    return vec4<f32>(
        h * w * load_x(x + i.low * params.width + j.low),
        h * j.weight * load_x(x + i.low * params.width + j.high),
        i.weight * w * load_x(x + i.high * params.width + j.low),
        i.weight * j.weight * load_x(x + i.high * params.width + j.high),
    );
}

fn pool_cell(x: u32, bounds: vec4<f32>, row: u32, column: u32) -> f32 {
    let shift = select(0.0, 0.5, HALF_PIXEL == 1u);
    let down = samples_of(bounds.y - shift, bounds.w - shift, row, params.out_height);
    let across = samples_of(bounds.x - shift, bounds.z - shift, column, params.out_width);
    var sum = 0.0;
    var is_first = true;
    for (var i = 0u; i < down.count; i++) {
        let y = down.start + (f32(i) + 0.5) * down.step;
        for (var j = 0u; j < across.count; j++) {
            let four = corners(x, y, across.start + (f32(j) + 0.5) * across.step);
            if MAX == 1u {
                let best = max_f32(max_f32(four.x, four.y), max_f32(four.z, four.w));
                sum = select(max_f32(sum, best), best, is_first);
                is_first = false;
            } else {
                sum += (four.x + four.y) + (four.z + four.w);
            }
        }
    }
    if MAX == 1u {
        return sum;
    }
    return sum / f32(max(down.count * across.count, 1u));
}
