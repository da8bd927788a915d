// The surface of the water: a flat grid whose vertices are lifted by the tensor `heights`. The same text serves the
// camera, the depth prepass and the shadow maps.

#import bevy_pbr::mesh_functions
#import bevy_pbr::view_transformations::position_world_to_clip
#import tensor::heights

#ifdef PREPASS_PIPELINE
#import bevy_pbr::prepass_io::{Vertex, VertexOutput}
#else
#import bevy_pbr::forward_io::{Vertex, VertexOutput}
#endif

// Colours of troughs and crests.
const DEEP = vec3<f32>(0.004, 0.06, 0.11);
const CREST = vec3<f32>(0.10, 0.55, 0.58);

@vertex
fn vertex(in: Vertex) -> VertexOutput {
    let last = vec2<f32>(f32(heights::SHAPE[1] - 1u), f32(heights::SHAPE[0] - 1u));
    let place = vec2<u32>(round(in.uv * last));
    let height = heights::at(place.y, place.x);
    let world_from_local = mesh_functions::get_world_from_local(in.instance_index);
    let local = vec4<f32>(in.position + vec3<f32>(0.0, height, 0.0), 1.0);

    var out: VertexOutput;
    out.world_position = mesh_functions::mesh_position_local_to_world(world_from_local, local);
    out.position = position_world_to_clip(out.world_position.xyz);
#ifdef UNCLIPPED_DEPTH_ORTHO_EMULATION
    out.unclipped_depth = out.position.z;
    out.position.z = min(out.position.z, 1.0);
#endif
    out.uv = in.uv;
    out.color = vec4<f32>(mix(DEEP, CREST, smoothstep(-0.35, 0.55, height)), 1.0);
#ifndef PREPASS_PIPELINE
    // The slope by central differences. Indices beyond the last one are clamped.
    let left = heights::at(place.y, max(place.x, 1u) - 1u);
    let right = heights::at(place.y, place.x + 1u);
    let above = heights::at(max(place.y, 1u) - 1u, place.x);
    let below = heights::at(place.y + 1u, place.x);
    // The grid is 20 units wide.
    let spacing = 2.0 * 20.0 / last;
    let normal = normalize(vec3<f32>((left - right) / spacing.x, 1.0, (above - below) / spacing.y));
    out.world_normal = mesh_functions::mesh_normal_local_to_world(normal, in.instance_index);
#endif
    return out;
}
