// Copies the slices of `data` that index tuples refer to, one element per thread. `slice(batch, tuple)` returns the
// index of the slice and the number of faults.

fn run(element: u32) {
    let tuple = element / params.inner;
    let inner = element % params.inner;
    let place = slice(tuple / params.tuples, tuple);
    if place.fault != 0u && inner == 0u {
        atomicAdd(&faults[0], place.fault);
    }
    store_y(element, load_data(params.data_offset + place.at * params.inner + inner));
}
