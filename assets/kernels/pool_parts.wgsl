// Pooling over large windows: a thread combines some taps of one output element. `beats` and `found` come with the variant.

fn run(thread: u32) {
    let taps = taps_of(thread % params.outputs);
    let first = thread / params.outputs * params.taps;
    let end = min(first + params.taps, taps.inside);
    var state = State(params.lowest, 0u, T(0), 0u, 0u);
    for (var tap = first; tap < end; tap++) {
        let line = tap / taps.w.count;
        let d = taps.at.x + line / taps.h.count * params.dilation_d;
        let h = taps.at.y + line % taps.h.count * params.dilation_h;
        let w = taps.at.z + tap % taps.w.count * params.dilation_w;
        let place = (d * params.input_h + h) * params.input_w + w;
        let value = load_x(taps.image + place);
        if tap == first || beats(value, state.best) {
            state.best = value;
            state.place = place;
        }
        state.sum += value;
        state.inside += 1u;
    }
    store_y(thread, found(state));
}
