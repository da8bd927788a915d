// `y[o, j, i] = data[o, index[j], i]`: a thread copies one element.

fn run(element: u32) {
    let rest = element / params.inner;
    let place = resolve(rest % params.indices, params.n);
    // The first element of an index's first slice speaks for the index.
    if place.fault != 0u && rest < params.indices && element % params.inner == 0u {
        atomicAdd(&faults[0], 1u);
    }
    let at = ((rest / params.indices) * params.n + place.at) * params.inner + element % params.inner;
    store_y(element, load_data(params.data_offset + at));
}
