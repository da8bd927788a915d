// Copies a texture to pixels. Each pixel is one word, with red in the low byte.

// Whether to encode the colours as sRGB. Set for textures that are read as linear colours.
override encode: bool = false;

// The texture to read.
@group(0) @binding(0) var source: texture_2d<f32>;
// The pixels.
@group(0) @binding(1) var<storage, read_write> pixels: array<u32>;
// First row, number of rows, first word of the first row, words per row.
@group(0) @binding(2) var<uniform> rows: vec4<u32>;

fn srgb(linear: vec3<f32>) -> vec3<f32> {
    let light = clamp(linear, vec3(0.0), vec3(1.0));
    let curve = 1.055 * pow(light, vec3(1.0 / 2.4)) - 0.055;
    return select(curve, light * 12.92, light <= vec3(0.0031308));
}

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= textureDimensions(source).x || id.y >= rows.y {
        return;
    }
    var colour = textureLoad(source, vec2(id.x, rows.x + id.y), 0);
    if encode {
        colour = vec4(srgb(colour.rgb), colour.a);
    }
    pixels[rows.z + id.y * rows.w + id.x] = pack4x8unorm(colour);
}
