// A texture times a tint, and nothing else, because every instruction per pixel counts on a software renderer.
#import bevy_pbr::forward_io::VertexOutput

// With an alpha of 0 it is additive.
@group(#{MATERIAL_BIND_GROUP}) @binding(0) var<uniform> tint: vec4<f32>;
// The texture to show.
@group(#{MATERIAL_BIND_GROUP}) @binding(1) var image: texture_2d<f32>;
// The sampler of the texture.
@group(#{MATERIAL_BIND_GROUP}) @binding(2) var image_sampler: sampler;

@fragment
fn fragment(in: VertexOutput) -> @location(0) vec4<f32> {
    return textureSample(image, image_sampler, in.uv) * tint;
}
