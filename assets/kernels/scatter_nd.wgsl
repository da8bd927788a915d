// `data` with slices combined in at index tuples. A thread owns some elements of one output slice, `span` apart, and walks the tuples in order, so
// results do not depend on timing. `slice(0, tuple)` is the number of the slice a tuple names and the faults met.

fn run(thread: u32) {
    let own = thread / params.span;
    let first = thread % params.span;
    let out = params.y_offset + own * params.inner;
    for (var i = first; i < params.inner; i += params.span) {
        y[out + i] = load_data(params.data_offset + own * params.inner + i);
    }
    var wrong = 0u;
    for (var tuple = 0u; tuple < params.tuples; tuple++) {
        let place = slice(0u, tuple);
        if place.at == own {
            for (var i = first; i < params.inner; i += params.span) {
                y[out + i] = combine(y[out + i], load_updates(params.updates_offset + tuple * params.inner + i));
            }
        }
        wrong += place.fault;
    }
    // All threads meet the same tuples; the first counts for them.
    if thread == 0u && wrong != 0u {
        atomicAdd(&faults[0], wrong);
    }
}
