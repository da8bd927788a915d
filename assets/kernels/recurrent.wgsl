// One direction of a recurrent layer: a workgroup takes one row of the batch through its steps. A thread owns every
// LANES-th hidden unit. Hidden states reach the next step through the output. `prepare` and `advance` are the cell's:
// what has to be there before any unit advances, and the new state of a unit.
fn run(work: u32, lane: u32) {
    let hidden = params.hidden;
    let plane = params.batch * hidden;
    let row = work * hidden;
    let count = length(work);
    // The state after the last step. Until then cells keep there what they prepare.
    let kept = params.y_offset + params.steps * plane + row;
    for (var j = lane; j < hidden; j += LANES) {
        begin(kept + plane, row, j);
    }
    // Where the hidden states of the step before are.
    var before = 0u;
    for (var i = 0u; i < params.steps; i++) {
        let is_on = i < count;
        let step = select(i, count - 1u - i, REVERSE == 1u && is_on);
        let gates = params.gates_offset + (step * params.batch + work) * hidden * GATES;
        let now = params.y_offset + step * plane + row;
        let place = Place(gates, row, before, now, kept, i == 0u);
        if PREPARES == 1u {
            if is_on {
                for (var j = lane; j < hidden; j += LANES) {
                    prepare(place, j);
                }
            }
            // Every unit reads what all have prepared.
            storageBarrier();
        }
        for (var j = lane; j < hidden; j += LANES) {
            if is_on {
                advance(place, kept + plane, j);
            } else {
                y[now + j] = 0.0;
            }
        }
        before = select(before, now, is_on);
        // The next step reads what all threads wrote.
        storageBarrier();
    }
    for (var j = lane; j < hidden; j += LANES) {
        y[kept + j] = state(Place(0u, row, before, 0u, kept, count == 0u), j);
    }
}
