// Weighted sums of a few elements along one axis: a thread computes one output element.

fn run(element: u32) {
    let inner = element % params.inner;
    let rest = element / params.inner;
    let first = (rest % params.out) * params.taps;
    let line = params.x_offset + (rest / params.out) * params.n * params.inner + inner;
    var sum = 0.0;
    for (var tap = first; tap < first + params.taps; tap++) {
        // Positions are in range. The clamp prevents an invalid table from reading elsewhere.
        let position = min(u32(load_position(params.position_offset + tap)), params.n - 1u);
        sum += load_weight(params.weight_offset + tap) * load_x(line + position * params.inner);
    }
    store_y(element, sum);
}
