// A workgroup of several subgroups for each row: `run` gets the row and which of STEP lanes it is.
const STEP: u32 = 128u;

var<workgroup> folded: array<S, STEP / SUBGROUP>;

// What all lanes of the row found, put together by `merge` in a fixed order: first in each subgroup, then one number of each.
fn fold(lane: u32, own: S) -> S {
    // Only so many lanes found something: a quad of the row, or one of the elements left over.
    let lanes = min(max(params.n / 4u, params.n % 4u), STEP);
    var all = own;
    for (var mask = 1u; mask < SUBGROUP; mask *= 2u) {
        let theirs = other(all, mask);
        if ((lane ^ mask) < lanes) {
            all = merge(all, theirs);
        }
    }
    // The result of an earlier fold has been read by all.
    workgroupBarrier();
    if (lane % SUBGROUP == 0u) {
        folded[lane / SUBGROUP] = all;
    }
    workgroupBarrier();
    all = folded[0];
    for (var i = 1u; i * SUBGROUP < lanes; i++) {
        all = merge(all, folded[i]);
    }
    return all;
}

@compute @workgroup_size(STEP)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let row = workgroup_index(wid, nwg);
    if (row < params.rows) {
        run(row, subgroup * SUBGROUP + lane);
    }
}
