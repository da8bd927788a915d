// Fourier transforms of a few points: a thread sums all points of a result.

fn transformed(row: u32, k: u32) -> vec2<f32> {
    var sum = vec2<f32>(0.0);
    var turn = 0u;
    for (var j = 0u; j < params.n; j++) {
        sum += times(fetch(row, j), root(turn));
        turn += k;
        turn -= select(0u, params.n, turn >= params.n);
    }
    return sum;
}

fn run(thread: u32) {
    let row = thread / params.emits;
    emit(row, row, thread % params.emits);
}
