//! Failures outside of calls that could return an error.

use bevy::prelude::*;
use crossbeam_channel::{Receiver, Sender};

use super::{BindingError, ImageError, KernelError, RunError, Stall};

/// A failure outside of any call that could have returned an error. It is logged; observe it with `app.add_observer` to
/// handle it.
#[derive(Event, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TensorFault {
    /// A tensor has the name of another tensor of its model. Ops reject it until it is renamed or the other tensor is
    /// despawned.
    DuplicateName {
        /// The model.
        model: Entity,
        /// The name.
        name: String,
        /// The second tensor.
        tensor: Entity,
    },
    /// A model was to move to the GPU by [`ModelBackend`](crate::support::ModelBackend), but the app has no device. It
    /// stays on the CPU.
    NoDevice {
        /// The model.
        model: Entity,
    },
    /// A batch of recorded work failed, or a part of it.
    Run(RunError),
    /// A shader asset is not valid for its kernel. If an earlier version was valid, the kernel keeps using it.
    Kernel(KernelError),
    /// An image could not be copied to a tensor, or a tensor to an image.
    Image {
        /// The entity with [`TensorFromImage`](crate::image::TensorFromImage) or
        /// [`ImageFromTensor`](crate::image::ImageFromTensor).
        entity: Entity,
        /// The reason.
        error: ImageError,
    },
    /// A tensor could not be bound as a storage buffer, or a storage buffer could not be used as a tensor.
    Binding {
        /// The tensor's entity. `None` for a storage buffer of the app.
        entity: Option<Entity>,
        /// The reason.
        error: BindingError,
    },
    /// The tensor of a [`notify`](crate::ops::TensorCommands::notify) was despawned before its values arrived.
    Undelivered {
        /// The tensor's entity.
        tensor: Entity,
    },
    /// Recorded work has not moved on for longer than [`WatchdogSettings`](crate::reports::WatchdogSettings) allow. It
    /// is not cancelled, and is reported once until something happens again.
    Stalled(Stall),
}

impl core::fmt::Display for TensorFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::DuplicateName { model, name, tensor } => {
                write!(f, "tensor {tensor}: model {model} already has a tensor named \"{name}\"")
            }
            Self::NoDevice { model } => write!(f, "model {model} cannot move to the GPU: the app has no device"),
            Self::Run(error) => error.fmt(f),
            Self::Kernel(error) => error.fmt(f),
            Self::Image { entity, error } => write!(f, "{entity}: {error}"),
            Self::Binding { entity: Some(entity), error } => write!(f, "{entity}: {error}"),
            Self::Binding { entity: None, error } => error.fmt(f),
            Self::Undelivered { tensor } => write!(f, "tensor {tensor} was despawned before its values arrived"),
            Self::Stalled(stall) => stall.fmt(f),
        }
    }
}

pub(crate) fn log_fault(fault: On<TensorFault>) {
    match fault.event() {
        TensorFault::Undelivered { .. } => debug!("{}", *fault),
        TensorFault::Stalled(_) => warn!("{}", *fault),
        _ => error!("{}", *fault),
    }
}

/// Sends faults from other threads and worlds to the main world.
#[derive(Resource, Clone)]
pub(crate) struct FaultSender(pub Sender<TensorFault>);

/// Receives them in the main world.
#[derive(Resource)]
pub(crate) struct FaultReceiver(pub Receiver<TensorFault>);

/// Triggers an event for every fault that has arrived.
pub(crate) fn trigger_faults(receiver: Res<FaultReceiver>, mut commands: Commands) {
    for fault in receiver.0.try_iter() {
        commands.trigger(fault);
    }
}
