// Running sums, a thread a line. Lines next to each other are read next to each other.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let line = workgroup_index(wid, nwg) * 64u + lane;
    if line >= params.lines {
        return;
    }
    var at = (line / params.inner) * params.n * params.inner + line % params.inner;
    var sum = T(0);
    for (var i = 0u; i < params.n; i++) {
        let next = sum + load_x(params.x_offset + at);
        if EXCLUSIVE == 1u {
            y[params.y_offset + at] = sum;
        } else {
            y[params.y_offset + at] = next;
        }
        sum = next;
        at += params.inner;
    }
}
