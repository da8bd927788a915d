// The best positions if many are requested, one thread per element. It counts the elements that come before its own,
// which gives its position in the output. `key(i)` orders elements: higher is better, and equal elements are ordered by
// position.

fn run(element: u32) {
    let row = element / params.n;
    let place = element % params.n;
    let start = params.x_offset + row * params.n;
    let own = key(start + place);
    var rank = 0u;
    for (var i = 0u; i < place; i++) {
        rank += u32(key(start + i) >= own);
    }
    for (var i = place + 1u; i < params.n; i++) {
        rank += u32(key(start + i) > own);
    }
    if rank < params.k {
        store_y(row * params.k + rank, i32(place));
    }
}
