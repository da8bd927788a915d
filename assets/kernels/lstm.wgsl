// One direction of an LSTM layer. A workgroup processes one row of the batch through all steps. A thread owns every
// LANES-th hidden unit. Hidden states reach the next step through the output. Until the end, the last plane of the
// output holds the cell states; each is read and written by one thread only.

fn sigmoid(x: vec3<f32>) -> vec3<f32> {
    return 1.0 / (1.0 + vec3<f32>(exp_f32(-x.x), exp_f32(-x.y), exp_f32(-x.z)));
}

fn run(work: u32, lane: u32) {
    let hidden = params.hidden;
    let plane = params.batch * hidden;
    let row = work * hidden;
    let cells = params.y_offset + params.steps * plane + row;
    for (var j = lane; j < hidden; j += LANES) {
        y[cells + j] = load_c(params.c_offset + row + j);
    }
    // Position of the hidden states of the previous step.
    var before = 0u;
    for (var i = 0u; i < params.steps; i++) {
        let step = select(i, params.steps - 1u - i, REVERSE == 1u);
        let gates = params.gates_offset + (step * params.batch + work) * hidden * 4u;
        let now = params.y_offset + step * plane + row;
        for (var j = lane; j < hidden; j += LANES) {
            // Input, output, forget, cell.
            var sum = vec4<f32>(
                load_gates(gates + j),
                load_gates(gates + hidden + j),
                load_gates(gates + hidden * 2u + j),
                load_gates(gates + hidden * 3u + j),
            );
            for (var k = 0u; k < hidden; k++) {
                var h = 0.0;
                if i == 0u {
                    h = load_h(params.h_offset + row + k);
                } else {
                    h = y[before + k];
                }
                let at = params.r_offset + k * hidden * 4u + j;
                sum += h * vec4<f32>(
                    load_r(at),
                    load_r(at + hidden),
                    load_r(at + hidden * 2u),
                    load_r(at + hidden * 3u),
                );
            }
            let open = sigmoid(sum.xyz);
            let cell = open.z * y[cells + j] + open.x * tanh_f32(sum.w);
            y[cells + j] = cell;
            y[now + j] = open.y * tanh_f32(cell);
        }
        before = now;
        // The next step reads what all threads wrote.
        storageBarrier();
    }
}
