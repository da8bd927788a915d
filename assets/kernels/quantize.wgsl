// A thread quantises two blocks of BLOCK numbers to BITS bits. The blocks share a word for their scales. Gives the same
// bits as the host code: products are rounded once, even if a compiler would contract them, because only their bits are
// used.

// Rounds a magnitude to the nearest integer, ties away from zero, as GGUF does for 8 bits.
fn rounded(magnitude: u32) -> u32 {
    let base = floor(bitcast<f32>(magnitude));
    return u32(base) + u32(magnitude >= bitcast<u32>(base + 0.5));
}

// `trunc(v + 8.5)` of a product v, with the sum rounded to 24 bits, as GGUF rounds to 4 bits. A sum that is up to half
// a unit in the last place below an integer rounds up to it.
fn level(product: u32) -> u32 {
    let magnitude = product & 0x7fffffffu;
    let base = min(floor(bitcast<f32>(magnitude)), 8.0);
    let edge = base + 0.5;
    if product == magnitude {
        return min(8u + u32(base) + u32(magnitude >= bitcast<u32>(edge - 4.7683716e-7)), 15u);
    }
    let down = u32(base) + u32(magnitude > bitcast<u32>(edge + select(0.0, 2.3841858e-7, edge < 4.0)));
    return 8u - min(down, 8u);
}

fn quant(product: u32) -> u32 {
    if BITS == 8u {
        let steps = i32(rounded(product & 0x7fffffffu));
        return bitcast<u32>(select(steps, -steps, product >> 31u == 1u)) & 255u;
    }
    return level(product);
}

fn run(group: u32) {
    var both = 0u;
    for (var half = 0u; half < 2u && group * 2u + half < params.blocks; half++) {
        let block = group * 2u + half;
        let at = params.x_offset + block * BLOCK;
        // The number of largest magnitude, the first one among equals. Bits sort like magnitudes, with NaN as the
        // largest.
        var largest = bitcast<u32>(load_x(at));
        for (var e = 1u; e < BLOCK; e++) {
            let bits = bitcast<u32>(load_x(at + e));
            largest = select(largest, bits, (bits & 0x7fffffffu) > (largest & 0x7fffffffu));
        }
        let magnitude = largest & 0x7fffffffu;
        let finite = magnitude < 0x7f800000u;
        var step = bitcast<f32>(magnitude) / 127.0;
        var sign = 0u;
        if BITS == 4u {
            step = bitcast<f32>(magnitude) * 0.125;
            sign = ~largest & 0x80000000u;
        }
        // Below 2⁻¹¹³ everything is zero.
        let inverse = select(0.0, 1.0 / step, finite & (magnitude >= 0x07000000u));
        both |= select(0x7e00u, bits_f16(step) | (sign >> 16u), finite) << (half * 16u);
        let to = quants(params.y_first + block);
        for (var word = 0u; word < WORDS; word++) {
            var quads = 0u;
            for (var byte = 0u; byte < 4u; byte++) {
                for (var e = word * 4u + byte; e < BLOCK; e += WORDS * 4u) {
                    let product = select(0u, bitcast<u32>(load_x(at + e) * inverse) ^ sign, finite);
                    quads |= quant(product) << (byte * 8u + e / (WORDS * 4u) * BITS);
                }
            }
            y[to + word] = quads;
        }
    }
    y[scales(params.y_first + group * 2u)] = both;
}
