//! The picture of a mesh whose vertices a tensor moves equals that of a mesh built on the CPU.

use bevy::asset::uuid_handle;
use bevy::camera::RenderTarget;
use bevy::core_pipeline::tonemapping::Tonemapping;
use bevy::mesh::{Indices, PrimitiveTopology};
use bevy::prelude::*;
use bevy::render::error_handler::{ErrorType, RenderErrorHandler, RenderErrorPolicy};
use bevy::render::render_resource::{AsBindGroup, TextureFormat};
use bevy::render::renderer::RenderDevice;
use bevy::render::settings::RenderCreation;
use bevy::render::storage::ShaderBuffer;
use bevy::shader::ShaderRef;
use bevy_tensor_compute::PipelineSettings;
use bevy_tensor_compute::memory::HostCopies;
use bevy_tensor_compute::prelude::*;

use super::{bind, bindings};
use crate::common::Rig;

const SHADER: Handle<Shader> = uuid_handle!("0a3c1c53-3d0e-4f5e-9a57-8d1f5d1b2e77");
const SIDE: u32 = 64;

/// Moves vertices by a tensor and colours them by place and height.
#[derive(Asset, AsBindGroup, TypePath, Clone)]
struct Heights {
    #[storage(0, read_only)]
    heights: Handle<ShaderBuffer>,
}

impl Material for Heights {
    fn vertex_shader() -> ShaderRef {
        SHADER.into()
    }

    fn fragment_shader() -> ShaderRef {
        SHADER.into()
    }
}

const WGSL: &str = "
#import bevy_pbr::mesh_functions
#import tensor::heights

struct Vertex {
    @builtin(instance_index) instance_index: u32,
    @location(0) position: vec3<f32>,
    @location(2) uv: vec2<f32>,
}

struct Moved {
    @builtin(position) clip: vec4<f32>,
    @location(0) colour: vec3<f32>,
}

@vertex
fn vertex(vertex: Vertex) -> Moved {
    let last = vec2<f32>(f32(heights::SHAPE[1] - 1u), f32(heights::SHAPE[0] - 1u));
    let place = vec2<u32>(round(vertex.uv * last));
    let height = heights::at(place.y, place.x);
    let local = vec4(vertex.position + vec3(0.0, height, 0.0), 1.0);
    let world = mesh_functions::get_world_from_local(vertex.instance_index);
    var moved: Moved;
    moved.clip = mesh_functions::mesh_position_local_to_clip(world, local);
    moved.colour = vec3(vertex.uv, 0.5 + height);
    return moved;
}

@fragment
fn fragment(moved: Moved) -> @location(0) vec4<f32> {
    return vec4(moved.colour, 1.0);
}
";

fn height(row: usize, column: usize, side: usize) -> f32 {
    let (x, y) = (column as f32 / (side - 1) as f32, row as f32 / (side - 1) as f32);
    0.4 * (x * 5.0).sin() * (y * 4.0).cos()
}

fn heights(side: usize) -> Vec<f32> {
    (0..side * side).map(|i| height(i / side, i % side, side)).collect()
}

/// A grid in the plane, or with heights and colours as the shader would make them.
fn grid(side: usize, raised: bool) -> Mesh {
    let place = |i: usize| (i / side, i % side);
    let uv = |i: usize| {
        let (row, column) = place(i);
        [column as f32 / (side - 1) as f32, row as f32 / (side - 1) as f32]
    };
    let lift = |i: usize| if raised { height(place(i).0, place(i).1, side) } else { 0.0 };
    let all = || 0..side * side;
    let positions: Vec<[f32; 3]> = all().map(|i| [uv(i)[0] * 2.0 - 1.0, lift(i), uv(i)[1] * 2.0 - 1.0]).collect();
    let colours: Vec<[f32; 4]> = all().map(|i| [uv(i)[0], uv(i)[1], 0.5 + lift(i), 1.0]).collect();
    let mut indices = Vec::new();
    for row in 0..side as u32 - 1 {
        for column in 0..side as u32 - 1 {
            let at = row * side as u32 + column;
            let below = at + side as u32;
            indices.extend([at, below, at + 1, at + 1, below, below + 1]);
        }
    }
    let mesh = Mesh::new(PrimitiveTopology::TriangleList, default())
        .with_inserted_attribute(Mesh::ATTRIBUTE_POSITION, positions)
        .with_inserted_attribute(Mesh::ATTRIBUTE_NORMAL, all().map(|_| [0.0, 1.0, 0.0]).collect::<Vec<_>>())
        .with_inserted_attribute(Mesh::ATTRIBUTE_UV_0, all().map(uv).collect::<Vec<_>>())
        .with_inserted_indices(Indices::U32(indices));
    if raised { mesh.with_inserted_attribute(Mesh::ATTRIBUTE_COLOR, colours) } else { mesh }
}

/// A camera that looks at the grid, and the tensor with its picture.
fn stage(memory: MemorySettings) -> (Rig, Entity) {
    let pipelines = PipelineSettings { synchronous: true, ..default() };
    let mut rig = Rig::with_plugins(Backend::Gpu, TensorComputePlugin { pipelines, memory, ..default() }, |app| {
        app.add_plugins((MaterialPlugin::<Heights>::default(), TensorMaterialPlugin::<Heights>::default()));
    });
    let world = rig.app.world_mut();
    let _ = world.resource_mut::<Assets<Shader>>().insert(SHADER.id(), Shader::from_wgsl(WGSL, "heights.wgsl"));
    let target = Image::new_target_texture(SIDE, SIDE, TextureFormat::Rgba8UnormSrgb, None);
    let image = world.resource_mut::<Assets<Image>>().add(target);
    world.spawn((
        Camera3d::default(),
        RenderTarget::Image(image.clone().into()),
        Tonemapping::None,
        Msaa::Off,
        Transform::from_xyz(0.6, 1.8, 2.4).looking_at(Vec3::ZERO, Vec3::Y),
    ));
    let picture = world.spawn(TensorFromImage { image, live: true }).id();
    (rig, picture)
}

/// The picture, once it is the same in two frames and not empty.
fn picture(rig: &mut Rig, tensor: Entity) -> Vec<u8> {
    let mut last: Vec<u8> = Vec::new();
    for _ in 0..60 {
        rig.app.update();
        if rig.app.world().get::<Tensor>(tensor).is_none() {
            continue;
        }
        let now = rig.read(tensor).as_slice::<u8>().unwrap().to_vec();
        let differ = now.chunks(4).filter(|pixel| pixel[..3] != now[..3]).count();
        if now == last && differ > 500 {
            return now;
        }
        last = now;
    }
    panic!("no picture; faults: {:?}", rig.faults());
}

/// The picture of the grid whose vertices were moved on the CPU.
fn built_on_the_cpu(side: usize) -> Vec<u8> {
    let (mut rig, tensor) = stage(MemorySettings::default());
    let world = rig.app.world_mut();
    let mesh = world.resource_mut::<Assets<Mesh>>().add(grid(side, true));
    let material = StandardMaterial { unlit: true, cull_mode: None, ..default() };
    let material = world.resource_mut::<Assets<StandardMaterial>>().add(material);
    world.spawn((Mesh3d(mesh), MeshMaterial3d(material)));
    picture(&mut rig, tensor)
}

/// Spawns the grid whose vertices a tensor moves. Returns the tensor's entity and the grid's.
fn spawn_moved(rig: &mut Rig, side: usize) -> (Entity, Entity) {
    let tensor = rig.spawn(Tensor::from_slice(&heights(side), [side, side]).unwrap());
    let heights = bind(rig, tensor, BindingSettings::new("heights"));
    let world = rig.app.world_mut();
    let mesh = world.resource_mut::<Assets<Mesh>>().add(grid(side, false));
    let material = world.resource_mut::<Assets<Heights>>().add(Heights { heights });
    let shown = world.spawn((Mesh3d(mesh), MeshMaterial3d(material), bevy::camera::visibility::NoFrustumCulling)).id();
    (tensor, shown)
}

#[track_caller]
fn assert_same(actual: &[u8], expected: &[u8], what: &str) {
    let wrong = actual.iter().zip(expected).filter(|(a, e)| a.abs_diff(**e) > 2).count();
    assert!(wrong == 0 && actual.len() == expected.len(), "{what}: {wrong} of {} bytes differ", expected.len());
}

#[test]
fn a_mesh_moved_by_a_tensor_looks_like_one_built_on_the_cpu_also_after_a_resize() {
    let (small, large) = (built_on_the_cpu(17), built_on_the_cpu(33));
    let (mut rig, tensor) = stage(MemorySettings::default());
    let (bound, shown) = spawn_moved(&mut rig, 17);
    assert_same(&picture(&mut rig, tensor), &small, "17 by 17");
    let before = rig.figures();
    for _ in 0..10 {
        rig.app.update();
    }
    assert_eq!(rig.figures().uploaded_bytes, before.uploaded_bytes);
    // Another shape: another buffer, another module and another mesh.
    let mesh = rig.app.world_mut().resource_mut::<Assets<Mesh>>().add(grid(33, false));
    rig.app.world_mut().entity_mut(shown).insert(Mesh3d(mesh));
    rig.app.world_mut().entity_mut(bound).insert(Tensor::from_slice(&heights(33), [33, 33]).unwrap());
    for _ in 0..4 {
        rig.app.update();
    }
    assert_same(&picture(&mut rig, tensor), &large, "33 by 33");
    assert!(rig.faults().is_empty(), "{:?}", rig.faults());
}

#[test]
#[ignore = "fails in some runs: the light clustering of Bevy 0.19.1 panics when it maps a buffer of the lost device"]
fn after_a_lost_device_materials_bind_the_new_buffer() {
    let expected = built_on_the_cpu(17);
    let (mut rig, tensor) = stage(MemorySettings { host_copies: HostCopies::Keep, ..default() });
    rig.app.insert_resource(RenderErrorHandler(|error, _, _| match error.ty {
        ErrorType::DeviceLost => RenderErrorPolicy::Recover(RenderCreation::default()),
        _ => RenderErrorPolicy::Ignore,
    }));
    let (bound, _) = spawn_moved(&mut rig, 17);
    assert_same(&picture(&mut rig, tensor), &expected, "before");
    rig.app.world().resource::<RenderDevice>().wgpu_device().destroy();
    rig.step_until(|app| app.world().resource::<TensorDiagnostics>().figures().devices == 2);
    for _ in 0..4 {
        rig.app.update();
    }
    // The picture is only on the device. It is copied again in every frame.
    assert_same(&picture(&mut rig, tensor), &expected, "after");
    let state = bindings(&mut rig, |bindings| bindings.state(bound));
    assert_eq!(state, Ok(bevy_tensor_compute::binding::BindingState::Shared));
}
