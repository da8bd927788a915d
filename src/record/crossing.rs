//! Values that cross from one backend to the other, and tensors that move.
//!
//! The work on one side ends with a readback into a storage of the other side, and the work there waits for it, in its
//! queue. A crossing seals the part of the recording that it leaves: what is recorded on that backend afterwards runs
//! as a part of its own, so that it can wait for a value that comes back.

use std::sync::Arc;

use super::{Part, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{Backend, Layout, NodeId, Shape};
use crate::readback::ReadRequest;
use crate::tensor::{Initial, Storage};

/// Values on the other backend.
impl TensorCommands<'_, '_> {
    /// Moves a value to a backend, bit for bit. A value that is there already is returned as it is.
    ///
    /// The work behind the value runs on its own backend, and the work that uses the result waits for it. No frame
    /// does. Without a device, [`Backend::Gpu`] is an [`OpError::NoDevice`].
    #[doc(alias = "to")]
    #[doc(alias = "cpu")]
    #[doc(alias = "cuda")]
    #[track_caller]
    pub fn to_backend<'a>(&'a self, x: impl Into<TensorOperand<'a>>, backend: Backend) -> OpResult<TensorValue<'a>> {
        const OP: &str = "to_backend";
        let x = x.into();
        if self.support.available(backend) != backend {
            return Err(OpError::NoDevice { op: OP });
        }
        let rec = &mut self.recorder();
        let x = rec.any_arg(OP, x)?;
        if x.backend == backend {
            return Ok(TensorValue { entity: x.entity, ..rec.value(backend, x.node)? });
        }
        if let Some(number) = x.number {
            let dtype = rec.dtype_of_arg(x);
            let node = rec.begin(backend, OP).number(number, dtype);
            return rec.value(backend, node);
        }
        let (shape, dtype) = (rec.shape_of_arg(x), rec.dtype_of_arg(x));
        let storage = if rec.recording.is_aside {
            // Nothing runs, so nothing would arrive: zeros stand in for the value.
            let storage = Storage::new(dtype, shape.elements(), Initial::Zeros);
            storage.home(backend);
            storage
        } else {
            let storage = Storage::expecting(dtype, shape.elements(), backend);
            storage.set_label(&format!("{} on its way to the {backend}", rec.info(x).name.replace('"', "")));
            rec.part(x).read(x.node, ReadRequest::crossing(storage.clone(), shape.clone()));
            rec.seal(x.backend);
            storage
        };
        let node = rec.begin(backend, OP).load(&storage, Layout::contiguous(shape));
        rec.value(backend, node)
    }
}

impl Recorder<'_> {
    /// Closes a backend's part. What is recorded there from now on is another part.
    fn seal(&mut self, backend: Backend) {
        let part = core::mem::take(self.recording.part(backend));
        self.recording.sealed.push((backend, part));
    }

    /// The node of a value in its backend's open part. A value of a sealed part is stored there and loaded here.
    pub(super) fn current(&mut self, value: TensorValue<'_>) -> NodeId {
        let TensorValue { backend, segment, node, .. } = value;
        if segment == self.recording.segment(backend) {
            return node;
        }
        let recording = &mut *self.recording;
        let mut sealed = recording.sealed.iter_mut().filter(|(of, _)| *of == backend);
        let Some((_, part)) = sealed.nth(segment as usize) else { return node };
        let layout = Layout::contiguous(part.shape(node).clone());
        let storage = recording.carried.entry((backend, segment, node)).or_insert_with(|| {
            let storage = Storage::new(part.dtype(node), layout.elements(), Initial::Zeros);
            storage.home(backend);
            let slot = part.slot(&storage);
            part.store(node, slot, layout.clone());
            storage
        });
        let storage = storage.clone();
        recording.part(backend).load(&storage, layout)
    }
}

/// The work on a storage's old backend that sends its content to the new one. It counts the moves before this one.
fn move_part(storage: &Arc<Storage>) -> Part {
    let mut part = Part::default();
    part.name = "move";
    let shape = Shape::from([storage.elements()]);
    let node = part.load(storage, Layout::contiguous(shape.clone()));
    part.read(node, ReadRequest::crossing(storage.clone(), shape));
    part
}

/// Begins to move a storage: returns the work that does it on the old backend, if it lives on another one than `to`.
pub(crate) fn move_storage(storage: &Arc<Storage>, to: Backend) -> Option<(Backend, Part)> {
    let from = storage.decided_home().filter(|from| *from != to)?;
    let part = move_part(storage);
    storage.begin_move(to);
    Some((from, part))
}
