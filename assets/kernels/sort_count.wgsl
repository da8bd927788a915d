// How many elements of each run have each digit: a thread a run. `element_at(row, i)` is the element at a place of the order so far,
// `digit_of(row, element)` its digit.

fn run(thread: u32) {
    let row = thread / params.runs;
    let own = thread % params.runs;
    let end = min((own + 1u) * params.length, params.n);
    var counts: array<u32, BINS>;
    for (var i = own * params.length; i < end; i++) {
        counts[digit_of(row, element_at(row, i))] += 1u;
    }
    for (var digit = 0u; digit < BINS; digit++) {
        store_y((row * BINS + digit) * params.runs + own, counts[digit]);
    }
}
