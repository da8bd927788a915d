// The order by one more digit: a thread a run. `offsets` has the first place of each run's elements of each digit, so that equal digits keep
// their order. Places from `keep` on are not written.

fn run(thread: u32) {
    let row = thread / params.runs;
    let own = thread % params.runs;
    let end = min((own + 1u) * params.length, params.n);
    var places: array<u32, BINS>;
    for (var digit = 0u; digit < BINS; digit++) {
        places[digit] = load_offsets(params.offsets_offset + (row * BINS + digit) * params.runs + own);
    }
    for (var i = own * params.length; i < end; i++) {
        let element = element_at(row, i);
        let digit = digit_of(row, element);
        let place = places[digit];
        places[digit] = place + 1u;
        if place < params.keep {
            store_y(row * params.keep + place, i32(element));
        }
    }
}
