// The cell of an LSTM. Gates: input, output, forget, cell. The last plane of the output holds the cell states; each is
// read and written by one thread only.
const GATES: u32 = 4u;
const PREPARES: u32 = 0u;

fn begin(cells: u32, row: u32, j: u32) {
    y[cells + j] = load_c(params.c_offset + row + j);
}

fn prepare(at: Place, j: u32) {}

// The share of unit `k` in the gates of unit `j`.
fn share(at: Place, j: u32, k: u32) -> vec4<f32> {
    let hidden = params.hidden;
    let r = params.r_offset + k * hidden * 4u + j;
    return state(at, k) * vec4<f32>(load_r(r), load_r(r + hidden), load_r(r + hidden * 2u), load_r(r + hidden * 3u));
}

fn advance(at: Place, cells: u32, j: u32) {
    let hidden = params.hidden;
    var sum = vec4<f32>(
        load_gates(at.gates + j),
        load_gates(at.gates + hidden + j),
        load_gates(at.gates + hidden * 2u + j),
        load_gates(at.gates + hidden * 3u + j),
    );
    var k = 0u;
    for (; k + 4u <= hidden; k += 4u) {
        sum += share(at, j, k) + share(at, j, k + 1u) + share(at, j, k + 2u) + share(at, j, k + 3u);
    }
    for (; k < hidden; k++) {
        sum += share(at, j, k);
    }
    let old = y[cells + j];
    if PEEPHOLES == 1u {
        sum.x += peephole(0u, j) * old;
        sum.z += peephole(2u, j) * old;
    }
    let input = activate_0(bounded(sum.x));
    let forget = select(activate_0(bounded(sum.z)), 1.0 - input, COUPLED == 1u);
    let cell = forget * old + input * activate_1(bounded(sum.w));
    if PEEPHOLES == 1u {
        sum.y += peephole(1u, j) * cell;
    }
    y[cells + j] = cell;
    y[at.now + j] = activate_0(bounded(sum.y)) * activate_2(cell);
}
