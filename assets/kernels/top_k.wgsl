// The best positions of long rows: a workgroup a row. Each round finds the best element after the last one found, by a tree over the
// threads' own bests.

/// Each thread's best.
var<workgroup> bests: array<Best, LANES>;

fn run(row: u32, lane: u32) {
    let start = params.x_offset + row * params.n;
    var last = Best(0xffffffffu, 0u);
    for (var round = 0u; round < params.k; round++) {
        bests[lane] = next_best(start, lane, LANES, round, last);
        workgroupBarrier();
        for (var half = LANES / 2u; half > 0u; half /= 2u) {
            if lane < half {
                let own = bests[lane];
                let other = bests[lane + half];
                // Without an element a thread has key 0 and the last position, so it loses to any that has one.
                if (other.key > own.key) | ((other.key == own.key) & (other.place < own.place)) {
                    bests[lane] = other;
                }
            }
            workgroupBarrier();
        }
        last = bests[0];
        workgroupBarrier();
        if lane == 0u {
            store_y(row * params.k + round, i32(last.place));
        }
    }
}
