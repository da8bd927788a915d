//! Buffers that values travel to the host in, used again and again.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::buffers::{DeviceBuffer, Gpu, Purpose};
use crate::error::RunError;

/// Readbacks of one kind that are usually under way at once: a frame being recorded, one being run, one being read.
const IN_FLIGHT: usize = 4;

/// Bytes up to which buffers are made [`IN_FLIGHT`] at a time.
const SMALL: u64 = 64 << 10;

/// Idle staging buffers by power-of-two size.
pub(crate) struct Staging {
    idle: Vec<Arc<DeviceBuffer>>,
    /// Bytes of idle buffers to keep.
    cap: u64,
    sender: Sender<Arc<DeviceBuffer>>,
    receiver: Receiver<Arc<DeviceBuffer>>,
}

impl Staging {
    pub(crate) fn new(cap: u64) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self { idle: Vec::new(), cap, sender, receiver }
    }

    /// A buffer for `words`, idle or new.
    pub(crate) fn take(&mut self, gpu: &Gpu, words: usize) -> Result<Arc<DeviceBuffer>, RunError> {
        self.collect();
        let bytes = (words as u64 * 4).next_power_of_two().max(256);
        match self.idle.iter().position(|buffer| buffer.bytes == bytes) {
            Some(at) => Ok(self.idle.swap_remove(at)),
            None => {
                let words = (bytes / 4) as usize;
                // The coming frames will ask for the same before this one is back; small buffers come as many at once, so that a steady
                // app has all it needs from its first frame on.
                for _ in 1..if bytes <= SMALL { IN_FLIGHT } else { 1 } {
                    self.idle.push(gpu.allocate(Purpose::Staging, words)?);
                }
                gpu.allocate(Purpose::Staging, words)
            }
        }
    }

    /// Puts buffers back that have been read, and drops the oldest beyond the cap.
    pub(crate) fn collect(&mut self) {
        self.idle.extend(self.receiver.try_iter());
        let mut bytes: u64 = self.idle.iter().map(|buffer| buffer.bytes).sum();
        while bytes > self.cap && !self.idle.is_empty() {
            bytes -= self.idle.remove(0).bytes;
        }
    }

    /// Where a buffer goes when its values have been read, from whatever thread.
    pub(crate) fn back(&self) -> Sender<Arc<DeviceBuffer>> {
        self.sender.clone()
    }
}
