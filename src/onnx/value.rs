//! Values of a graph while it is recorded: known on the host, or computed on a device.

use core::cell::OnceCell;
use core::fmt;
use std::rc::Rc;
use std::sync::Arc;

use bevy::ecs::entity::Entity;

use super::host::HostTensor;
use crate::formats::onnx::ElementType;
use crate::record::TensorValue;

/// What a host value depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The model and the shapes of its inputs. The value is part of the plan when a device needs it.
    Constant,
    /// The values of inputs too. A device gets it anew with every run, without a new plan.
    Data,
}

/// A value that the host knows.
#[derive(Clone)]
pub(crate) struct HostValue<'a> {
    pub tensor: Arc<HostTensor>,
    pub origin: Origin,
    /// The tensor of the model that has the same content.
    pub weight: Option<Entity>,
    /// The same value on the device, once an operator has needed it there. Clones share it.
    pub(super) uploaded: Rc<OnceCell<TensorValue<'a>>>,
}

impl fmt::Debug for HostValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.origin, self.tensor)
    }
}

/// A value of a graph.
#[derive(Clone, Debug)]
pub(crate) enum Value<'a> {
    /// Known on the host.
    Host(HostValue<'a>),
    /// On the device, with the element type that ONNX gives it.
    Device(TensorValue<'a>, ElementType),
    /// A list of tensors.
    Sequence(Rc<Vec<Value<'a>>>, ElementType),
    /// An optional without a value.
    Nothing,
}

impl<'a> Value<'a> {
    /// A host value that depends only on the model and on shapes.
    pub(crate) fn constant(tensor: HostTensor) -> Self {
        Self::host(Arc::new(tensor), Origin::Constant)
    }

    pub(crate) fn host(tensor: Arc<HostTensor>, origin: Origin) -> Self {
        Self::Host(HostValue { tensor, origin, weight: None, uploaded: Rc::default() })
    }

    /// A constant of the model that one of its tensors holds on the device.
    pub(crate) fn weight(tensor: Arc<HostTensor>, weight: Option<Entity>) -> Self {
        Self::Host(HostValue { tensor, origin: Origin::Constant, weight, uploaded: Rc::default() })
    }

    /// The element type. `None` for an empty optional.
    pub(crate) fn element(&self) -> Option<ElementType> {
        match self {
            Self::Host(host) => Some(host.tensor.element()),
            Self::Device(_, element) | Self::Sequence(_, element) => Some(*element),
            Self::Nothing => None,
        }
    }

    /// The value on the host, if it is known there.
    pub(crate) fn as_host(&self) -> Option<&Arc<HostTensor>> {
        match self {
            Self::Host(host) => Some(&host.tensor),
            Self::Device(..) | Self::Sequence(..) | Self::Nothing => None,
        }
    }
}
