// One thread per row: `run` gets its row, and lane 0 of STEP 1.
const STEP: u32 = 1u;

// The merged state of all lanes of the row. Here there is one lane.
fn fold(lane: u32, own: S) -> S {
    return own;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let row = workgroup_index(wid, nwg) * THREADS + lid;
    if (row < params.rows) {
        run(row, 0u);
    }
}
