// A thread writes the blocks that belong to one group of two. If the group begins with a word of scales (HEAD is 1), it
// preserves the scale of a neighbour that does not belong to them.

fn run(thread: u32) {
    let group = params.y_first / 2u + thread;
    let word = scales(group * 2u);
    var both = 0u;
    if HEAD == 1u {
        both = y[word];
    }
    for (var half = 0u; half < 2u; half++) {
        let to = group * 2u + half;
        if to >= params.y_first && to < params.y_first + params.blocks {
            let block = to - params.y_first + params.x_first;
            if HEAD == 1u {
                let own = (x[scales(block)] >> ((block & 1u) * 16u)) & 0xffffu;
                both = (both & ~(0xffffu << (half * 16u))) | (own << (half * 16u));
            }
            for (var i = 0u; i < WORDS; i++) {
                y[quants(to) + i] = x[quants(block) + i];
            }
        }
    }
    if HEAD == 1u {
        y[word] = both;
    }
}
