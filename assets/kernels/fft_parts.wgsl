// Where the points of Fourier transforms come from, and where their results go. Pairs are real and imaginary parts.

fn times(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// An entry of the table: usually a root.
fn entry(i: u32) -> vec2<f32> {
    let at = params.w_offset + i * 2u;
    return vec2<f32>(load_w(at), load_w(at + 1u));
}

// Root `turn` of the points of this launch.
fn root(turn: u32) -> vec2<f32> {
    return entry(params.roots + turn);
}

// Where element `j` of a line is in the input.
fn place(line: u32, j: u32) -> u32 {
    return (line / params.frames) * params.samples + (line % params.frames) * params.hop + j;
}

// A real element.
fn number(line: u32, j: u32) -> f32 {
    if j >= params.given {
        return 0.0;
    }
    return load_x(params.x_offset + place(line, j)) * window_at(j);
}

// A complex element.
fn number_pair(line: u32, j: u32) -> vec2<f32> {
    if j >= params.given {
        return vec2<f32>(0.0);
    }
    let at = params.x_offset + place(line, j) * 2u;
    return vec2<f32>(load_x(at), load_x(at + 1u)) * window_at(j);
}

// An element of half a spectrum. The first and the middle one are real.
fn half_pair(line: u32, k: u32) -> vec2<f32> {
    let value = number_pair(line, k);
    return select(value, vec2<f32>(value.x, 0.0), (k == 0u) | (k * 2u == params.period));
}

// Point `j` of a line.
fn point(line: u32, j: u32) -> vec2<f32> {
    var value = vec2<f32>(0.0);
    if SOURCE == 0u {
        value = vec2<f32>(number(line, j), 0.0);
    } else if SOURCE == 1u {
        value = number_pair(line, j);
    } else if SOURCE == 2u {
        if j * 2u <= params.period {
            value = half_pair(line, j);
        } else if j < params.period {
            value = half_pair(line, params.period - j) * vec2<f32>(1.0, -1.0);
        }
    } else if SOURCE == 3u {
        value = vec2<f32>(number(line, 2u * j), number(line, 2u * j + 1u));
    } else {
        // The spectra of the even and of the odd elements: one point has both.
        let a = half_pair(line, j);
        let b = half_pair(line, params.n - j) * vec2<f32>(1.0, -1.0);
        let odd = times(a - b, entry(params.post + j) * vec2<f32>(1.0, -1.0));
        value = 0.5 * (a + b + vec2<f32>(-odd.y, odd.x));
    }
    value.y *= params.source_sign_0;
    if SOURCE_FACTORS == 1u {
        value = times(value, entry(params.source_factors + j));
    }
    value.y *= params.source_sign_1;
    return value;
}

// Point `j` of transform `row` of this launch.
fn fetch(row: u32, j: u32) -> vec2<f32> {
    if PASS == 1u {
        return point(row / params.matrix_columns, j * params.matrix_columns + row % params.matrix_columns);
    }
    if PASS == 2u {
        return point(row / params.matrix_rows, (row % params.matrix_rows) * params.n + j);
    }
    return point(row, j);
}

// Keeps result `k` of a line.
fn keep(line: u32, k: u32, result: vec2<f32>) {
    if (SINK != 4u) & (k >= params.results) {
        return;
    }
    var value = result;
    value.y *= params.sink_sign_0;
    if SINK_FACTORS == 1u {
        value = times(value, entry(params.sink_factors + k));
    }
    value.y *= params.sink_sign_1;
    value *= params.scale;
    if (SINK == 0u) | (SINK == 3u) {
        let at = (line * params.results + k) * 2u;
        store_y(at, value.x);
        store_y(at + 1u, value.y);
    } else if SINK == 1u {
        store_y(line * params.results + k, value.x);
    } else if SINK == 4u {
        let at = line * params.results + k * 2u;
        store_y(at, value.x);
        store_y(at + 1u, value.y);
    } else {
        store_y(line * params.results + k, dot(value, value));
    }
}

// Gives result `k` of transform `row`, which is in `slot` of the workgroup.
fn emit(row: u32, slot: u32, k: u32) {
    if PASS == 1u {
        // Times its root, as row `k` of the matrix.
        let column = row % params.matrix_columns;
        let turn = column * k;
        let twiddle = times(entry(params.fine + turn % 1024u), entry(params.coarse + turn / 1024u));
        let line = row / params.matrix_columns;
        let value = times(transformed(slot, k), twiddle);
        let at = ((line * params.matrix_rows + k) * params.matrix_columns + column) * 2u;
        store_y(at, value.x);
        store_y(at + 1u, value.y);
    } else if PASS == 2u {
        keep(row / params.matrix_rows, row % params.matrix_rows + k * params.matrix_rows, transformed(slot, k));
    } else if (SINK == 3u) | (SINK == 5u) {
        // The spectra of the even and of the odd elements, and of all.
        let a = transformed(slot, k % params.n);
        let b = transformed(slot, (params.n - k) % params.n) * vec2<f32>(1.0, -1.0);
        let odd = times(entry(params.post + k), vec2<f32>(a.y - b.y, b.x - a.x));
        keep(row, k, 0.5 * (a + b + odd));
    } else {
        keep(row, k, transformed(slot, k));
    }
}
