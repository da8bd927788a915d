// The best positions without barriers. One thread per row finds the best element after the last one found, round by
// round.

fn run(row: u32) {
    let start = params.x_offset + row * params.n;
    var last = Best(0xffffffffu, 0u);
    for (var round = 0u; round < params.k; round++) {
        last = next_best(start, 0u, 1u, round, last);
        store_y(row * params.k + round, i32(last.place));
    }
}
