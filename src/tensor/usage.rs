//! The memory use of a tensor, and the place of its content.

use core::time::Duration;

use bevy::reflect::Reflect;

/// The place of a tensor's content. Generated content (zeros, random numbers, …) counts as host content until the
/// tensor is first written, because the backend can generate it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Reflect)]
pub enum Residency {
    /// On the host: not used yet, evicted from the device, or owned by the CPU backend.
    Host,
    /// On the device only.
    Device,
    /// On both. The two copies are equal.
    Both,
    /// Nowhere: the device that held it was lost. The tensor can be used again once all of it is written.
    Lost,
}

/// The memory use of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Reflect)]
pub struct TensorUsage {
    /// Identifies the storage. Other tensors can share it.
    pub storage: u64,
    /// Bytes of the content.
    pub bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes on the host.
    pub host_bytes: u64,
    /// The place of the content.
    pub residency: Residency,
    /// Whether the tensor is pinned to the device.
    pub pinned: bool,
    /// When a batch on the device last used the tensor, in the app's real time. `None` if no batch has.
    pub last_used: Option<Duration>,
}
