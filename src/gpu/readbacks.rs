//! Readbacks in flight. Each request is answered exactly once: with its values, or with an error if the device is lost.

use std::sync::{Arc, Mutex, PoisonError};

use super::buffers::DeviceBuffer;
use super::device::Gpu;
use crate::error::ReadError;
use crate::figures::{Count, Counters};
use crate::readback::ReadRequest;

/// Readbacks of at least this many bytes are copied out of their staging buffer by the copier, to keep the frame short.
/// There is only one, so that the values of a tensor stay in order.
const LARGE: u64 = 1 << 19;

/// A readback whose copy to a staging buffer has been submitted.
pub(crate) struct Flight {
    pub staging: Arc<DeviceBuffer>,
    pub request: ReadRequest,
    pub words: usize,
}

/// A request that is answered by whoever takes it first.
type Pending = Arc<Mutex<Option<ReadRequest>>>;

/// The readbacks that have not been answered yet. They are kept here to be answered if the device is lost.
#[derive(Default)]
pub(crate) struct Readbacks {
    pending: Vec<Pending>,
}

/// A readback whose staging buffer is being mapped.
struct Landing {
    staging: Arc<DeviceBuffer>,
    bytes: u64,
    pending: Pending,
    counters: Arc<Counters>,
}

impl Landing {
    /// Answers with the content of the staging buffer.
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
    /// Answers a request when its staging buffer is mapped.
    pub(crate) fn fly(&mut self, gpu: &Gpu, Flight { staging, request, words }: Flight) {
        let counters = gpu.counters.clone();
        counters.readbacks.add(1);
        counters.readbacks_now.add(1);
        let pending = Pending::new(Mutex::new(Some(request)));
        self.pending.push(pending.clone());
        let (buffer, bytes) = (staging.buffer.clone(), words as u64 * 4);
        let copier = (bytes >= LARGE).then(|| gpu.copier.clone());
        let landing = Landing { staging, bytes, pending, counters };
        buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| match (result, copier) {
            (Err(_), _) => landing.fail(),
            (Ok(()), None) => landing.land(),
            (Ok(()), Some(copier)) => copier.run(move || landing.land()),
        });
    }

    /// Removes the requests that have been answered.
    pub(crate) fn collect(&mut self) {
        self.pending.retain(|pending| pending.lock().unwrap_or_else(PoisonError::into_inner).is_some());
    }

    /// Answers all requests with [`ReadError::DeviceLost`].
    pub(crate) fn fail(&mut self, gpu: &Gpu) {
        for request in self.pending.drain(..).filter_map(|pending| settle(&pending, &gpu.counters)) {
            request.fail(ReadError::DeviceLost);
        }
    }
}

/// Takes the request of a readback, if it has not been answered.
fn settle(pending: &Pending, counters: &Counters) -> Option<ReadRequest> {
    let request = pending.lock().unwrap_or_else(PoisonError::into_inner).take();
    counters.readbacks_now.sub(u64::from(request.is_some()));
    request
}
