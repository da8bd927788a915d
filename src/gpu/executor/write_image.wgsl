// Pixels, one word each with red in its low byte, as the colours of a texture.

// What is written.
@group(0) @binding(0) var shown: texture_storage_2d<rgba8unorm, write>;
// The pixels.
@group(0) @binding(1) var<storage, read_write> pixels: array<u32>;
// The first row to copy and how many; the first word of it, and words from row to row.
@group(0) @binding(2) var<uniform> rows: vec4<u32>;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= textureDimensions(shown).x || id.y >= rows.y {
        return;
    }
    let colour = unpack4x8unorm(pixels[rows.z + id.y * rows.w + id.x]);
    textureStore(shown, vec2(id.x, rows.x + id.y), colour);
}
