// One subgroup, which is a whole workgroup, per row: `run` gets the row and one of STEP lanes. Rows are so long that
// every lane has elements. No workgroup memory, no barriers.
const STEP: u32 = SUBGROUP;

// The merged state of all lanes of the row, in a fixed order.
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
