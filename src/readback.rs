//! Reading values back to the main world: requests, receivers and the [`TensorReady`] event. Every request gets exactly
//! one answer.

use std::sync::Arc;

use bevy::ecs::event::{Trigger, trigger_entity_internal};
use bevy::ecs::observer::{CachedObservers, TriggerContext};
use bevy::ecs::world::DeferredWorld;
use bevy::prelude::*;
use crossbeam_channel::{Receiver, Sender};

use crate::error::{ReadError, TensorFault};
use crate::ir::{DType, Shape};
use crate::tensor::{HeldWords, Storage, TensorData, TensorOf};

/// The values of a tensor have arrived, as requested with
/// [`TensorCommands::notify`](crate::ops::TensorCommands::notify).
///
/// The event is triggered on the tensor and bubbles to its model. Every observer runs once per answer: a global
/// observer (`app.add_observer`) when the event is on the tensor, an observer of the tensor, and an observer of the
/// model.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// fn show(ready: On<TensorReady>) -> Result {
///     println!("{}:\n{}", ready.tensor, ready.result.clone()?);
///     Ok(())
/// }
/// # App::new().add_observer(show);
/// ```
#[derive(EntityEvent, Clone, Debug)]
#[entity_event(trigger = TensorReadyTrigger)]
pub struct TensorReady {
    /// The entity that the event is on: first the tensor, then its model.
    pub entity: Entity,
    /// The tensor that the values are from. It stays the same while the event bubbles.
    pub tensor: Entity,
    /// The values at the point of the recording where `notify` was called, or the reason why there are none.
    pub result: Result<TensorData, ReadError>,
}

/// Decides which observers of a [`TensorReady`] run, in which order.
///
/// Bevy's own propagation runs global observers once per entity on the path. This one runs them once per event.
#[derive(Debug)]
pub struct TensorReadyTrigger {
    /// Whether the event bubbles from the tensor to its model. An observer of the tensor can stop it with
    /// `ready.trigger_mut().propagate = false`.
    pub propagate: bool,
}

impl Default for TensorReadyTrigger {
    fn default() -> Self {
        Self { propagate: true }
    }
}

// SAFETY: implemented for `TensorReady` alone, whose `Event::Trigger` is this type. `trigger` upholds what its caller
// promised.
unsafe impl Trigger<TensorReady> for TensorReadyTrigger {
    unsafe fn trigger(
        &mut self,
        mut world: DeferredWorld,
        observers: &CachedObservers,
        context: &TriggerContext,
        event: &mut TensorReady,
    ) {
        let tensor = event.entity;
        let mut path = vec![tensor];
        // SAFETY: `observers` are of this world and event type and `context` has the key of that type, as the caller
        // promised. The two pointers are to the event and to its trigger.
        unsafe {
            trigger_entity_internal(world.reborrow(), observers, event.into(), self.into(), tensor, context);
        }
        while self.propagate
            && let Some(&TensorOf(owner)) = world.get::<TensorOf>(event.entity)
            && !path.contains(&owner)
        {
            event.entity = owner;
            for (&observer, runner) in observers.entity_observers().get(&owner).into_iter().flatten() {
                // An observer can watch several entities.
                let ran =
                    |entity| observers.entity_observers().get(entity).is_some_and(|map| map.contains_key(&observer));
                if path.iter().any(ran) {
                    continue;
                }
                // SAFETY: as above; the runner is that of an observer of this event type.
                unsafe { runner(world.reborrow(), observer, context, event.into(), self.into()) };
            }
            path.push(owner);
        }
    }
}

/// Receives the answer to one [`TensorCommands::read`](crate::ops::TensorCommands::read). Dropping it cancels the read.
#[derive(Debug)]
pub struct TensorReceiver(async_channel::Receiver<Result<TensorData, ReadError>>);

impl TensorReceiver {
    /// Returns the answer if it has arrived, and `None` if it has not. Once the answer was taken, returns
    /// [`ReadError::Disabled`].
    pub fn try_recv(&self) -> Option<Result<TensorData, ReadError>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(async_channel::TryRecvError::Empty) => None,
            Err(async_channel::TryRecvError::Closed) => Some(Err(ReadError::Disabled)),
        }
    }

    /// Waits for the answer. For async tasks.
    pub async fn recv(&self) -> Result<TensorData, ReadError> {
        self.0.recv().await.unwrap_or(Err(ReadError::Disabled))
    }
}

/// The destination of an answer.
#[derive(Debug)]
enum Reply {
    Receiver(async_channel::Sender<Result<TensorData, ReadError>>),
    Event(Entity, Sender<Notification>),
    /// The values become the content of a storage on the other backend.
    Storage(Arc<Storage>),
}

/// A readback that waits for its values. Dropping it without an answer sends an error.
#[derive(Debug)]
pub(crate) struct ReadRequest {
    dtype: DType,
    shape: Shape,
    reply: Option<Reply>,
}

#[derive(Debug)]
pub(crate) struct Notification {
    tensor: Entity,
    result: Result<TensorData, ReadError>,
}

impl ReadRequest {
    pub(crate) fn receiver(dtype: DType, shape: Shape) -> (Self, TensorReceiver) {
        let (sender, receiver) = async_channel::bounded(1);
        (Self { dtype, shape, reply: Some(Reply::Receiver(sender)) }, TensorReceiver(receiver))
    }

    pub(crate) fn event(dtype: DType, shape: Shape, tensor: Entity, channel: &NotificationChannel) -> Self {
        Self { dtype, shape, reply: Some(Reply::Event(tensor, channel.sender.clone())) }
    }

    /// A request whose values become the content of a storage on the other backend.
    pub(crate) fn crossing(storage: Arc<Storage>, shape: Shape) -> Self {
        Self { dtype: storage.dtype(), shape, reply: Some(Reply::Storage(storage)) }
    }

    /// The storage that the values become the content of.
    pub(crate) fn destination(&self) -> Option<&Arc<Storage>> {
        match &self.reply {
            Some(Reply::Storage(storage)) => Some(storage),
            Some(Reply::Receiver(_) | Reply::Event(..)) | None => None,
        }
    }

    /// Whether the receiver was dropped, so that no copy is needed.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(&self.reply, Some(Reply::Receiver(sender)) if sender.receiver_count() == 0)
    }

    /// Sends the values, packed in words as backends store them.
    pub(crate) fn answer(mut self, words: &[u32]) {
        let data = TensorData::from_words(self.dtype, core::mem::take(&mut self.shape), words.into());
        self.send(Ok(data));
    }

    /// Sends values that stay where they are until the receiver drops them.
    pub(crate) fn answer_held(mut self, words: Arc<dyn HeldWords>) {
        let data = TensorData::from_held(self.dtype, core::mem::take(&mut self.shape), words);
        self.send(Ok(data));
    }

    pub(crate) fn fail(mut self, error: ReadError) {
        self.send(Err(error));
    }

    /// Answers with [`ReadError::Disabled`].
    pub(crate) fn abandon(&mut self) {
        self.send(Err(ReadError::Disabled));
    }

    /// Cancels the request. A receiver gets [`ReadError::Disabled`]; no event is triggered.
    pub(crate) fn withdraw(&mut self) {
        self.reply = None;
    }

    fn send(&mut self, result: Result<TensorData, ReadError>) {
        // Sending fails only if the receiver was dropped, which cancels the request.
        match self.reply.take() {
            Some(Reply::Receiver(sender)) => drop(sender.try_send(result)),
            Some(Reply::Event(tensor, sender)) => drop(sender.send(Notification { tensor, result })),
            Some(Reply::Storage(storage)) => storage.land(result.ok().map(|data| data.shared_words())),
            None => {}
        }
    }
}

impl Drop for ReadRequest {
    fn drop(&mut self) {
        self.send(Err(ReadError::Disabled));
    }
}

/// Carries notifications from the backends to the main world.
#[derive(Resource)]
pub(crate) struct NotificationChannel {
    sender: Sender<Notification>,
    receiver: Receiver<Notification>,
}

impl Default for NotificationChannel {
    fn default() -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self { sender, receiver }
    }
}

/// Triggers an event for every answer that has arrived. The events of one tensor are in the order of their requests.
pub(crate) fn trigger_ready(channel: Res<NotificationChannel>, mut commands: Commands) {
    for Notification { tensor, result } in channel.receiver.try_iter() {
        commands.queue(move |world: &mut World| {
            if world.get_entity(tensor).is_ok() {
                world.trigger(TensorReady { entity: tensor, tensor, result });
            } else {
                world.trigger(TensorFault::Undelivered { tensor });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which observer ran, and the entity that the event was on.
    #[derive(Resource, Default)]
    struct Log(Vec<(&'static str, Entity)>);

    fn log(who: &'static str) -> impl Fn(On<TensorReady>, ResMut<Log>) + Clone + Send + Sync + 'static {
        move |ready: On<TensorReady>, mut log: ResMut<Log>| log.0.push((who, ready.entity))
    }

    #[test]
    fn every_observer_sees_an_answer_once() {
        let mut world = World::new();
        world.init_resource::<Log>();
        world.add_observer(log("global"));
        let model = world.spawn_empty().observe(log("model")).id();
        let tensor = world.spawn(TensorOf(model)).observe(log("tensor")).id();
        world.spawn(Observer::new(log("both")).with_entities([tensor, model]));
        world.trigger(TensorReady { entity: tensor, tensor, result: Err(ReadError::DeviceLost) });
        let mut seen = core::mem::take(&mut world.resource_mut::<Log>().0);
        assert_eq!((seen[0].0, seen[3].0), ("global", "model"), "the model comes last");
        seen.sort();
        assert_eq!(seen, [("both", tensor), ("global", tensor), ("model", model), ("tensor", tensor)]);
    }

    /// The reason for [`TensorReadyTrigger`]: fails if Bevy changes this, and the trigger can then be removed.
    #[test]
    fn propagation_of_bevy_runs_a_global_observer_once_per_entity() {
        #[derive(EntityEvent)]
        #[entity_event(propagate = &'static TensorOf, auto_propagate)]
        struct Propagated(Entity);

        let mut world = World::new();
        world.init_resource::<Log>();
        world.add_observer(|event: On<Propagated>, mut log: ResMut<Log>| log.0.push(("global", event.0)));
        let model = world.spawn_empty().id();
        let tensor = world.spawn(TensorOf(model)).id();
        world.trigger(Propagated(tensor));
        assert_eq!(world.resource::<Log>().0, [("global", tensor), ("global", model)]);
    }

    #[test]
    fn an_observer_of_the_tensor_can_stop_the_event() {
        let mut world = World::new();
        world.init_resource::<Log>();
        let model = world.spawn_empty().observe(log("model")).id();
        let stop = |mut ready: On<TensorReady>| ready.trigger_mut().propagate = false;
        let tensor = world.spawn(TensorOf(model)).observe(log("tensor")).observe(stop).id();
        world.trigger(TensorReady { entity: tensor, tensor, result: Err(ReadError::DeviceLost) });
        assert_eq!(world.resource::<Log>().0, [("tensor", tensor)]);
    }
}
