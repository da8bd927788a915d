// Pooling over large windows: a thread merges what was found in the parts of the window of one output element. `merge` and `result` come with
// the variant.

fn run(element: u32) {
    let taps = taps_of(element);
    var state = State(params.lowest, 0u, T(0), taps.inside, taps.padded);
    var is_first = true;
    for (var part = 0u; part * params.taps < taps.inside; part++) {
        state = merge(state, taps, params.parts_offset + part * params.outputs + element, is_first);
        is_first = false;
    }
    store_y(element, result(state));
}
