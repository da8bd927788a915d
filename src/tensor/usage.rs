//! What a tensor takes, and where its content is.

use core::time::Duration;

use bevy::reflect::Reflect;

/// Where a tensor's content is. Contents that a backend makes by itself (zeros, random numbers, …) count as being on the host until
/// something is written to them: they can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Reflect)]
pub enum Residency {
    /// On the host: not used yet, moved there to make room, or owned by the CPU backend.
    Host,
    /// On the device alone.
    Device,
    /// On both, equal.
    Both,
    /// On neither: the device that had it was lost. Writing the whole tensor makes it good again.
    Lost,
}

/// What one tensor takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorUsage {
    /// Identifies the storage, which other tensors may share.
    pub storage: u64,
    /// Bytes of the content, wherever it is.
    pub bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes on the host.
    pub host_bytes: u64,
    /// Where the content is.
    pub residency: Residency,
    /// Whether something keeps it on the device.
    pub pinned: bool,
    /// When a batch on the device last used it, in the app's real time; `None` if none has.
    pub last_used: Option<Duration>,
}
