//! Values on their way to the host. Each request is answered once: by the device, or by its loss.

use std::sync::{Arc, Mutex, PoisonError};

use super::buffers::{DeviceBuffer, Gpu};
use crate::diagnostics::{Count, Counters};
use crate::error::ReadError;
use crate::readback::ReadRequest;

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
}

impl Readbacks {
    /// Answers a request when its staging buffer can be read.
    pub(crate) fn fly(&mut self, gpu: &Gpu, Flight { staging, request, words }: Flight) {
        let counters = gpu.counters.clone();
        counters.readbacks.add(1);
        counters.readbacks_now.add(1);
        let pending = Pending::new(Mutex::new(Some(request)));
        self.pending.push(pending.clone());
        let buffer = staging.buffer.clone();
        buffer.slice(..words as u64 * 4).map_async(wgpu::MapMode::Read, move |result| {
            let request = settle(&pending, &counters);
            if result.is_ok() {
                let view = staging.buffer.slice(..words as u64 * 4).get_mapped_range();
                if let Some(request) = request {
                    request.answer(bytemuck::cast_slice(&view));
                }
                drop(view);
                // Back to the pool.
                staging.buffer.unmap();
            } else if let Some(request) = request {
                request.fail(ReadError::DeviceLost);
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

/// The request of a readback, if it is still to be answered.
fn settle(pending: &Pending, counters: &Counters) -> Option<ReadRequest> {
    let request = pending.lock().unwrap_or_else(PoisonError::into_inner).take();
    counters.readbacks_now.sub(u64::from(request.is_some()));
    request
}
