// Pooling: a thread combines the window of one output element. The variant provides `beats` and `result`.

fn run(element: u32) {
    let taps = taps_of(element);
    var state = State(params.lowest, 0u, T(0), taps.inside, taps.padded);
    var is_first = true;
    for (var kd = 0u; kd < taps.d.count; kd++) {
        let d = taps.at.x + kd * params.dilation_d;
        for (var kh = 0u; kh < taps.h.count; kh++) {
            let h = taps.at.y + kh * params.dilation_h;
            for (var kw = 0u; kw < taps.w.count; kw++) {
                let w = taps.at.z + kw * params.dilation_w;
                let place = (d * params.input_h + h) * params.input_w + w;
                let value = load_x(taps.image + place);
                if is_first || beats(value, state.best) {
                    state.best = value;
                    state.place = place;
                }
                state.sum += value;
                is_first = false;
            }
        }
    }
    store_y(element, result(state));
}
