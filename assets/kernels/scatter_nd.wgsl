// `data` with slices combined in at index tuples. A thread owns one output element and walks the tuples in order, so results do not depend on
// timing. `slice(0, tuple)` is the number of the slice a tuple names and the faults met.

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
    var value = load_data(params.data_offset + element);
    let own = element / params.inner;
    let inner = element % params.inner;
    var wrong = 0u;
    for (var tuple = 0u; tuple < params.tuples; tuple++) {
        let place = slice(0u, tuple);
        if place.at == own {
            value = combine(value, load_updates(params.updates_offset + tuple * params.inner + inner));
        }
        wrong += place.fault;
    }
    // All threads meet the same tuples; the first counts for them.
    if element == 0u && wrong != 0u {
        atomicAdd(&faults[0], wrong);
    }
    y[params.y_offset + element] = value;
}
