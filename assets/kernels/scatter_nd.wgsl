// `data` with slices combined in at index tuples. A thread owns some elements of one output slice, `span` apart, and
// visits the tuples in order, so results do not depend on timing. `slice(0, tuple)` returns the index of the slice that
// a tuple refers to and the number of faults.

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
    // All threads visit the same tuples, so only the first one counts faults.
    if thread == 0u && wrong != 0u {
        atomicAdd(&faults[0], wrong);
    }
}
