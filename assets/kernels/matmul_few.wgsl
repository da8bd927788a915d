// Few rows (ROWS, at most 4) times many columns. A workgroup computes COLS columns. The sum over k of each is split
// over SLICES threads and merged in a fixed order. The rows are lines of the left operand, the columns lines of the
// right one. K_FAST is 1 if elements of the right operand are contiguous along k; then neighbouring threads process
// neighbouring k.

var<workgroup> partial: array<vec4<T>, COLS * SLICES>;

@compute @workgroup_size(COLS * SLICES)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let groups = (params.right_lines + COLS - 1u) / COLS;
    let group = workgroup_index(wid, nwg);
    if (group >= params.batches * groups) {
        return;
    }
    let batch = group / groups;
    let base = sides_offset(batch);
    let slice = select(lid / COLS, lid % SLICES, K_FAST == 1u);
    let column = group % groups * COLS + select(lid % COLS, lid / SLICES, K_FAST == 1u);
    var sum = vec4<T>();
    if (column < params.right_lines) {
        let right_at = base.y + column * params.right_line;
        // Missing rows repeat the last one and are not stored.
        let row1 = min(1u, ROWS - 1u) * params.left_line;
        let row2 = min(2u, ROWS - 1u) * params.left_line;
        let row3 = min(3u, ROWS - 1u) * params.left_line;
        for (var k = slice; k < params.k; k += SLICES) {
            let v = right(right_at + k * params.right_k);
            let at = base.x + k * params.left_k;
            var l = vec4<T>(left(at));
            if (ROWS > 1u) { l.y = left(at + row1); }
            if (ROWS > 2u) { l.z = left(at + row2); }
            if (ROWS > 3u) { l.w = left(at + row3); }
            sum = combine(sum, l, vec4<T>(v));
        }
    }
    if (SLICES > 1u) {
        partial[lid] = sum;
        let step = select(COLS, 1u, K_FAST == 1u);
        for (var half = SLICES / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if (slice < half) {
                sum += partial[lid + half * step];
                partial[lid] = sum;
            }
        }
    }
    if (slice == 0u && column < params.right_lines) {
        let at = batch * params.right_lines * ROWS + column * params.y_right;
        store_y(at, sum.x);
        if (ROWS > 1u) { store_y(at + params.y_left, sum.y); }
        if (ROWS > 2u) { store_y(at + 2u * params.y_left, sum.z); }
        if (ROWS > 3u) { store_y(at + 3u * params.y_left, sum.w); }
    }
}
