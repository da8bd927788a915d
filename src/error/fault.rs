//! Failures that no caller is waiting for.

use bevy::prelude::*;
use crossbeam_channel::{Receiver, Sender};

use super::{ImageError, KernelError, RunError};

/// Something went wrong outside any call that could have returned an error. Observe it with `app.add_observer`; it is logged as well.
#[derive(Event, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TensorFault {
    /// A tensor was given a name that its model has already. It can be used by no op until it is renamed or the other is gone.
    DuplicateName {
        /// The model.
        model: Entity,
        /// The name.
        name: String,
        /// The tensor that came second.
        tensor: Entity,
    },
    /// A batch of recorded work, or a part of it, failed.
    Run(RunError),
    /// A shader asset does not make the kernel it is for. If an earlier version did, that one stays.
    Kernel(KernelError),
    /// An image could not be copied into a tensor, or a tensor into an image.
    Image {
        /// The entity with [`ImagePixels`](crate::ImagePixels) or [`PixelsImage`](crate::PixelsImage).
        entity: Entity,
        /// Why not.
        error: ImageError,
    },
    /// A [`notify`](crate::TensorCommands::notify) whose tensor was despawned before its values arrived.
    Undelivered {
        /// The tensor's entity.
        tensor: Entity,
    },
}

impl core::fmt::Display for TensorFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::DuplicateName { model, name, tensor } => {
                write!(f, "tensor {tensor} has the name \"{name}\", which model {model} has already")
            }
            Self::Run(error) => error.fmt(f),
            Self::Kernel(error) => error.fmt(f),
            Self::Image { entity, error } => write!(f, "{entity}: {error}"),
            Self::Undelivered { tensor } => write!(f, "tensor {tensor} was despawned before its values arrived"),
        }
    }
}

pub(crate) fn log_fault(fault: On<TensorFault>) {
    match fault.event() {
        TensorFault::Undelivered { .. } => debug!("{}", *fault),
        _ => error!("{}", *fault),
    }
}

/// Where backends report faults from other threads and worlds.
#[derive(Resource, Clone)]
pub(crate) struct FaultSender(pub Sender<TensorFault>);

/// Where the main world finds them.
#[derive(Resource)]
pub(crate) struct FaultReceiver(pub Receiver<TensorFault>);

/// Turns faults that backends reported into events.
pub(crate) fn trigger_faults(receiver: Res<FaultReceiver>, mut commands: Commands) {
    for fault in receiver.0.try_iter() {
        commands.trigger(fault);
    }
}
