// By repeated squaring. Wraps.
fn power_u32(a: u32, b: u32) -> u32 {
    var r = 1u;
    var base = a;
    var left = b;
    while (left != 0u) {
        if ((left & 1u) == 1u) {
            r = r * base;
        }
        base = base * base;
        left = left >> 1u;
    }
    return r;
}
