//! Values coming back to the main world: requests, receivers and the [`TensorReady`] event. Every request is answered exactly once.

use bevy::prelude::*;
use crossbeam_channel::{Receiver, Sender};

use crate::error::{ReadError, TensorFault};
use crate::ir::{DType, Shape};
use crate::tensor::{TensorData, TensorOf};

/// A tensor's values have arrived: the answer to [`TensorCommands::notify`](crate::TensorCommands::notify). Triggered on the
/// tensor's entity, and bubbles to its model.
#[derive(EntityEvent, Clone, Debug)]
#[entity_event(propagate = &'static TensorOf, auto_propagate)]
pub struct TensorReady {
    /// Where the event is: the tensor first, then its model.
    pub entity: Entity,
    /// The tensor whose values these are, also while the event bubbles.
    pub tensor: Entity,
    /// The values as of the place in the recording where `notify` was called, or why there are none.
    pub result: Result<TensorData, ReadError>,
}

/// The answer to one [`TensorCommands::read`](crate::TensorCommands::read). Drop it to cancel.
#[derive(Debug)]
pub struct TensorReceiver(async_channel::Receiver<Result<TensorData, ReadError>>);

impl TensorReceiver {
    /// The answer, if it is here. `None` means not yet; after the answer was taken, [`ReadError::Disabled`].
    pub fn try_recv(&self) -> Option<Result<TensorData, ReadError>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(async_channel::TryRecvError::Empty) => None,
            Err(async_channel::TryRecvError::Closed) => Some(Err(ReadError::Disabled)),
        }
    }

    /// Waits for the answer, in an async task.
    pub async fn recv(&self) -> Result<TensorData, ReadError> {
        self.0.recv().await.unwrap_or(Err(ReadError::Disabled))
    }
}

/// Where an answer goes.
#[derive(Debug)]
enum Reply {
    Receiver(async_channel::Sender<Result<TensorData, ReadError>>),
    Event(Entity, Sender<Notification>),
}

/// A readback waiting for its values. Dropping it unanswered answers it with an error, so none is ever silent.
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

    /// Whether nobody waits any more, so that the copy can be spared.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(&self.reply, Some(Reply::Receiver(sender)) if sender.receiver_count() == 0)
    }

    /// Answers with words as a backend packs them.
    pub(crate) fn answer(mut self, words: &[u32]) {
        let data = TensorData::from_words(self.dtype, core::mem::take(&mut self.shape), words.into());
        self.send(Ok(data));
    }

    pub(crate) fn fail(mut self, error: ReadError) {
        self.send(Err(error));
    }

    /// Takes the question back: a receiver learns that there is no answer, and no event comes of it.
    pub(crate) fn withdraw(&mut self) {
        self.reply = None;
    }

    fn send(&mut self, result: Result<TensorData, ReadError>) {
        // A receiver that is gone has cancelled; there is nobody to tell.
        match self.reply.take() {
            Some(Reply::Receiver(sender)) => drop(sender.try_send(result)),
            Some(Reply::Event(tensor, sender)) => drop(sender.send(Notification { tensor, result })),
            None => {}
        }
    }
}

impl Drop for ReadRequest {
    fn drop(&mut self) {
        self.send(Err(ReadError::Disabled));
    }
}

/// Where notifications wait for the main world.
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

/// Turns answers that have arrived into events; those of one tensor come in the order they were asked for.
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
