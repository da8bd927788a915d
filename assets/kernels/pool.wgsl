// Pooling: a thread combines the window of one output element. The variant provides `beats` and `result`.

/// The state of a window.
struct State {
    /// The largest element and its position in the plane.
    best: T,
    place: u32,
    sum: T,
    /// Number of positions inside the input, and inside the padded input.
    inside: u32,
    padded: u32,
}

fn run(element: u32) {
    // A coordinate before the input wraps to a large number, so one comparison detects both ends.
    let corner_w = (element % params.output_w) * params.stride_w - params.before_w;
    var rest = element / params.output_w;
    let corner_h = (rest % params.output_h) * params.stride_h - params.before_h;
    rest = rest / params.output_h;
    let corner_d = (rest % params.output_d) * params.stride_d - params.before_d;
    let image = params.x_offset + (rest / params.output_d) * (params.input_d * params.input_h * params.input_w);

    var state = State(params.lowest, 0u, T(0), 0u, 0u);
    for (var kd = 0u; kd < params.size_d; kd++) {
        let d = corner_d + kd * params.dilation_d;
        for (var kh = 0u; kh < params.size_h; kh++) {
            let h = corner_h + kh * params.dilation_h;
            for (var kw = 0u; kw < params.size_w; kw++) {
                let w = corner_w + kw * params.dilation_w;
                // Shifted by the leading padding, a coordinate is inside the padded extent if it is below its size.
                let padded = d + params.before_d < params.padded_d && h + params.before_h < params.padded_h
                    && w + params.before_w < params.padded_w;
                state.padded += u32(padded);
                if d < params.input_d && h < params.input_h && w < params.input_w {
                    let place = (d * params.input_h + h) * params.input_w + w;
                    let value = load_x(image + place);
                    if state.inside == 0u || beats(value, state.best) {
                        state.best = value;
                        state.place = place;
                    }
                    state.sum += value;
                    state.inside += 1u;
                }
            }
        }
    }
    store_y(element, result(state));
}
