// The best positions without barriers: a thread a row, which finds the best element after the last one found, round by round. `key(i)`
// orders elements: higher is better, equal ones by position.

fn run(row: u32) {
    let start = params.x_offset + row * params.n;
    var last_key = 0xffffffffu;
    var last_place = 0u;
    for (var round = 0u; round < params.k; round++) {
        var best = 0u;
        var place = params.n;
        for (var i = 0u; i < params.n; i++) {
            let own = key(start + i);
            let left = (round == 0u) | (own < last_key) | ((own == last_key) & (i > last_place));
            if left & ((place == params.n) | (own > best)) {
                best = own;
                place = i;
            }
        }
        last_key = best;
        last_place = place;
        store_y(row * params.k + round, i32(place));
    }
}
