// Lines of the left operand are rows here, lines of the right one are columns. SWAPPED is 1 if neighbouring columns are
// not contiguous in y.

// Stores four neighbouring columns of a row, as far as they exist.
fn put(batch: u32, row: u32, column: u32, v: vec4<T>) {
    if (row >= params.left_lines) {
        return;
    }
    let at = batch * params.left_lines * params.right_lines + row * params.y_left;
    if (SWAPPED == 0u && column + 3u < params.right_lines) {
        store_y4(at + column, v);
        return;
    }
    for (var c = 0u; c < 4u; c++) {
        if (column + c < params.right_lines) {
            store_y(at + (column + c) * params.y_right, v[c]);
        }
    }
}
