// A thread for each quad of columns.
const SLICES: u32 = 1u;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let quad = workgroup_index(wid, nwg) * THREADS + lid;
    if (quad < params.quads) {
        put(quad, slice_of(quad, 0u));
    }
}
