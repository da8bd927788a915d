// Calls the kernel's `run` with the index of each thread.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let thread = workgroup_index(wid, nwg) * 64u + lane;
    if thread < params.threads {
        run(thread);
    }
}
