// Cumulative sums of a few long lines. A workgroup visits a line LANES elements at a time and scans each tile in
// workgroup memory.

var<workgroup> tile: array<T, LANES>;

fn run(line: u32, lane: u32) {
    let start = (line / params.inner) * params.n * params.inner + line % params.inner;
    var carry = T(0);
    for (var first = 0u; first < params.n; first += LANES) {
        let i = first + lane;
        var own = T(0);
        if i < params.n {
            own = load_x(params.x_offset + start + i * params.inner);
        }
        var sum = own;
        tile[lane] = sum;
        workgroupBarrier();
        for (var reach = 1u; reach < LANES; reach *= 2u) {
            if lane >= reach {
                sum += tile[lane - reach];
            }
            workgroupBarrier();
            tile[lane] = sum;
            workgroupBarrier();
        }
        // The sum before this element: that of the neighbour. Subtracting the element would add a rounding error.
        var before = carry;
        if lane > 0u {
            before += tile[lane - 1u];
        }
        let total = tile[LANES - 1u];
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
