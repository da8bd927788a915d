// The slices of `data` that index tuples name: a thread copies one element. `slice(batch, tuple)` is the slice's number and the faults met.

fn run(element: u32) {
    let tuple = element / params.inner;
    let inner = element % params.inner;
    let place = slice(tuple / params.tuples, tuple);
    if place.fault != 0u && inner == 0u {
        atomicAdd(&faults[0], place.fault);
    }
    store_y(element, load_data(params.data_offset + place.at * params.inner + inner));
}
