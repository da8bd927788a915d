// Running sums of few long lines: a workgroup walks a line 256 elements at a time, and scans each such tile in workgroup memory.

var<workgroup> tile: array<T, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let line = workgroup_index(wid, nwg);
    if line >= params.lines {
        return;
    }
    let start = (line / params.inner) * params.n * params.inner + line % params.inner;
    var carry = T(0);
    for (var first = 0u; first < params.n; first += 256u) {
        let i = first + lane;
        var own = T(0);
        if i < params.n {
            own = load_x(params.x_offset + start + i * params.inner);
        }
        var sum = own;
        tile[lane] = sum;
        workgroupBarrier();
        for (var reach = 1u; reach < 256u; reach *= 2u) {
            if lane >= reach {
                sum += tile[lane - reach];
            }
            workgroupBarrier();
            tile[lane] = sum;
            workgroupBarrier();
        }
        // What lies before: the neighbour's sum, not a difference, which would round.
        var before = carry;
        if lane > 0u {
            before += tile[lane - 1u];
        }
        let total = tile[255];
        workgroupBarrier();
        if i < params.n {
            if EXCLUSIVE == 1u {
                store_y(start + i * params.inner, before);
            } else {
                store_y(start + i * params.inner, carry + sum);
            }
        }
        carry += total;
    }
}
