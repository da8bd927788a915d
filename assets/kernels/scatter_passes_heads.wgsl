// The updates in the order of their targets, in pieces of `span`. A thread combines one element of those updates at the beginning of a piece that
// have the same target. `value(at, i)` is the element of the smaller piece, or the update, at a place of the order.

fn run(thread: u32) {
    let i = thread % params.inner;
    let first = thread / params.inner * params.span;
    let target_slice = target_at(first);
    let end = min(first + params.span, params.updates);
    var total = value(first, i);
    for (var at = first + params.unit; at < end; at += params.unit) {
        if target_at(at) != target_slice {
            break;
        }
        total = combine(total, value(at, i));
    }
    store_y(thread, total);
}
