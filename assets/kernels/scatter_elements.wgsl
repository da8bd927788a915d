// `data` with updates combined in along one axis. A thread owns one output element and visits the updates of its line
// in order, so results do not depend on timing. `line_of(p)` is the start of the line in `index` and `updates`, and
// whether they have such a line.

fn run(element: u32) {
    var value = load_data(params.data_offset + element);
    let line = line_of(element);
    if line.exists {
        let own = (element / params.inner) % params.n;
        var wrong = 0u;
        for (var j = 0u; j < params.updates; j++) {
            let at = line.at + j * params.updates_inner;
            let place = resolve(at, params.n);
            if place.at == own {
                value = combine(value, load_updates(params.updates_offset + at));
            }
            wrong += place.fault;
        }
        // All elements of a line visit the same updates, so only the first one counts faults.
        if own == 0u && wrong != 0u {
            atomicAdd(&faults[0], wrong);
        }
    }
    store_y(element, value);
}
