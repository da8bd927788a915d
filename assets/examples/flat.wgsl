// A texture times a tint, and nothing else: on a software renderer every instruction of a pixel counts.
#import bevy_pbr::forward_io::VertexOutput

// With an alpha of 0 it adds light.
@group(#{MATERIAL_BIND_GROUP}) @binding(0) var<uniform> tint: vec4<f32>;
// What is shown.
@group(#{MATERIAL_BIND_GROUP}) @binding(1) var image: texture_2d<f32>;
// How it is sampled.
@group(#{MATERIAL_BIND_GROUP}) @binding(2) var image_sampler: sampler;

@fragment
fn fragment(in: VertexOutput) -> @location(0) vec4<f32> {
    return textureSample(image, image_sampler, in.uv) * tint;
}
