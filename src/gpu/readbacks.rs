//! Readbacks in flight. Each request is answered exactly once: with its values, or with an error if the device is lost.

use std::sync::{Arc, Mutex, PoisonError};

use super::buffers::DeviceBuffer;
use super::device::Gpu;
use crate::error::ReadError;
use crate::figures::{Count, Counters};
use crate::readback::ReadRequest;
#[cfg(not(target_arch = "wasm32"))]
use crate::tensor::HeldWords;

/// Readbacks of at least this many bytes are not copied out of their staging buffer during the frame, to keep it short.
const LARGE: u64 = 1 << 19;

/// How the values of a readback leave its staging buffer. Equal sizes leave in the same way, so the values of a tensor
/// stay in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Copied when the buffer is mapped.
    Copied,
    /// Copied by the copier. There is only one.
    CopiedLater,
    /// Not at all: the answer is the mapped buffer, which returns to the pool when the answer is dropped.
    Held,
}

impl Way {
    fn of(bytes: u64, staging: &DeviceBuffer, request: &ReadRequest) -> Self {
        // A buffer that is mostly unused would waste memory for as long as the answer is kept. In browsers, views of
        // mapped buffers belong to one thread.
        let tight = bytes * 5 >= staging.bytes * 4;
        let held = tight && request.destination().is_none() && !cfg!(target_arch = "wasm32");
        match bytes >= LARGE {
            false => Self::Copied,
            true if held => Self::Held,
            true => Self::CopiedLater,
        }
    }
}

/// A mapped staging buffer whose content is an answer.
#[cfg(not(target_arch = "wasm32"))]
struct Mapped {
    /// `None` once it is unmapped.
    view: Option<wgpu::BufferView>,
    staging: Arc<DeviceBuffer>,
}

#[cfg(not(target_arch = "wasm32"))]
impl HeldWords for Mapped {
    fn words(&self) -> &[u32] {
        // Mapped ranges are aligned to at least 8 bytes.
        self.view.as_ref().and_then(|view| bytemuck::try_cast_slice(view).ok()).unwrap_or_default()
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Drop for Mapped {
    fn drop(&mut self) {
        // A buffer cannot be unmapped while there is a view of it.
        self.view = None;
        self.staging.buffer.unmap();
    }
}

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
    /// Answers with the staging buffer itself.
    #[cfg(not(target_arch = "wasm32"))]
    fn hold(self) {
        match settle(&self.pending, &self.counters) {
            Some(request) => {
                let view = self.staging.buffer.slice(..self.bytes).get_mapped_range();
                request.answer_held(Arc::new(Mapped { view: Some(view), staging: self.staging }));
            }
            None => self.staging.buffer.unmap(),
        }
    }

    /// Views of mapped buffers cannot leave the thread.
    #[cfg(target_arch = "wasm32")]
    fn hold(self) {
        self.land();
    }

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
        let (buffer, bytes) = (staging.buffer.clone(), words as u64 * 4);
        let (way, copier) = (Way::of(bytes, &staging, &request), gpu.copier.clone());
        let pending = Pending::new(Mutex::new(Some(request)));
        self.pending.push(pending.clone());
        let landing = Landing { staging, bytes, pending, counters };
        buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| match (result, way) {
            (Err(_), _) => landing.fail(),
            (Ok(()), Way::Copied) => landing.land(),
            (Ok(()), Way::CopiedLater) => copier.run(move || landing.land()),
            (Ok(()), Way::Held) => landing.hold(),
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
