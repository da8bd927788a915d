// Wraps. With a negative exponent the result is 0, except for the bases 1 and -1.
fn power_i32(a: i32, b: i32) -> i32 {
    if (b < 0) {
        let odd = (b & 1) == 1;
        return select(select(0, select(1, -1, odd), a == -1), 1, a == 1);
    }
    return bitcast<i32>(power_u32(bitcast<u32>(a), bitcast<u32>(b)));
}
