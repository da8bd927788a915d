//! The work that waits for the device, in the order in which it runs.

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffers::Purpose;
use super::device::Gpu;
use super::frame::FrameWork;
use super::image_copies::ImageJob;
use crate::error::ReadError;
use crate::mailbox::{CopyWay, MemoryRequest};
use crate::record::{Batch, Part, WarmUpId, generate};
use crate::tensor::{Generator, Storage};

/// One piece of work.
#[derive(Debug)]
pub(crate) enum Work {
    Batch(Batch),
    /// Generates the content of a storage, for the work behind it or for a warm-up.
    Fill(Arc<Storage>, Batch, Option<WarmUpId>),
    Request(MemoryRequest),
    /// Copies between images and tensors, all in one direction.
    Images(Vec<ImageJob>),
}

impl Work {
    /// The work that generates the contents of storages. `warm_up` is the warm-up that needs them, or `None` for the
    /// work behind the fills.
    pub(super) fn fills(generated: Vec<(Arc<Storage>, Generator)>, warm_up: Option<WarmUpId>) -> Vec<Self> {
        let fill = |(storage, generator): (Arc<Storage>, Generator)| {
            let batch = Batch::new([generate(generator, &storage)]);
            Self::Fill(storage, batch, warm_up)
        };
        generated.into_iter().map(fill).collect()
    }
}

/// The result of running one piece of work.
pub(super) enum Outcome {
    Done,
    /// Not possible yet. It is tried again in a later frame.
    Wait(Work),
    /// The listed work has to run first.
    After(Vec<Work>, Work),
}

/// Work that has not run yet. Only the front is tried, so that work runs in order.
#[derive(Default)]
pub(super) struct WorkQueue {
    waiting: VecDeque<Work>,
}

impl WorkQueue {
    /// Queues the recordings and memory requests of a frame. Recordings between two requests are queued together.
    pub(super) fn add_frame(&mut self, gpu: &Gpu, frame: Vec<FrameWork>) {
        let mut parts = Vec::new();
        for work in frame {
            match work {
                FrameWork::Part(part) => parts.push(part),
                FrameWork::Request(request) => {
                    self.add_recordings(gpu, core::mem::take(&mut parts));
                    self.waiting.push_back(Work::Request(request));
                }
            }
        }
        self.add_recordings(gpu, parts);
    }

    /// Queues recordings in as few batches as possible. If the budget is too small for all of their tensors at once,
    /// each recording becomes its own batch.
    fn add_recordings(&mut self, gpu: &Gpu, parts: Vec<Part>) {
        let batches = match fits_budget(gpu, &parts) {
            true => Batch::split(parts),
            false => parts.into_iter().map(|part| Batch::new([part])).collect(),
        };
        self.waiting.extend(batches.into_iter().filter(|batch| !batch.is_empty()).map(Work::Batch));
    }

    pub(super) fn add_images(&mut self, jobs: Vec<ImageJob>) {
        if !jobs.is_empty() {
            self.waiting.push_back(Work::Images(jobs));
        }
    }

    pub(super) fn pop(&mut self) -> Option<Work> {
        self.waiting.pop_front()
    }

    pub(super) fn push_front(&mut self, work: Work) {
        self.waiting.push_front(work);
    }

    /// Puts several pieces of work at the front and keeps their order.
    pub(super) fn push_all_front(&mut self, works: Vec<Work>) {
        works.into_iter().rev().for_each(|work| self.waiting.push_front(work));
    }

    /// The storages that must stay on the device while a fill of `storage` makes room for itself: those of the batch
    /// that the fill is for. If one of them was evicted, it would come back next and evict the filled storage.
    pub(super) fn needed_next(&self, storage: &Arc<Storage>) -> Vec<Arc<Storage>> {
        let next = self.waiting.iter().find_map(|work| match work {
            Work::Batch(batch) => Some(batch.slots.clone()),
            _ => None,
        });
        next.filter(|slots| slots.iter().any(|slot| slot.id() == storage.id())).unwrap_or_else(|| vec![storage.clone()])
    }

    /// Removes the work that a failed fill was for, and the other fills for it. Returns it if it is a batch, whose
    /// readbacks have to be answered.
    pub(super) fn remove_filled(&mut self) -> Option<Batch> {
        let (mut warm_ups, mut found) = (Vec::new(), None);
        while let Some(work) = self.waiting.pop_front() {
            match work {
                Work::Fill(_, _, Some(_)) => warm_ups.push(work),
                Work::Fill(other, _, None) => other.abandon(),
                Work::Batch(batch) => {
                    found = Some(batch);
                    break;
                }
                // Trying them again would only fail again.
                Work::Request(_) | Work::Images(_) => break,
            }
        }
        self.push_all_front(warm_ups);
        found
    }

    /// Takes over the work of a lost device. Fills are left out, because the batches that need them ask again; image
    /// copies too, because their textures were lost with the device.
    pub(super) fn take_over(&mut self, old: &mut Self) {
        self.waiting.extend(old.waiting.drain(..).filter(|work| !matches!(work, Work::Fill(..) | Work::Images(_))));
    }

    /// Empties the queue and returns its batches.
    pub(super) fn drain_batches(&mut self) -> impl Iterator<Item = Batch> {
        self.waiting.drain(..).filter_map(|work| match work {
            Work::Batch(batch) => Some(batch),
            _ => None,
        })
    }

    /// Number of pieces of work other than memory requests.
    pub(super) fn batches(&self) -> usize {
        self.waiting.iter().filter(|work| !matches!(work, Work::Request(_))).count()
    }

    /// Answers every readback of the waiting batches with [`ReadError::DeviceLost`].
    pub(super) fn fail(&mut self) {
        let requests = self.drain_batches().flat_map(|batch| batch.requests);
        requests.for_each(|request| request.fail(ReadError::DeviceLost));
    }
}

/// Splits image copies by direction: those into tensors, and those into images.
pub(super) fn split_by_direction(jobs: Vec<ImageJob>) -> (Vec<ImageJob>, Vec<ImageJob>) {
    jobs.into_iter().partition(|job| job.copy.way == CopyWay::IntoTensor)
}

/// Whether the budget is large enough for the tensors of all recordings at once.
fn fits_budget(gpu: &Gpu, parts: &[Part]) -> bool {
    match gpu.settings().budget {
        Some(budget) if parts.len() > 1 => {
            let mut slots: Vec<&Arc<Storage>> = parts.iter().flat_map(|part| &part.slots).collect();
            slots.sort_unstable_by_key(|storage| storage.id());
            slots.dedup_by_key(|storage| storage.id());
            slots.iter().map(|storage| gpu.bytes(Purpose::of(storage), storage.words())).sum::<u64>() <= budget
        }
        _ => true,
    }
}
