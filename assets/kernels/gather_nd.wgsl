// The slices of `data` that index tuples name: a thread copies one element. `slice(batch, tuple)` is the slice's number and the faults met.

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
    let tuple = element / params.inner;
    let inner = element % params.inner;
    let place = slice(tuple / params.tuples, tuple);
    if place.fault != 0u && inner == 0u {
        atomicAdd(&faults[0], place.fault);
    }
    y[params.y_offset + element] = load_data(params.data_offset + place.at * params.inner + inner);
}
