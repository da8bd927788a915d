// Sums and maxima over the `parts` neighbouring threads that share a line, in a fixed order.
var<workgroup> partial: array<f32, LANES>;

fn fold_sum(lane: u32, parts: u32, own: f32) -> f32 {
    partial[lane] = own;
    workgroupBarrier();
    let first = lane - lane % parts;
    var all = partial[first];
    for (var i = 1u; i < parts; i++) {
        all += partial[first + i];
    }
    // All threads have read before the next fold writes.
    workgroupBarrier();
    return all;
}

fn fold_max(lane: u32, parts: u32, own: f32) -> f32 {
    partial[lane] = own;
    workgroupBarrier();
    let first = lane - lane % parts;
    var all = partial[first];
    for (var i = 1u; i < parts; i++) {
        all = max_f32(all, partial[first + i]);
    }
    workgroupBarrier();
    return all;
}
