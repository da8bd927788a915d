// The updates in the order of their targets: the thread of the first update of a target combines all of them into one element, piece by piece. The
// output has the data already. `piece(at)` is the number of updates in the largest piece that begins at a place of the order, `value(at, span, i)` its
// element.

fn run(thread: u32) {
    let i = thread % params.inner;
    let first = thread / params.inner;
    let target_slice = target_at(first);
    if first > 0u {
        if target_at(first - 1u) == target_slice {
            return;
        }
    }
    let out = params.y_offset + target_slice * params.inner + i;
    var total = combine(y[out], update(first, i));
    var at = first + 1u;
    while at < params.updates {
        if target_at(at) != target_slice {
            break;
        }
        let span = piece(at);
        total = combine(total, value(at, span, i));
        at += span;
    }
    y[out] = total;
}
