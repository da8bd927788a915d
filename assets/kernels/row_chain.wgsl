// Runs a chain of row-wise links for blocks of ROWS rows, one workgroup each. Values between links are in `cells`. The
// generated function `chain` calls the links in order with barriers in between.

// The numbers of all values of a block. A value of width w that begins at cell `at` has row r at `at + r * w`.
var<workgroup> cells: array<f32, CELLS>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(LANE) lane: u32) {
    let block = workgroup_index(wid, nwg);
    // Rows past the end repeat the last one and are not stored.
    if (block * ROWS < params.rows) {
        chain(block * ROWS, lane);
    }
}
