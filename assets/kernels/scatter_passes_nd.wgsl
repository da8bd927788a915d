// The slice that each update hits, where a tuple of indices names it.

fn run(tuple: u32) {
    let place = slice(0u, tuple);
    if place.fault != 0u {
        atomicAdd(&faults[0], place.fault);
    }
    store_y(tuple, place.at);
}
