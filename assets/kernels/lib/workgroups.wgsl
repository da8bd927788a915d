// Calls the kernel's `run` with one workgroup of LANES threads per work item. All threads of a workgroup call it, so it
// may contain barriers.
@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let work = workgroup_index(wid, nwg);
    if work < params.work {
        run(work, lane);
    }
}
