//! Spawning the tensors of a model.

use std::borrow::Cow;

use bevy::prelude::*;

use super::{Tensor, TensorOf};

/// Spawns the tensors of a model with one call.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// fn spawn_matcher(mut commands: Commands) -> Result {
///     let model = commands.spawn((TensorModel, Name::new("matcher"))).id();
///     let weights = commands.spawn_tensor(model, "weights", Tensor::eye(4, 4, DType::F32)?);
///     commands.entity(weights).insert(Pinned);
///     Ok(())
/// }
/// ```
pub trait TensorSpawnExt {
    /// Spawns a tensor that belongs to `model`: an entity with `(Name, Tensor, TensorOf(model))`.
    ///
    /// Names are unique within a model. A second tensor of the same name triggers
    /// [`TensorFault::DuplicateName`](crate::error::TensorFault::DuplicateName).
    fn spawn_tensor(&mut self, model: Entity, name: impl Into<Cow<'static, str>>, tensor: impl Into<Tensor>) -> Entity;
}

impl TensorSpawnExt for Commands<'_, '_> {
    fn spawn_tensor(&mut self, model: Entity, name: impl Into<Cow<'static, str>>, tensor: impl Into<Tensor>) -> Entity {
        self.spawn((Name::new(name), tensor.into(), TensorOf(model))).id()
    }
}

impl TensorSpawnExt for World {
    fn spawn_tensor(&mut self, model: Entity, name: impl Into<Cow<'static, str>>, tensor: impl Into<Tensor>) -> Entity {
        self.spawn((Name::new(name), tensor.into(), TensorOf(model))).id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::DType;
    use crate::tensor::{ModelTensors, TensorData, TensorModel};

    #[test]
    fn spawned_tensors_have_a_name_and_belong_to_their_model() {
        let mut world = World::new();
        let model = world.spawn(TensorModel).id();
        let first = world.spawn_tensor(model, "first", Tensor::zeros([2, 3], DType::F32).unwrap());
        let second =
            world.commands().spawn_tensor(model, format!("layer.{}", 2), TensorData::new(&[7u8], [1]).unwrap());
        world.flush();
        let found: Vec<Entity> = world.get::<ModelTensors>(model).unwrap().iter().collect();
        assert_eq!(found, [first, second]);
        assert_eq!(world.get::<Name>(first).unwrap().as_str(), "first");
        assert_eq!(world.get::<Name>(second).unwrap().as_str(), "layer.2");
        assert_eq!(world.get::<Tensor>(second).unwrap().dtype(), DType::U8);
    }
}
