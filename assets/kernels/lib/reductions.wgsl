// Reductions over all threads of a workgroup. For custom kernels: `#import tensor::reductions`.
//
// All threads of the workgroup must call these functions in uniform control flow, with the thread's
// `local_invocation_index` and the number of threads (at most 1024). All threads get the same result.

// One number per thread.
var<workgroup> reduction_cells: array<f32, 1024>;

// The sum.
fn workgroup_sum(value: f32, local: u32, size: u32) -> f32 {
    reduction_cells[local] = value;
    workgroupBarrier();
    for (var left = size; left > 1u; left = (left + 1u) / 2u) {
        let other = local + (left + 1u) / 2u;
        if (other < left) {
            reduction_cells[local] += reduction_cells[other];
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&reduction_cells[0]);
}

// The largest number.
fn workgroup_max(value: f32, local: u32, size: u32) -> f32 {
    reduction_cells[local] = value;
    workgroupBarrier();
    for (var left = size; left > 1u; left = (left + 1u) / 2u) {
        let other = local + (left + 1u) / 2u;
        if (other < left) {
            reduction_cells[local] = max(reduction_cells[local], reduction_cells[other]);
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&reduction_cells[0]);
}

// The smallest number.
fn workgroup_min(value: f32, local: u32, size: u32) -> f32 {
    return -workgroup_max(-value, local, size);
}
