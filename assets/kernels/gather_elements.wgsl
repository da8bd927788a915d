// `y[p] = data[p with axis := index[p]]`: a thread copies one element. `start_of(p)` is the position of `p` in `data`
// with coordinate 0 on the axis.

fn run(element: u32) {
    let place = resolve(element, params.n);
    if place.fault != 0u {
        atomicAdd(&faults[0], 1u);
    }
    store_y(element, load_data(params.data_offset + start_of(element) + place.at * params.inner));
}
