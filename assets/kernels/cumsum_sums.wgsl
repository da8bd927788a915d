// Sums of parts of lines, for running sums of long lines: a thread a part.

fn run(thread: u32) {
    let column = thread % params.inner;
    let part = (thread / params.inner) % params.parts;
    let line = thread / (params.inner * params.parts);
    let first = part * params.length;
    let end = min(first + params.length, params.n);
    var at = params.x_offset + (line * params.n + first) * params.inner + column;
    var sum = T(0);
    for (var i = first; i < end; i++) {
        sum += load_x(at);
        at += params.inner;
    }
    store_y(thread, sum);
}
