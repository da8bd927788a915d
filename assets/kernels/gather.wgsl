// `y[o, j, i] = data[o, index[j], i]`: a thread copies one element, if its row is among those that the launch sees.

fn run(element: u32) {
    let rest = element / params.inner;
    let place = resolve(rest % params.indices, params.n);
    // Each index is counted once, by the first element of its first slice.
    if place.fault != 0u && rest < params.indices && element % params.inner == 0u && params.first == 0u {
        atomicAdd(&faults[0], 1u);
    }
    // Rows before the first wrap to numbers larger than any row.
    let row = place.at - params.first;
    if row < params.rows {
        let at = ((rest / params.indices) * params.rows + row) * params.inner + element % params.inner;
        store_y(element, load_data(params.data_offset + at));
    }
}
