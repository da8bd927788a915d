// A divisor that neither traps nor overflows: x / 0 is x, and the lowest number divided by -1 is itself.
fn divisor_i32(a: i32, b: i32) -> i32 {
    return select(b, 1, (b == 0) | ((b == -1) & (bitcast<u32>(a) == 0x80000000u)));
}

fn divide_i32(a: i32, b: i32) -> i32 {
    return a / divisor_i32(a, b);
}

// Remainder with the sign of the dividend. x % 0 is 0.
fn remainder_i32(a: i32, b: i32) -> i32 {
    return a % divisor_i32(a, b);
}

// Remainder with the sign of the divisor. x % 0 is 0.
fn modulo_i32(a: i32, b: i32) -> i32 {
    let r = remainder_i32(a, b);
    return select(r, r + b, (r != 0) & ((r ^ b) < 0));
}
