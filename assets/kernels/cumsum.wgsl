// Running sums, a thread a line. Lines next to each other are read next to each other.

fn run(line: u32) {
    var at = (line / params.inner) * params.n * params.inner + line % params.inner;
    var sum = T(0);
    for (var i = 0u; i < params.n; i++) {
        let next = sum + load_x(params.x_offset + at);
        if EXCLUSIVE == 1u {
            y[params.y_offset + at] = sum;
        } else {
            y[params.y_offset + at] = next;
        }
        sum = next;
        at += params.inner;
    }
}
