// One workgroup of several subgroups per row: `run` gets the row and one of STEP lanes.
const STEP: u32 = 128u;

var<workgroup> folded: array<S, STEP / SUBGROUP>;

// The merged state of all lanes of the row, in a fixed order: first within each subgroup, then one state per subgroup.
fn fold(lane: u32, own: S) -> S {
    // Only this many lanes have elements: a quad of the row, or one of the remaining elements.
    let lanes = min(max(params.n / 4u, params.n % 4u), STEP);
    var all = own;
    for (var mask = 1u; mask < SUBGROUP; mask *= 2u) {
        let theirs = other(all, mask);
        if ((lane ^ mask) < lanes) {
            all = merge(all, theirs);
        }
    }
    // All threads have read the result of an earlier fold.
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
