// Pixels, one word each with red in its low byte, as the colours of a texture.

// What is written.
@group(0) @binding(0) var shown: texture_storage_2d<rgba8unorm, write>;
// One word a pixel, row by row.
@group(0) @binding(1) var<storage, read_write> pixels: array<u32>;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let size = textureDimensions(shown);
    if id.x >= size.x || id.y >= size.y {
        return;
    }
    textureStore(shown, id.xy, unpack4x8unorm(pixels[id.y * size.x + id.x]));
}
