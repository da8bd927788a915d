// The best positions without barriers: a thread a row, which finds the best element after the last one found, round by round. `key(i)`
// orders elements: higher is better, equal ones by position.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = workgroup_index(wid, nwg) * 64u + lane;
    if row >= params.rows {
        return;
    }
    let start = params.x_offset + row * params.n;
    var last_key = 0xffffffffu;
    var last_place = 0u;
    for (var round = 0u; round < params.k; round++) {
        var best = 0u;
        var place = params.n;
        for (var i = 0u; i < params.n; i++) {
            let own = key(start + i);
            let left = round == 0u || own < last_key || (own == last_key && i > last_place);
            if left && (place == params.n || own > best) {
                best = own;
                place = i;
            }
        }
        last_key = best;
        last_place = place;
        y[params.y_offset + row * params.k + round] = i32(place);
    }
}
