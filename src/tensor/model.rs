//! Models: entities that own tensors. Names are unique within a model. Several models can share one storage.

use bevy::ecs::system::SystemParam;
use bevy::platform::collections::HashMap;
use bevy::prelude::*;
use smallvec::SmallVec;
use thiserror::Error;

use super::Tensor;
use crate::error::TensorFault;
use crate::support::{ModelBackend, TensorSupport};

/// Marks an entity that owns tensors, such as a network or a simulation.
#[derive(Component, Clone, Copy, Debug, Default, Reflect)]
#[reflect(Component)]
pub struct TensorModel;

/// The model that a tensor belongs to. Despawning the model despawns its tensors.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[relationship(relationship_target = ModelTensors)]
#[reflect(Component)]
pub struct TensorOf(pub Entity);

/// The tensors of a model. Maintained by [`TensorOf`].
#[derive(Component, Debug, Default, Reflect)]
#[relationship_target(relationship = TensorOf, linked_spawn)]
#[reflect(Component)]
pub struct ModelTensors(Vec<Entity>);

/// The error of looking up a tensor by name.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// The model has no tensor of this name.
    #[error("model {model} has no tensor named \"{name}\"")]
    NotFound {
        /// The model.
        model: Entity,
        /// The name.
        name: String,
    },
    /// The model has several tensors of this name.
    #[error("model {model} has {count} tensors named \"{name}\"")]
    Duplicate {
        /// The model.
        model: Entity,
        /// The name.
        name: String,
        /// The number of tensors.
        count: usize,
    },
}

/// The error of sharing a tensor between models.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The tensor was not found.
    #[error(transparent)]
    NotFound(#[from] NameError),
    /// The tensor cannot be shared with the other model.
    #[error("\"{name}\" cannot be shared with model {to}: {reason}")]
    Incompatible {
        /// The name of the tensor.
        name: String,
        /// The other model.
        to: Entity,
        /// The reason.
        reason: String,
    },
}

/// The tensors of every model by name.
#[derive(Resource, Default)]
pub(crate) struct TensorNames {
    by_model: HashMap<Entity, HashMap<String, SmallVec<[Entity; 1]>>>,
    /// Number of tensors that are not the first of their name. Usually 0, which makes the check cheap.
    conflicts: usize,
}

impl TensorNames {
    fn insert(&mut self, model: Entity, name: &str, tensor: Entity) -> bool {
        let tensors = self.by_model.entry(model).or_default().entry(name.to_owned()).or_default();
        if tensors.contains(&tensor) {
            return true;
        }
        tensors.push(tensor);
        self.conflicts += usize::from(tensors.len() > 1);
        tensors.len() == 1
    }

    fn remove(&mut self, model: Entity, name: &str, tensor: Entity) {
        let Some(names) = self.by_model.get_mut(&model) else { return };
        let Some(tensors) = names.get_mut(name) else { return };
        if let Some(at) = tensors.iter().position(|&t| t == tensor) {
            tensors.remove(at);
            self.conflicts -= usize::from(!tensors.is_empty());
            if tensors.is_empty() {
                names.remove(name);
                if names.is_empty() {
                    self.by_model.remove(&model);
                }
            }
        }
    }

    pub(crate) fn find(&self, model: Entity, name: &str) -> Result<Entity, NameError> {
        let tensors = self.by_model.get(&model).and_then(|names| names.get(name));
        match tensors.map_or(&[][..], |t| t) {
            [] => Err(NameError::NotFound { model, name: name.to_owned() }),
            [tensor] => Ok(*tensor),
            many => Err(NameError::Duplicate { model, name: name.to_owned(), count: many.len() }),
        }
    }

    /// Whether another tensor had the name before `tensor`.
    pub(crate) fn is_duplicate(&self, model: Entity, name: &str, tensor: Entity) -> bool {
        self.conflicts > 0
            && self
                .by_model
                .get(&model)
                .and_then(|names| names.get(name))
                .is_some_and(|tensors| tensors.iter().skip(1).any(|&t| t == tensor))
    }
}

/// Looks up tensors by name and shares them between models.
#[derive(SystemParam)]
pub struct TensorModels<'w, 's> {
    commands: Commands<'w, 's>,
    names: Res<'w, TensorNames>,
    tensors: Query<'w, 's, &'static Tensor>,
    models: Query<'w, 's, Option<&'static ModelBackend>>,
}

impl TensorModels<'_, '_> {
    /// Returns the tensor with this name.
    pub fn find(&self, model: Entity, name: &str) -> Result<Entity, NameError> {
        self.names.find(model, name)
    }

    /// The tensors of every model by name.
    pub(crate) fn names(&self) -> &TensorNames {
        &self.names
    }

    /// Spawns a tensor of the same name and storage in model `to`. It needs no extra memory, both tensors see each
    /// other's writes, and the storage lives until the last of them is despawned.
    pub fn share(&mut self, from: Entity, name: &str, to: Entity) -> Result<Entity, ShareError> {
        self.share_view(from, name, to, name, |tensor| Ok(tensor.clone()))
    }

    /// Spawns a view of the tensor in model `to`, with a name of its own.
    pub fn share_view(
        &mut self,
        from: Entity,
        name: &str,
        to: Entity,
        new_name: &str,
        view: impl FnOnce(&Tensor) -> Result<Tensor, crate::error::TensorError>,
    ) -> Result<Entity, ShareError> {
        let source = self.names.find(from, name)?;
        let incompatible = |reason: String| ShareError::Incompatible { name: name.to_owned(), to, reason };
        let tensor =
            self.tensors.get(source).map_err(|_| NameError::NotFound { model: from, name: name.to_owned() })?;
        let wish = self
            .models
            .get(to)
            .map_err(|_| incompatible("the model does not exist".to_owned()))?
            .map(|backend| backend.0);
        if let (Some(wish), Some(home)) = (wish, tensor.storage().decided_home())
            && wish != home
        {
            return Err(incompatible(format!("it is on the {home} but the model is on the {wish}")));
        }
        if self.names.find(to, new_name).is_ok() {
            return Err(incompatible(format!("the model already has a tensor named \"{new_name}\"")));
        }
        let tensor = view(tensor).map_err(|error| incompatible(error.to_string()))?;
        Ok(self.commands.spawn((Name::new(new_name.to_owned()), tensor, TensorOf(to))).id())
    }
}

/// Registers the types of this room, and keeps [`TensorNames`] up to date when names or owners change.
pub(crate) fn plugin(app: &mut App) {
    app.init_resource::<TensorNames>()
        .register_type::<Tensor>()
        .register_type::<TensorModel>()
        .register_type::<TensorOf>()
        .register_type::<ModelTensors>()
        .register_type::<ModelBackend>()
        .register_type::<TensorSupport>()
        .add_observer(
            |insert: On<Insert, TensorOf>,
             query: Query<(&TensorOf, &Name)>,
             names: ResMut<TensorNames>,
             commands: Commands| {
                add_name(insert.entity, query, names, commands);
            },
        )
        .add_observer(
            |insert: On<Insert, Name>,
             query: Query<(&TensorOf, &Name)>,
             names: ResMut<TensorNames>,
             commands: Commands| {
                add_name(insert.entity, query, names, commands);
            },
        )
        .add_observer(|gone: On<Discard, TensorOf>, query: Query<(&TensorOf, &Name)>, names: ResMut<TensorNames>| {
            remove_name(gone.entity, query, names);
        })
        .add_observer(|gone: On<Discard, Name>, query: Query<(&TensorOf, &Name)>, names: ResMut<TensorNames>| {
            remove_name(gone.entity, query, names);
        });
}

fn add_name(entity: Entity, query: Query<(&TensorOf, &Name)>, mut names: ResMut<TensorNames>, mut commands: Commands) {
    if let Ok((of, name)) = query.get(entity)
        && !names.insert(of.0, name, entity)
    {
        commands.trigger(TensorFault::DuplicateName { model: of.0, name: name.to_string(), tensor: entity });
    }
}

fn remove_name(entity: Entity, query: Query<(&TensorOf, &Name)>, mut names: ResMut<TensorNames>) {
    if let Ok((of, name)) = query.get(entity) {
        names.remove(of.0, name, entity);
    }
}

#[cfg(test)]
mod tests {
    use bevy::ecs::reflect::{ReflectComponent, ReflectResource};
    use bevy::reflect::TypePath;

    use super::*;

    #[test]
    fn a_world_inspector_finds_the_components_and_resources() {
        let mut app = App::new();
        app.add_plugins(plugin);
        let registry = app.world().resource::<AppTypeRegistry>().read();
        for path in [
            Tensor::type_path(),
            TensorModel::type_path(),
            TensorOf::type_path(),
            ModelTensors::type_path(),
            ModelBackend::type_path(),
        ] {
            let registration = registry.get_with_type_path(path);
            assert!(registration.is_some_and(|found| found.data::<ReflectComponent>().is_some()), "{path}");
        }
        let support = registry.get_with_type_path(TensorSupport::type_path());
        assert!(support.is_some_and(|found| found.data::<ReflectResource>().is_some()));
    }

    #[test]
    fn a_reflected_tensor_shows_its_shape_and_type() {
        let tensor = Tensor::zeros([2, 3], crate::ir::DType::F16).unwrap();
        let text = format!("{:?}", tensor.as_partial_reflect());
        assert!(text.starts_with("Tensor { shape: [2, 3], dtype: F16"), "{text}");
    }
}
