//! Values on their way to the host. Each request is answered once: by the device, or by its loss.

use std::sync::{Arc, Mutex, PoisonError};

use bevy::tasks::AsyncComputeTaskPool;

use super::buffers::{DeviceBuffer, Gpu};
use crate::error::ReadError;
use crate::figures::{Count, Counters};
use crate::readback::ReadRequest;

/// Bytes from which a task copies an answer out of its staging buffer: the frame would be late.
const LARGE: u64 = 1 << 19;

/// A readback whose copy has been submitted.
pub(crate) struct Flight {
    pub staging: Arc<DeviceBuffer>,
    pub request: ReadRequest,
    pub words: usize,
}

/// A request that whoever comes first answers.
type Pending = Arc<Mutex<Option<ReadRequest>>>;

/// Readbacks that have not been answered yet, so that a lost device cannot keep their answers.
#[derive(Default)]
pub(crate) struct Readbacks {
    pending: Vec<Pending>,
    /// To the task that copies large answers, one after the other, so that those of one tensor stay in order.
    copier: Option<async_channel::Sender<Landing>>,
}

/// A readback whose staging buffer is being mapped.
struct Landing {
    staging: Arc<DeviceBuffer>,
    bytes: u64,
    pending: Pending,
    counters: Arc<Counters>,
}

impl Landing {
    /// Answers with what is in the staging buffer, which goes back to the pool.
    fn land(self) {
        if let Some(request) = settle(&self.pending, &self.counters) {
            let view = self.staging.buffer.slice(..self.bytes).get_mapped_range();
            request.answer(bytemuck::cast_slice(&view));
        }
        self.staging.buffer.unmap();
    }

    fn fail(self) {
        if let Some(request) = settle(&self.pending, &self.counters) {
            request.fail(ReadError::DeviceLost);
        }
    }
}

impl Readbacks {
    /// Answers a request when its staging buffer can be read.
    pub(crate) fn fly(&mut self, gpu: &Gpu, Flight { staging, request, words }: Flight) {
        let counters = gpu.counters.clone();
        counters.readbacks.add(1);
        counters.readbacks_now.add(1);
        let pending = Pending::new(Mutex::new(Some(request)));
        self.pending.push(pending.clone());
        let (buffer, bytes) = (staging.buffer.clone(), words as u64 * 4);
        let copier = (bytes >= LARGE).then(|| self.copier.get_or_insert_with(start_copier).clone());
        let landing = Landing { staging, bytes, pending, counters };
        buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| match (result, copier) {
            (Err(_), _) => landing.fail(),
            (Ok(()), None) => landing.land(),
            (Ok(()), Some(copier)) => {
                // The task outlives whoever sends to it.
                if let Err(error) = copier.try_send(landing) {
                    error.into_inner().land();
                }
            }
        });
    }

    /// Forgets those that have been answered.
    pub(crate) fn collect(&mut self) {
        self.pending.retain(|pending| pending.lock().unwrap_or_else(PoisonError::into_inner).is_some());
    }

    /// Answers those that the device will not.
    pub(crate) fn fail(&mut self, gpu: &Gpu) {
        for request in self.pending.drain(..).filter_map(|pending| settle(&pending, &gpu.counters)) {
            request.fail(ReadError::DeviceLost);
        }
    }
}

/// A task that copies what it is sent, for as long as there are senders.
fn start_copier() -> async_channel::Sender<Landing> {
    let (sender, receiver) = async_channel::unbounded::<Landing>();
    let copy = async move {
        while let Ok(landing) = receiver.recv().await {
            landing.land();
        }
    };
    AsyncComputeTaskPool::get().spawn(copy).detach();
    sender
}

/// The request of a readback, if it is still to be answered.
fn settle(pending: &Pending, counters: &Counters) -> Option<ReadRequest> {
    let request = pending.lock().unwrap_or_else(PoisonError::into_inner).take();
    counters.readbacks_now.sub(u64::from(request.is_some()));
    request
}
