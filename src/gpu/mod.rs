//! What does run on the device: memory, bind groups, submission, staging.

/// A buffer on the device.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {}
