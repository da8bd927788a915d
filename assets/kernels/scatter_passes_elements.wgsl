// The data element that each update hits, where an index names a position of one axis. `start_of(p)` is the element of update `p` with index 0.

fn run(update: u32) {
    let place = resolve(update, params.n);
    if place.fault != 0u {
        atomicAdd(&faults[0], place.fault);
    }
    store_y(update, start_of(update) + place.at * params.inner);
}
