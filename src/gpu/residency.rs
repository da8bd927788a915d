//! Brings storages onto the device and off it, within the budget. Copies to the host are started and land a frame or more later; nothing waits.

use crate::tensor::{DeviceSlot, Generator, Initial, Storage};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Weak};

use bevy::tasks::AsyncComputeTaskPool;
use crossbeam_channel::{Receiver, Sender};

use super::buffers::{DeviceBuffer, Gpu, Purpose};
use crate::error::{MemoryHolder, RunError};
use crate::figures::Count;
use crate::memory::{Candidate, HostCopies, Ledger, Room, choose};
use crate::plan::Effect;

/// Tensors that an error names.
const HOLDERS: usize = 5;

/// Who is on the device, and what is on its way to the host.
pub(crate) struct Residents {
    ledger: Ledger<Weak<Storage>>,
    /// Real time of the frame.
    pub now: Duration,
    /// When the policy last looked.
    looked: Duration,
    /// Bytes on their way to the host, and how many copies that is.
    on_the_way: u64,
    copies: u64,
    sender: Sender<Landed>,
    receiver: Receiver<Landed>,
}

/// A copy that was started: what it is of, and as of when.
struct Departure {
    storage: Weak<Storage>,
    version: u64,
    bytes: u64,
    /// The tick of its last use if it is to leave once copied.
    leave: Option<u64>,
}

/// A copy that arrived, or failed.
struct Landed {
    departure: Departure,
    words: Option<Arc<[u32]>>,
}

/// Why a copy to the host is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// To leave the device afterwards.
    Leave,
    /// To have one.
    Keep,
}

impl Default for Residents {
    fn default() -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self {
            ledger: Ledger::default(),
            now: Duration::ZERO,
            looked: Duration::ZERO,
            on_the_way: 0,
            copies: 0,
            sender,
            receiver,
        }
    }
}

impl Residents {
    /// Notes that a batch uses these now.
    pub(crate) fn touch(&mut self, slots: &[Arc<Storage>]) {
        for storage in slots {
            self.ledger.touch(storage.id(), self.now, || Arc::downgrade(storage));
            storage.set_used(self.now);
        }
        self.ledger.sweep(|storage| storage.strong_count() > 0);
    }

    /// Takes in the copies that have arrived. Those that were to leave and have not been used since do.
    pub(crate) fn land(&mut self, gpu: &Gpu) {
        let landed: Vec<Landed> = self.receiver.try_iter().collect();
        for Landed { departure: Departure { storage, version, bytes, leave }, words } in landed {
            gpu.counters.downloads_now.sub(1);
            self.copies -= 1;
            self.on_the_way -= bytes;
            let Some(storage) = storage.upgrade() else { continue };
            let stays = leave.is_some_and(|used| self.ledger.get(storage.id()).is_none_or(|entry| entry.used != used));
            // A copy that is of no use any more would only take memory.
            let keep = !stays || gpu.settings().host_copies == HostCopies::Keep;
            if let Some(words) = words.filter(|_| keep) {
                gpu.counters.downloaded_bytes.add(words.len() as u64 * 4);
                let current = storage.copied(version, words, &gpu.counters);
                if current && leave.is_some() && !stays && !storage.is_pinned() {
                    self.depart(gpu, &storage);
                    continue;
                }
            }
            self.ledger.set_leaving(storage.id(), false);
        }
    }

    /// Off the device at once, which loses nothing.
    fn depart(&mut self, gpu: &Gpu, storage: &Storage) -> bool {
        let left = storage.leave();
        if left {
            self.ledger.remove(storage.id());
            gpu.counters.evictions.add(1);
        }
        left
    }

    /// Whether `slots` and `extra` bytes beside them fit in the budget now. If not, others are sent away, and the answer is to ask again with a
    /// later frame; or the error that says that they never will.
    pub(crate) fn admit(&mut self, gpu: &Gpu, slots: &[Arc<Storage>], extra: u64) -> Result<bool, RunError> {
        let Some(budget) = gpu.settings().budget else { return Ok(true) };
        let missing = slots.iter().filter(|storage| storage.device(gpu.generation).is_none());
        let missing: u64 = missing.map(|storage| gpu.bytes(Purpose::of(storage), storage.words())).sum();
        let counters = &gpu.counters;
        let used: u64 = [&counters.device_bytes, &counters.plan_bytes, &counters.scratch_bytes].map(load).iter().sum();
        let requested = missing + extra;
        let ours = |id: u64| slots.iter().any(|storage| storage.id() == id);
        let room = self.ledger.make_room(used + requested, budget, |id, entry| {
            let storage = entry.handle.upgrade()?;
            (!ours(id) && !storage.is_pinned()).then_some(())?;
            storage.device(gpu.generation).map(|buffer| buffer.bytes)
        });
        match room {
            Room::Enough => Ok(true),
            Room::Make(leave) => self.send_away(gpu, &leave),
            Room::Never { available } => {
                let available = (budget + available).saturating_sub(used);
                Err(RunError::Budget { requested, available, budget, largest: self.holders(gpu, &ours) })
            }
        }
    }

    /// The largest storages that must stay.
    fn holders(&self, gpu: &Gpu, ours: &impl Fn(u64) -> bool) -> Vec<MemoryHolder> {
        let stays = self.ledger.oldest_first().filter_map(|(id, entry)| {
            let storage = entry.handle.upgrade()?;
            let (bytes, pinned) = (storage.device(gpu.generation)?.bytes, storage.is_pinned());
            (pinned || ours(id)).then(|| MemoryHolder { name: storage.label(), bytes, pinned })
        });
        let mut holders: Vec<MemoryHolder> = stays.collect();
        holders.sort_by_key(|holder| core::cmp::Reverse(holder.bytes));
        holders.truncate(HOLDERS);
        holders
    }

    /// Sends storages off the device; whether all have gone at once.
    fn send_away(&mut self, gpu: &Gpu, leave: &[u64]) -> Result<bool, RunError> {
        let mut gone = true;
        let mut copies = Vec::new();
        for &id in leave {
            let Some(entry) = self.ledger.get(id) else { continue };
            let leaving = entry.leaving;
            let Some(storage) = entry.handle.upgrade() else {
                self.ledger.remove(id);
                continue;
            };
            if !self.depart(gpu, &storage) {
                gone = false;
                if !leaving {
                    copies.push((storage, Copy::Leave));
                }
            }
        }
        self.copy_to_host(gpu, copies)?;
        Ok(gone)
    }

    /// Starts copies of storages to the host; as many as there is staging memory for at once, the rest when asked again.
    pub(crate) fn copy_to_host(&mut self, gpu: &Gpu, copies: Vec<(Arc<Storage>, Copy)>) -> Result<bool, RunError> {
        let cap = gpu.settings().idle_staging_bytes;
        let mut encoder: Option<wgpu::CommandEncoder> = None;
        let (mut departures, mut all) = (Vec::new(), true);
        for (storage, copy) in copies {
            let Some(buffer) = gpu.buffer(&storage) else { continue };
            let bytes = storage.bytes() as u64;
            if bytes == 0 {
                storage.copied(storage.version(), Arc::from([]), &gpu.counters);
                continue;
            }
            if self.on_the_way > 0 && self.on_the_way + bytes > cap {
                all = false;
                break;
            }
            let staging = gpu.allocate(Purpose::Staging, storage.words())?;
            let label = Some("tensor:spill");
            let encoder = encoder
                .get_or_insert_with(|| gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label }));
            encoder.copy_buffer_to_buffer(&buffer.buffer, 0, &staging.buffer, 0, bytes);
            self.on_the_way += bytes;
            let used = self.ledger.get(storage.id()).map(|entry| entry.used);
            let leave = used.filter(|_| copy == Copy::Leave);
            self.ledger.set_leaving(storage.id(), leave.is_some());
            let departure = Departure { storage: Arc::downgrade(&storage), version: storage.version(), bytes, leave };
            departures.push((departure, staging));
        }
        if let Some(encoder) = encoder {
            gpu.queue.submit([encoder.finish()]);
            gpu.counters.submits.add(1);
        }
        for (departure, staging) in departures {
            self.fly(gpu, departure, staging);
        }
        Ok(all)
    }

    /// Sends the words on when the staging buffer can be read. Copying them out may take long, so that a task does it.
    fn fly(&mut self, gpu: &Gpu, departure: Departure, staging: Arc<DeviceBuffer>) {
        gpu.counters.downloads_now.add(1);
        self.copies += 1;
        let (sender, buffer, bytes) = (self.sender.clone(), staging.buffer.clone(), departure.bytes);
        buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| {
            // The executor may be gone, and with it the need.
            if result.is_err() {
                let _ = sender.send(Landed { departure, words: None });
                return;
            }
            let copy = async move {
                let view = staging.buffer.slice(..bytes).get_mapped_range();
                let words: Arc<[u32]> = bytemuck::cast_slice(&view).into();
                drop(view);
                staging.buffer.unmap();
                let _ = sender.send(Landed { departure, words: Some(words) });
            };
            AsyncComputeTaskPool::get().spawn(copy).detach();
        });
    }

    /// Gives storages their buffers and contents; there must be room. Returns those whose content a kernel has to make yet.
    pub(crate) fn bring_in(
        &mut self,
        gpu: &Gpu,
        slots: &[Arc<Storage>],
        effects: &[Effect],
    ) -> Result<Vec<(Arc<Storage>, Generator)>, RunError> {
        let keep = gpu.settings().host_copies == HostCopies::Keep;
        let (mut make, mut clear) = (Vec::new(), Vec::new());
        for (slot, storage) in slots.iter().enumerate() {
            if storage.device(gpu.generation).is_some() {
                continue;
            }
            let source = match storage.source() {
                Some(source) => source,
                None if effects.get(slot).is_some_and(|effect| effect.replaces) => Initial::Zeros,
                None => return Err(RunError::Lost { tensor: storage.label() }),
            };
            let buffer = gpu.allocate(Purpose::of(storage), storage.words())?;
            match source {
                Initial::Data(words) => {
                    gpu.write(&buffer.buffer, 0, &words);
                    gpu.counters.uploaded_bytes.add(words.len() as u64 * 4);
                }
                Initial::Generated(generator) => {
                    clear.push(buffer.clone());
                    if storage.elements() > 0 {
                        make.push((storage.clone(), generator));
                    }
                }
                Initial::Zeros => clear.push(buffer.clone()),
            }
            let slot = DeviceSlot { generation: buffer.generation, bytes: buffer.bytes, held: buffer };
            storage.arrive(slot, keep, &gpu.counters);
            self.touch(core::slice::from_ref(storage));
        }
        clear.retain(|buffer| buffer.reused);
        if !clear.is_empty() {
            let label = Some("tensor:clear");
            let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label });
            for buffer in &clear {
                encoder.clear_buffer(&buffer.buffer, 0, Some(buffer.size));
            }
            // Before anything is written to them: writes of the queue would land before the clearing if that came with the next pass.
            gpu.queue.submit([encoder.finish()]);
            gpu.counters.submits.add(1);
        }
        Ok(make)
    }

    /// Sends a storage to the host because the app asked to; whether all that is needed has been started.
    pub(crate) fn evict(&mut self, gpu: &Gpu, storage: &Arc<Storage>) -> Result<bool, RunError> {
        if storage.is_pinned() || storage.device(gpu.generation).is_none() || self.depart(gpu, storage) {
            return Ok(true);
        }
        self.copy_to_host(gpu, vec![(storage.clone(), Copy::Leave)])
    }

    /// Lets the policy send idle storages away, if it is time or `now` is asked for.
    pub(crate) fn optimize(&mut self, gpu: &Gpu, now: bool) -> Result<(), RunError> {
        let policy = gpu.settings().policy;
        if !now && self.now.saturating_sub(self.looked) < policy.interval {
            return Ok(());
        }
        self.looked = self.now;
        let device_bytes = load(&gpu.counters.device_bytes);
        let candidates = self.ledger.oldest_first().filter_map(|(id, entry)| {
            let storage = entry.handle.upgrade().filter(|storage| !storage.is_pinned())?;
            let bytes = storage.device(gpu.generation)?.bytes;
            Some(Candidate { id, bytes, last_used: entry.at })
        });
        let leave = choose(&policy, device_bytes, self.now, candidates);
        self.send_away(gpu, &leave).map(drop)
    }

    /// Storages that were on a device that is gone; copies on their way are given up.
    pub(crate) fn into_storages(self, gpu: &Gpu) -> impl Iterator<Item = Arc<Storage>> + use<> {
        gpu.counters.downloads_now.sub(self.copies);
        self.ledger.into_handles().filter_map(|storage| storage.upgrade())
    }
}

fn load(figure: &AtomicU64) -> u64 {
    figure.load(Ordering::Relaxed)
}
