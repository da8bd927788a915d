// An angle as a number of quarter turns and a remainder of at most an eighth turn.
struct Angle {
    quarter: u32,
    rest: f32,
}

// Word `i` of a zero word followed by the binary digits of 2/pi.
fn two_over_pi(i: u32) -> u32 {
    switch i {
        case 1u: { return 0xa2f9836eu; }
        case 2u: { return 0x4e441529u; }
        case 3u: { return 0xfc2757d1u; }
        case 4u: { return 0xf534ddc0u; }
        case 5u: { return 0xdb629599u; }
        case 6u: { return 0x3c439041u; }
        case 7u: { return 0xfe5163abu; }
        default: { return 0u; }
    }
}

// 32 of those digits, starting at position `at`.
fn digits(at: u32) -> u32 {
    let word = at >> 5u;
    let bit = at & 31u;
    let low = select(0u, two_over_pi(word + 1u) >> (32u - max(bit, 1u)), bit != 0u);
    return (two_over_pi(word) << bit) | low;
}

// The upper word of a product.
fn multiply_high(a: u32, b: u32) -> u32 {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let middle = ah * bl + ((al * bl) >> 16u);
    let carry = al * bh + (middle & 0xffffu);
    return ah * bh + (middle >> 16u) + (carry >> 16u);
}

// Subtracts whole quarter turns. Small angles use Cody and Waite (products with the split constant are exact), large
// ones Payne and Hanek: only the digits of 2/pi matter whose product with the angle is neither a whole turn nor
// negligible.
fn reduce_angle(x: f32) -> Angle {
    if (abs(x) < 65536.0) {
        let k = round(x * 0.63661977);
        let rest = ((x - k * 1.5703125) - k * 0.0004825592041015625) - k * 1.2675907950567086e-6;
        return Angle(bitcast<u32>(i32(k)), rest);
    }
    let bits = bitcast<u32>(x);
    let at = ((bits >> 23u) & 255u) - 120u;
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    let high = digits(at);
    let low = digits(at + 32u);
    let product = mantissa * high + multiply_high(mantissa, low);
    let fraction = (product << 2u) | ((mantissa * low) >> 30u);
    let quarter = (product >> 30u) + (fraction >> 31u);
    let rest = f32(bitcast<i32>(fraction)) * 3.657295198e-10;
    let negative = (bits >> 31u) != 0u;
    return Angle(select(quarter, 0u - quarter, negative), select(rest, -rest, negative));
}

// The sine of an angle plus `turn` quarter turns.
fn sine(x: f32, turn: u32) -> f32 {
    if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) {
        return from_bits(0x7fc00000u);
    }
    let angle = reduce_angle(x);
    let quarter = angle.quarter + turn;
    let r = angle.rest;
    let z = r * r;
    let s = r + r * z * ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1);
    let c = 1.0 - 0.5 * z + z * z * ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2);
    let value = select(s, c, (quarter & 1u) != 0u);
    return select(value, -value, (quarter & 2u) != 0u);
}
