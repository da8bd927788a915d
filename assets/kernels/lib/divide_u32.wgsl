// x / 0 is x.
fn divide_u32(a: u32, b: u32) -> u32 {
    return a / max(b, 1u);
}

// x % 0 is 0.
fn remainder_u32(a: u32, b: u32) -> u32 {
    return a % max(b, 1u);
}
