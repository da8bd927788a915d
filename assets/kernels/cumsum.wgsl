// Cumulative sums, one thread per line. Neighbouring threads read neighbouring lines.

fn run(line: u32) {
    var at = (line / params.inner) * params.n * params.inner + line % params.inner;
    var sum = T(0);
    for (var i = 0u; i < params.n; i++) {
        let next = sum + load_x(params.x_offset + at);
        if EXCLUSIVE == 1u {
            store_y(at, sum);
        } else {
            store_y(at, next);
        }
        sum = next;
        at += params.inner;
    }
}
