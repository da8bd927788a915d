// Indices of threads and elements. For custom kernels: `#import tensor::indexing`.

// The index of a thread in a grid whose workgroups of `size` threads are folded over x and y, as in a dispatch by
// elements. `local` is the thread's `local_invocation_index`.
fn thread_index(workgroup: vec3<u32>, workgroups: vec3<u32>, local: u32, size: u32) -> u32 {
    return ((workgroup.z * workgroups.y + workgroup.y) * workgroups.x + workgroup.x) * size + local;
}

// The index of the element at (row, column), with `columns` elements per row.
fn index_2d(at: vec2<u32>, columns: u32) -> u32 {
    return at.x * columns + at.y;
}

// The index of the element at (plane, row, column), with planes of `rows` × `columns`.
fn index_3d(at: vec3<u32>, rows: u32, columns: u32) -> u32 {
    return (at.x * rows + at.y) * columns + at.z;
}

// The (row, column) of an element.
fn position_2d(i: u32, columns: u32) -> vec2<u32> {
    return vec2<u32>(i / columns, i % columns);
}

// The (plane, row, column) of an element.
fn position_3d(i: u32, rows: u32, columns: u32) -> vec3<u32> {
    return vec3<u32>(i / (rows * columns), (i / columns) % rows, i % columns);
}

// A position on an axis of `n` that wraps around.
fn wrap_index(i: i32, n: u32) -> u32 {
    let size = i32(n);
    return u32(((i % size) + size) % size);
}

// The nearest position on an axis of `n`.
fn clamp_index(i: i32, n: u32) -> u32 {
    return u32(clamp(i, 0, i32(n) - 1));
}
