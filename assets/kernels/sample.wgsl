// Samples planes at points: a thread for each channel of each point. The elements along each axis are found as the twin
// finds them.

// Elements of an axis and their weights. What is outside has the place OUTSIDE.
struct Taps {
    at: vec4<u32>,
    weight: vec4<f32>,
}

const OUTSIDE: u32 = 0xffffffffu;
const FAR: f32 = 1e9;

// Mirrors a position at the edges until it is between them.
fn reflected(x: f32, low: f32, high: f32) -> f32 {
    let range = high - low;
    if range <= 0.0 {
        return low;
    }
    if x >= low && x <= high {
        return x;
    }
    let is_below = x < low;
    let beyond = select(x - high, low - x, is_below);
    let origin = select(high, low, is_below);
    let towards = select(-1.0, 1.0, is_below);
    let turns = floor(beyond / range);
    let rest = beyond - turns * range;
    let is_even = turns - 2.0 * floor(turns * 0.5) == 0.0;
    return select(low + high - origin - towards * rest, origin + towards * rest, is_even);
}

// The place of a whole position.
fn place_of(at: f32, size: u32) -> u32 {
    let last = f32(size) - 1.0;
    if PADDING == 0u && (at < 0.0 || at > last) {
        return OUTSIDE;
    }
    var inside = at;
    if PADDING == 2u {
        inside = trunc(reflected(at, select(-0.5, 0.0, COORDINATES == 1u), select(last + 0.5, last, COORDINATES == 1u)));
    }
    return u32(clamp(inside, 0.0, last));
}

// The elements that a coordinate reads.
fn taps_of(coordinate: f32, size: u32) -> Taps {
    let n = f32(size);
    let last = n - 1.0;
    var x = coordinate;
    if COORDINATES == 0u {
        x = ((coordinate + 1.0) * n - 1.0) / 2.0;
    } else if COORDINATES == 1u {
        x = (coordinate + 1.0) / 2.0 * last;
    }
    x = select(clamp(x, -FAR, FAR), -FAR, is_nan(x));
    if TAPS == 1u {
        x = round(x);
    }
    let low = select(-0.5, 0.0, COORDINATES == 1u);
    let high = select(last + 0.5, last, COORDINATES == 1u);
    if x < low || x > high {
        // A cubic filter sees past the edge.
        if PADDING == 1u && TAPS != 4u {
            x = clamp(x, 0.0, last);
        } else if PADDING == 2u {
            x = reflected(x, low, high);
        }
    }
    if TAPS == 1u {
        return Taps(vec4<u32>(place_of(trunc(x), size), 0u, 0u, 0u), vec4<f32>(1.0, 0.0, 0.0, 0.0));
    }
    let first = floor(x);
    let r = x - first;
    if TAPS == 2u {
        let at = vec4<u32>(place_of(first, size), place_of(first + 1.0, size), 0u, 0u);
        return Taps(at, vec4<f32>(1.0 - r, r, 0.0, 0.0));
    }
    let at = vec4<u32>(
        place_of(first - 1.0, size),
        place_of(first, size),
        place_of(first + 1.0, size),
        place_of(first + 2.0, size),
    );
    return Taps(at, vec4<f32>(outer(r + 1.0), inner(r), inner(1.0 - r), outer(2.0 - r)));
}

// Cubic convolution with a = -0.75, between one and two elements away, and within one.
fn outer(x: f32) -> f32 {
    return ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0;
}

fn inner(x: f32) -> f32 {
    return (1.25 * x - 2.25) * x * x + 1.0;
}

fn run(thread: u32) {
    let point = thread % params.points;
    let plane = thread / params.points;
    let n = plane / params.channels;
    let at = params.points_offset + (n * params.points + point) * AXES;
    let columns = taps_of(load_points(at), params.width);
    let rows = taps_of(load_points(at + 1u), params.height);
    var depths = Taps(vec4<u32>(0u), vec4<f32>(1.0, 0.0, 0.0, 0.0));
    var depth_count = 1u;
    if AXES == 3u {
        depths = taps_of(load_points(at + 2u), params.depth);
        depth_count = TAPS;
    }
    var sum = 0.0;
    for (var i = 0u; i < depth_count; i++) {
        if depths.at[i] == OUTSIDE {
            continue;
        }
        var of_plane = 0.0;
        for (var j = 0u; j < TAPS; j++) {
            if rows.at[j] == OUTSIDE {
                continue;
            }
            let line = params.x_offset + ((plane * params.depth + depths.at[i]) * params.height + rows.at[j]) * params.width;
            var of_row = 0.0;
            for (var k = 0u; k < TAPS; k++) {
                if columns.at[k] != OUTSIDE {
                    of_row += columns.weight[k] * load_x(line + columns.at[k]);
                }
            }
            of_plane += rows.weight[j] * of_row;
        }
        sum += depths.weight[i] * of_plane;
    }
    store_y(thread, sum);
}
