// One workgroup per row: `run` gets the row and one of STEP lanes.
const STEP: u32 = 128u;

var<workgroup> folded: array<S, STEP>;

// The merged state of all lanes of the row, in a fixed order.
fn fold(lane: u32, own: S) -> S {
    // Only this many lanes have elements: a quad of the row, or one of the remaining elements.
    let lanes = min(max(params.n / 4u, params.n % 4u), STEP);
    // All threads have read the result of an earlier fold.
    workgroupBarrier();
    folded[lane] = own;
    for (var half = STEP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half && lane + half < lanes) {
            folded[lane] = merge(folded[lane], folded[lane + half]);
        }
    }
    workgroupBarrier();
    return folded[0];
}

@compute @workgroup_size(STEP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = workgroup_index(wid, nwg);
    if (row < params.rows) {
        run(row, lid);
    }
}
