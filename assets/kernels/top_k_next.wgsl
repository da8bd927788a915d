// Finds the next best element of a row. `key(i)` orders elements: higher is better, and equal elements are ordered by
// position.

/// The key of an element and its position. A position of `n` means none.
struct Best {
    key: u32,
    place: u32,
}

/// The best of every `stride`-th element of the row, starting at `first`, among those that come after the `last` one
/// found, or among all in the first round.
fn next_best(start: u32, first: u32, stride: u32, round: u32, last: Best) -> Best {
    var best = Best(0u, params.n);
    for (var i = first; i < params.n; i += stride) {
        let own = key(start + i);
        let left = (round == 0u) | (own < last.key) | ((own == last.key) & (i > last.place));
        if left & ((best.place == params.n) | (own > best.key)) {
            best = Best(own, i);
        }
    }
    return best;
}
