// Normalises lines, as a link of a chain.
// A line has N numbers, and a row PER lines. PARTS threads share a line. KIND: 0 layer norm, 1 root mean square, 2 length.
fn LINK_run(first: u32, lane: u32ARGUMENTS) {
    for (var base = 0u; base < LINES; base += THREADS / PARTS) {
        let line = min(base + lane / PARTS, LINES - 1u);
        let r = line / PER;
        let row = min(first + r, params.rows - 1u);
        let start = line % PER * N;
        var sum = 0.0;
        if (KIND == 0u) {
            for (var p = lane % PARTS; p < N; p += PARTS) {
                let c = start + p;
                sum += VALUE;
            }
        }
        sum = FOLD_SUM;
        let mean = sum / f32(N);
        sum = 0.0;
        for (var p = lane % PARTS; p < N; p += PARTS) {
            let c = start + p;
            let d = VALUE - mean;
            sum += d * d;
        }
        sum = FOLD_SUM;
        var scale = 1.0 / sqrt(sum / f32(N) + EPSILON);
        if (KIND == 2u) {
            scale = 1.0 / max_f32(sqrt(sum), EPSILON);
        }
        if (base + lane / PARTS < LINES) {
            for (var p = lane % PARTS; p < N; p += PARTS) {
                let c = start + p;
                LINK_put(first, r, c, (VALUE - mean) * scale * WEIGHT + BIASBASES);
            }
        }
    }
}
