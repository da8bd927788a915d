// `y[o, j, i] = data[o, index[j], i]`: a thread copies one element.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let element = workgroup_index(wid, nwg) * 64u + lane;
    if element >= params.count {
        return;
    }
    let rest = element / params.inner;
    let place = resolve(rest % params.indices, params.n);
    // The first element of an index's first slice speaks for the index.
    if place.fault != 0u && rest < params.indices && element % params.inner == 0u {
        atomicAdd(&faults[0], 1u);
    }
    let at = ((rest / params.indices) * params.n + place.at) * params.inner + element % params.inner;
    y[params.y_offset + element] = load_data(params.data_offset + at);
}
