// Which taps of a pooling window are inside the input: only these are visited, so that padding costs nothing.

/// The first of some taps of an axis, and their number.
struct Inside {
    first: u32,
    count: u32,
}

/// What is under the window of an output element.
struct Taps {
    d: Inside,
    h: Inside,
    w: Inside,
    /// Input coordinates of the first tap, if there is one.
    at: vec3<u32>,
    /// Taps inside the input, and inside the input with its padding.
    inside: u32,
    padded: u32,
    /// The first element of the plane.
    image: u32,
}

/// What is known of a window.
struct State {
    /// The largest element, and where it is in its plane.
    best: T,
    place: u32,
    sum: T,
    /// Positions in the input, and in the input with its padding.
    inside: u32,
    padded: u32,
}

/// Of `size` taps, `dilation` apart from `corner` on, those in `start..end`.
fn between(corner: u32, size: u32, dilation: u32, start: u32, end: u32) -> Inside {
    let first = min((max(start, corner) - corner + dilation - 1u) / dilation, size);
    let after = min((max(end, corner) - corner + dilation - 1u) / dilation, size);
    return Inside(first, after - first);
}

fn taps_of(element: u32) -> Taps {
    let corner_w = (element % params.output_w) * params.stride_w;
    var rest = element / params.output_w;
    let corner_h = (rest % params.output_h) * params.stride_h;
    rest = rest / params.output_h;
    let corner_d = (rest % params.output_d) * params.stride_d;
    let image = params.x_offset + (rest / params.output_d) * (params.input_d * params.input_h * params.input_w);
    let d = between(corner_d, params.size_d, params.dilation_d, params.before_d, params.before_d + params.input_d);
    let h = between(corner_h, params.size_h, params.dilation_h, params.before_h, params.before_h + params.input_h);
    let w = between(corner_w, params.size_w, params.dilation_w, params.before_w, params.before_w + params.input_w);
    let padded = between(corner_d, params.size_d, params.dilation_d, 0u, params.padded_d).count
        * between(corner_h, params.size_h, params.dilation_h, 0u, params.padded_h).count
        * between(corner_w, params.size_w, params.dilation_w, 0u, params.padded_w).count;
    let at = vec3<u32>(
        corner_d + d.first * params.dilation_d - params.before_d,
        corner_h + h.first * params.dilation_h - params.before_h,
        corner_w + w.first * params.dilation_w - params.before_w,
    );
    return Taps(d, h, w, at, d.count * h.count * w.count, padded, image);
}
