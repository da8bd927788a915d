// `y[p] = data[p with axis := index[p]]`: a thread copies one element. `start_of(p)` is the place of `p` in `data` with coordinate 0 on the axis.

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
    let place = resolve(element, params.n);
    if place.fault != 0u {
        atomicAdd(&faults[0], 1u);
    }
    y[params.y_offset + element] = load_data(params.data_offset + start_of(element) + place.at * params.inner);
}
