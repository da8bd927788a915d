// Each workgroup makes a tile of left_LINES (32 or 64) x 64 elements of y from 16-deep tiles of both sides in workgroup memory. A thread
// makes 8 columns, in two quads that lie half a tile apart, of 4 rows, or of 8 that lie likewise. With SLICES above 1, that many sets of
// 64 threads take turns in k and are added up in their order at the end; rows are 32 then.

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
    var acc0_0 = vec4<T>();
    var acc0_1 = vec4<T>();
    var acc1_0 = vec4<T>();
    var acc1_1 = vec4<T>();
    var acc2_0 = vec4<T>();
    var acc2_1 = vec4<T>();
    var acc3_0 = vec4<T>();
    var acc3_1 = vec4<T>();
    var acc4_0 = vec4<T>();
    var acc4_1 = vec4<T>();
    var acc5_0 = vec4<T>();
    var acc5_1 = vec4<T>();
    var acc6_0 = vec4<T>();
    var acc6_1 = vec4<T>();
    var acc7_0 = vec4<T>();
    var acc7_1 = vec4<T>();
    // All slices go round as often, since they meet at the barriers; a tile beyond the end of k is 0.
    for (var k0 = 0u; k0 < params.k; k0 += 16u * SLICES) {
        fill_left(base.x, top, k0 + slice * 16u, slice, lid);
        fill_right(base.y, first, k0 + slice * 16u, slice, lid);
        workgroupBarrier();
        // What lies beyond the end is 0 on both sides, which adds nothing.
        for (var k = 0u; k < 16u; k++) {
            let b0 = right_tile[right_at + k * right_PITCH];
            let b1 = right_tile[right_at + k * right_PITCH + 8u];
            let a = left_tile[left_at + k * left_PITCH];
            acc0_0 = combine(acc0_0, vec4<T>(a.x), b0);
            acc0_1 = combine(acc0_1, vec4<T>(a.x), b1);
            acc1_0 = combine(acc1_0, vec4<T>(a.y), b0);
            acc1_1 = combine(acc1_1, vec4<T>(a.y), b1);
            acc2_0 = combine(acc2_0, vec4<T>(a.z), b0);
            acc2_1 = combine(acc2_1, vec4<T>(a.z), b1);
            acc3_0 = combine(acc3_0, vec4<T>(a.w), b0);
            acc3_1 = combine(acc3_1, vec4<T>(a.w), b1);
            if (left_LINES == 64u) {
                let low = left_tile[left_at + k * left_PITCH + 8u];
                acc4_0 = combine(acc4_0, vec4<T>(low.x), b0);
                acc4_1 = combine(acc4_1, vec4<T>(low.x), b1);
                acc5_0 = combine(acc5_0, vec4<T>(low.y), b0);
                acc5_1 = combine(acc5_1, vec4<T>(low.y), b1);
                acc6_0 = combine(acc6_0, vec4<T>(low.z), b0);
                acc6_1 = combine(acc6_1, vec4<T>(low.z), b1);
                acc7_0 = combine(acc7_0, vec4<T>(low.w), b0);
                acc7_1 = combine(acc7_1, vec4<T>(low.w), b1);
            }
        }
        workgroupBarrier();
    }
    if (SLICES > 1u) {
        // The tiles have been read; their memory takes one slice after the other.
        for (var later = 1u; later < SLICES; later++) {
            if (slice == later) {
                right_tile[0u + lid] = acc0_0;
                right_tile[64u + lid] = acc0_1;
                right_tile[128u + lid] = acc1_0;
                right_tile[192u + lid] = acc1_1;
                right_tile[256u + lid] = acc2_0;
                right_tile[320u + lid] = acc2_1;
                right_tile[384u + lid] = acc3_0;
                right_tile[448u + lid] = acc3_1;
            }
            workgroupBarrier();
            if (slice == 0u) {
                acc0_0 += right_tile[0u + lid];
                acc0_1 += right_tile[64u + lid];
                acc1_0 += right_tile[128u + lid];
                acc1_1 += right_tile[192u + lid];
                acc2_0 += right_tile[256u + lid];
                acc2_1 += right_tile[320u + lid];
                acc3_0 += right_tile[384u + lid];
                acc3_1 += right_tile[448u + lid];
            }
            workgroupBarrier();
        }
        if (slice > 0u) {
            return;
        }
    }
    let all = array<vec4<T>, 16>(
        acc0_0, acc0_1,
        acc1_0, acc1_1,
        acc2_0, acc2_1,
        acc3_0, acc3_1,
        acc4_0, acc4_1,
        acc5_0, acc5_1,
        acc6_0, acc6_1,
        acc7_0, acc7_1,
    );
    for (var i = 0u; i < left_LINES / 4u; i++) {
        let row = top + i / 8u * 32u + ty * 4u + i / 2u % 4u;
        put(batch, row, first + i % 2u * 32u + tx * 4u, all[i]);
    }
}
