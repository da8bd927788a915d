// Running sums of parts of lines: a thread a part. `carry` has the sum of all that is before a part.

fn run(thread: u32) {
    let column = thread % params.inner;
    let part = (thread / params.inner) % params.parts;
    let line = thread / (params.inner * params.parts);
    let first = part * params.length;
    let end = min(first + params.length, params.n);
    var at = (line * params.n + first) * params.inner + column;
    var sum = load_carry(params.carry_offset + thread);
    for (var i = first; i < end; i++) {
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
