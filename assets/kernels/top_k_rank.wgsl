// The best positions where many are wanted: a thread an element. It counts the elements before its own in the order, which is its place
// in the output. `key(i)` orders elements: higher is better, equal ones by position.

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
    let row = element / params.n;
    let place = element % params.n;
    let start = params.x_offset + row * params.n;
    let own = key(start + place);
    var rank = 0u;
    for (var i = 0u; i < place; i++) {
        rank += u32(key(start + i) >= own);
    }
    for (var i = place + 1u; i < params.n; i++) {
        rank += u32(key(start + i) > own);
    }
    if rank < params.k {
        y[params.y_offset + row * params.k + rank] = i32(place);
    }
}
