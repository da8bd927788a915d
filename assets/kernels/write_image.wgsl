// Copies pixels to a texture. Each pixel is one word, with red in the low byte.

// The texture to write.
@group(0) @binding(0) var shown: texture_storage_2d<rgba8unorm, write>;
// The pixels.
@group(0) @binding(1) var<storage, read_write> pixels: array<u32>;
// First row, number of rows, first word of the first row, words per row.
@group(0) @binding(2) var<uniform> rows: vec4<u32>;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= textureDimensions(shown).x || id.y >= rows.y {
        return;
    }
    let colour = unpack4x8unorm(pixels[rows.z + id.y * rows.w + id.x]);
    textureStore(shown, vec2(id.x, rows.x + id.y), colour);
}
