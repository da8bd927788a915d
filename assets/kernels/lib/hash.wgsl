// 32 well-mixed bits from a position and a seed. Keep in sync with the CPU twin.
fn hash(position: u32, seed: u32) -> u32 {
    var h = (position * 0x9e3779b1u) ^ (seed * 0x85ebca77u + 0xc2b2ae3du);
    h ^= h >> 16u;
    h *= 0x7feb352du;
    h ^= h >> 15u;
    h *= 0x846ca68bu;
    h ^= h >> 16u;
    return h;
}
