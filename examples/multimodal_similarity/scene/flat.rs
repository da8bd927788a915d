//! The only material of the scene: a texture times a tint. Bevy's standard material would cost a software renderer ten
//! times as much.

use bevy::prelude::*;
use bevy::render::render_resource::AsBindGroup;
use bevy::shader::ShaderRef;

/// A texture times a tint, unlit.
#[derive(Asset, AsBindGroup, TypePath, Clone)]
pub struct Flat {
    #[uniform(0)]
    pub tint: LinearRgba,
    #[texture(1)]
    #[sampler(2)]
    pub image: Handle<Image>,
    pub mode: AlphaMode,
}

impl Material for Flat {
    fn fragment_shader() -> ShaderRef {
        "examples/flat.wgsl".into()
    }

    fn alpha_mode(&self) -> AlphaMode {
        self.mode
    }

    fn enable_prepass() -> bool {
        false
    }

    fn enable_shadows() -> bool {
        false
    }
}

pub fn plugin(app: &mut App) {
    app.add_plugins(MaterialPlugin::<Flat>::default());
}
