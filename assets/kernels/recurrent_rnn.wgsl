// The cell of an RNN: one gate, which is the new state.
const GATES: u32 = 1u;
const PREPARES: u32 = 0u;

fn begin(cells: u32, row: u32, j: u32) {}

fn prepare(at: Place, j: u32) {}

// The share of unit `k` in the sum of unit `j`.
fn share(at: Place, j: u32, k: u32) -> f32 {
    return state(at, k) * load_r(params.r_offset + k * params.hidden + j);
}

fn advance(at: Place, cells: u32, j: u32) {
    var sum = load_gates(at.gates + j);
    var k = 0u;
    for (; k + 4u <= params.hidden; k += 4u) {
        sum += share(at, j, k) + share(at, j, k + 1u) + share(at, j, k + 2u) + share(at, j, k + 3u);
    }
    for (; k < params.hidden; k++) {
        sum += share(at, j, k);
    }
    y[at.now + j] = activate_0(bounded(sum));
}
