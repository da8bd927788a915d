// A float without a literal (NaN, infinity). The variable prevents constant evaluation, which compilers would reject.
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}
