//! Materials bind new buffers.

use core::marker::PhantomData;

use bevy::asset::{Asset, AssetEventSystems, Assets};
use bevy::prelude::*;

use super::bound::{BindingSystems, BoundTensors};

/// Marks the assets of type `M` as changed when the buffer of a bound tensor is replaced, because the tensor was resized
/// or restored. Bevy then creates their bind groups again.
///
/// Add it once for every type of material that uses tensors. `M` can be any asset with `AsBindGroup`. Without it,
/// materials keep the old buffer and its content.
pub struct TensorMaterialPlugin<M>(PhantomData<fn() -> M>);

impl<M> Default for TensorMaterialPlugin<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M: Asset> Plugin for TensorMaterialPlugin<M> {
    fn build(&self, app: &mut App) {
        app.add_systems(PostUpdate, refresh_materials::<M>.after(BindingSystems).before(AssetEventSystems));
    }
}

fn refresh_materials<M: Asset>(bound: Option<Res<BoundTensors>>, materials: Option<ResMut<Assets<M>>>) {
    let (Some(bound), Some(mut materials)) = (bound, materials) else { return };
    if bound.any_rebound() {
        // Assets do not say which handles they have. This is rare enough to refresh all of them.
        materials.iter_mut().for_each(drop);
    }
}
