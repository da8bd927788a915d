// A thread for each row: `run` gets its row, and lane 0 of STEP 1.
const STEP: u32 = 1u;

// What all lanes of the row found; here there is one.
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
