// Each workgroup computes a tile of left_LINES (32 or 64) x 64 elements of y from tiles of depth 16 of both sides in
// workgroup memory. If SLICES is above 1, that many sets of 64 threads split k, and their sums are added in order at
// the end; there are 32 rows then. `tile.rs` replaces lines that begin with # by the code for the results that a thread
// keeps in registers.

@compute @workgroup_size(64u * SLICES)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let tiles_right = (params.right_lines + 63u) / 64u;
    let tiles_left = (params.left_lines + left_LINES - 1u) / left_LINES;
    let group = workgroup_index(wid, nwg);
    if (group >= params.batches * tiles_left * tiles_right) {
        return;
    }
    let batch = group / (tiles_left * tiles_right);
    let top = (group / tiles_right) % tiles_left * left_LINES;
    let first = group % tiles_right * 64u;
    let base = sides_offset(batch);

    let slice = thread / 64u;
    let lid = thread % 64u;
    let left_at = slice * 16u * left_PITCH + lid / 8u;
    let right_at = slice * 16u * right_PITCH + lid % 8u;
    let ty = lid / 8u;
    let tx = lid % 8u;
    #sums
    // All slices have the same number of iterations, because they share barriers. A tile past the end of k is 0.
    for (var k0 = 0u; k0 < params.k; k0 += 16u * SLICES) {
        fill_left(base.x, top, k0 + slice * 16u, slice, lid);
        fill_right(base.y, first, k0 + slice * 16u, slice, lid);
        workgroupBarrier();
        // Elements past the end are 0 on both sides and add nothing.
        #products
        workgroupBarrier();
    }
    #slices
    let all = #results;
    for (var i = 0u; i < left_LINES / 4u; i++) {
        let row = top + i / 8u * 32u + ty * 4u + i / 2u % 4u;
        put(batch, row, first + i % 2u * 32u + tx * 4u, all[i]);
    }
}
