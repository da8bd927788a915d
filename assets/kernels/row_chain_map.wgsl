// Elementwise work, as a link of a chain.
// A row has WIDTH numbers.
fn LINK_run(first: u32, lane: u32ARGUMENTS) {
    for (var t = lane; t < ROWS * WIDTH; t += THREADS) {
        LINK_put(first, t / WIDTH, t % WIDTH, 0.0BASES);
    }
}
