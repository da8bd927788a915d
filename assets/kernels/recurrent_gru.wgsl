// The cell of a GRU. Gates: update, reset, hidden. The candidate needs the reset state of all units, unless the reset
// gate multiplies its product (LINEAR).
const GATES: u32 = 3u;
const PREPARES: u32 = 1u - LINEAR;

fn begin(cells: u32, row: u32, j: u32) {}

// The share of unit `k` in the first two gates of unit `j`.
fn share(at: Place, j: u32, k: u32) -> vec2<f32> {
    let r = params.r_offset + k * params.hidden * 3u + j;
    return state(at, k) * vec2<f32>(load_r(r), load_r(r + params.hidden));
}

// The first two gates of unit `j`, opened.
fn gates_of(at: Place, j: u32) -> vec2<f32> {
    let hidden = params.hidden;
    var sum = vec2<f32>(load_gates(at.gates + j), load_gates(at.gates + hidden + j));
    var k = 0u;
    for (; k + 4u <= hidden; k += 4u) {
        sum += share(at, j, k) + share(at, j, k + 1u) + share(at, j, k + 2u) + share(at, j, k + 3u);
    }
    for (; k < hidden; k++) {
        sum += share(at, j, k);
    }
    return vec2<f32>(activate_0(bounded(sum.x)), activate_0(bounded(sum.y)));
}

// Keeps the update gate where the new state will be, and the reset state.
fn prepare(at: Place, j: u32) {
    let open = gates_of(at, j);
    y[at.now + j] = open.x;
    y[at.kept + j] = open.y * state(at, j);
}

// The share of unit `k` in the candidate of unit `j`: of its state, or of its reset state.
fn candidate_share(at: Place, j: u32, k: u32) -> f32 {
    let r = load_r(params.r_offset + (k * 3u + 2u) * params.hidden + j);
    if LINEAR == 1u {
        return state(at, k) * r;
    }
    return y[at.kept + k] * r;
}

fn advance(at: Place, cells: u32, j: u32) {
    let hidden = params.hidden;
    var sum = 0.0;
    var k = 0u;
    for (; k + 4u <= hidden; k += 4u) {
        sum += candidate_share(at, j, k) + candidate_share(at, j, k + 1u);
        sum += candidate_share(at, j, k + 2u) + candidate_share(at, j, k + 3u);
    }
    for (; k < hidden; k++) {
        sum += candidate_share(at, j, k);
    }
    var update = 0.0;
    if LINEAR == 1u {
        let open = gates_of(at, j);
        update = open.x;
        sum = open.y * (sum + state_bias(j));
    } else {
        update = y[at.now + j];
    }
    let candidate = activate_1(bounded(load_gates(at.gates + hidden * 2u + j) + sum));
    y[at.now + j] = (1.0 - update) * candidate + update * state(at, j);
}
