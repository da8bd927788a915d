// Softmax of lines, as a link of a chain.
// A line has N numbers, and a row PER lines. PARTS threads share a line. LOG is 1 for log-softmax.
fn LINK_share(v: f32, top: f32) -> f32 {
    // The maximum itself is handled separately, because it may be infinite.
    return select(exp_f32(v - top), 1.0, v == top);
}

fn LINK_run(first: u32, lane: u32ARGUMENTS) {
    for (var base = 0u; base < LINES; base += THREADS / PARTS) {
        let line = min(base + lane / PARTS, LINES - 1u);
        let r = line / PER;
        let row = min(first + r, params.rows - 1u);
        let start = line % PER * N;
        var top = from_bits(0xff800000u);
        for (var p = lane % PARTS; p < N; p += PARTS) {
            let c = start + p;
            top = max_f32(top, VALUE);
        }
        top = FOLD_MAX;
        var sum = 0.0;
        for (var p = lane % PARTS; p < N; p += PARTS) {
            let c = start + p;
            sum += LINK_share(VALUE, top);
        }
        sum = FOLD_SUM;
        // A line that is entirely -inf, or contains +inf, has no softmax.
        let all = select(sum, from_bits(0x7fc00000u), is_inf(top));
        let scale = select(1.0 / all, log_f32(all), LOG == 1u);
        if (base + lane / PARTS < LINES) {
            for (var p = lane % PARTS; p < N; p += PARTS) {
                let c = start + p;
                let v = VALUE;
                if (LOG == 1u) {
                    LINK_put(first, r, c, v - top - scaleBASES);
                } else {
                    LINK_put(first, r, c, LINK_share(v, top) * scaleBASES);
                }
            }
        }
    }
}
