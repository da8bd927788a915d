// The best positions of long rows, one workgroup per row. Each round finds the best element after the last one found,
// with a tree reduction over the best of each thread.

/// The best key of each thread, and its position.
var<workgroup> keys: array<u32, LANES>;
var<workgroup> places: array<u32, LANES>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = workgroup_index(wid, nwg);
    if row >= params.rows {
        return;
    }
    let start = params.x_offset + row * params.n;
    var last = Best(0xffffffffu, 0u);
    for (var round = 0u; round < params.k; round++) {
        let best = next_best(start, lane, LANES, round, last);
        keys[lane] = best.key;
        places[lane] = best.place;
        workgroupBarrier();
        for (var half = LANES / 2u; half > 0u; half /= 2u) {
            if lane < half {
                let other = keys[lane + half];
                let there = places[lane + half];
                // A thread without elements has key 0 and the last position, so it loses to any other.
                if other > keys[lane] || (other == keys[lane] && there < places[lane]) {
                    keys[lane] = other;
                    places[lane] = there;
                }
            }
            workgroupBarrier();
        }
        last = Best(keys[0], places[0]);
        workgroupBarrier();
        if lane == 0u {
            store_y(row * params.k + round, i32(last.place));
        }
    }
}
