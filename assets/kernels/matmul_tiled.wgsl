// Each workgroup makes a tile of left_LINES (32 or 64) x 64 elements of y from 16-deep tiles of both sides in workgroup memory. With SLICES
// above 1, that many sets of 64 threads take turns in k and are added up in their order at the end; rows are 32 then. Lines that begin with #
// are what a thread keeps in registers, spelled out by `tile.rs`.

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
    // All slices go round as often, since they meet at the barriers; a tile beyond the end of k is 0.
    for (var k0 = 0u; k0 < params.k; k0 += 16u * SLICES) {
        fill_left(base.x, top, k0 + slice * 16u, slice, lid);
        fill_right(base.y, first, k0 + slice * 16u, slice, lid);
        workgroupBarrier();
        // What lies beyond the end is 0 on both sides, which adds nothing.
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
