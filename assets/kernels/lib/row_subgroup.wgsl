// A subgroup, which is a whole workgroup, for each row: `run` gets the row and which of STEP lanes it is. Rows are so long that every lane
// finds something. No workgroup memory, no barrier.
const STEP: u32 = SUBGROUP;

// What all lanes of the row found, put together by `merge` in a fixed order.
fn fold(lane: u32, own: S) -> S {
    var all = own;
    for (var mask = 1u; mask < SUBGROUP; mask *= 2u) {
        all = merge(all, other(all, mask));
    }
    return all;
}

@compute @workgroup_size(SUBGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {
    let row = workgroup_index(wid, nwg);
    if (row < params.rows) {
        run(row, lane);
    }
}
