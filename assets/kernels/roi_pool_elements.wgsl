// The largest of the whole elements that a cell touches; 0 if it touches none.

// Halves away from zero.
fn round_away(x: f32) -> f32 {
    return select(floor(x + 0.5), ceil(x - 0.5), x < 0.0);
}

// The first element of an axis that a cell touches, and the one after the last.
fn elements_of(start: f32, end: f32, cell: u32, cells: u32, n: u32) -> vec2<u32> {
    let origin = round_away(start);
    let size = max(round_away(end) - origin + 1.0, 1.0) / f32(cells);
    let first = floor(f32(cell) * size) + origin;
    let last = ceil(f32(cell + 1u) * size) + origin;
    return vec2<u32>(to_u32(min(first, f32(n))), to_u32(min(last, f32(n))));
}

fn pool_cell(x: u32, bounds: vec4<f32>, row: u32, column: u32) -> f32 {
    let rows = elements_of(bounds.y, bounds.w, row, params.out_height, params.height);
    let columns = elements_of(bounds.x, bounds.z, column, params.out_width, params.width);
    var best = 0.0;
    var is_first = true;
    for (var i = rows.x; i < rows.y; i++) {
        for (var j = columns.x; j < columns.y; j++) {
            let value = load_x(x + i * params.width + j);
            best = select(max_f32(best, value), value, is_first);
            is_first = false;
        }
    }
    return best;
}
