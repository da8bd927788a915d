//! Moves storages to the device and off it, within the budget. Copies to the host arrive one or more frames later.
//! Nothing waits for them.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender};

use super::buffers::{DeviceBuffer, Purpose};
use super::device::Gpu;
use crate::error::{MemoryHolder, RunError, catch};
use crate::figures::Count;
use crate::memory::{Candidate, HostCopies, Ledger, Room, choose};
use crate::plan::Effect;
use crate::tensor::{DeviceSlot, Generator, Initial, Storage};

/// Maximum number of tensors that a budget error names.
const HOLDERS: usize = 5;

/// The storages on the device, and the copies to the host in flight.
pub(crate) struct Residents {
    ledger: Ledger<Weak<Storage>>,
    /// Real time of the frame.
    pub now: Duration,
    /// When the eviction policy ran last.
    looked: Duration,
    /// Bytes of the copies in flight.
    on_the_way: u64,
    /// Number of copies in flight.
    copies: u64,
    sender: Sender<Landed>,
    receiver: Receiver<Landed>,
}

/// A copy to the host that has been started.
struct Departure {
    storage: Weak<Storage>,
    /// Version of the content that is copied.
    version: u64,
    bytes: u64,
    /// If the storage is evicted after the copy: the tick of its last use.
    leave: Option<u64>,
}

/// A copy that has arrived. Without words it has failed.
struct Landed {
    departure: Departure,
    words: Option<Arc<[u32]>>,
}

/// The purpose of a copy to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// The storage is evicted afterwards.
    Leave,
    /// The storage stays on the device.
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
    /// Records that a batch uses these storages now.
    pub(crate) fn touch(&mut self, slots: &[Arc<Storage>]) {
        for storage in slots {
            self.ledger.touch(storage.id(), self.now, || Arc::downgrade(storage));
            storage.set_used(self.now);
        }
        self.ledger.sweep(|storage| storage.strong_count() > 0);
    }

    /// Takes in the copies that have arrived. Storages to be evicted leave the device, unless they were used since.
    pub(crate) fn land(&mut self, gpu: &Gpu) {
        let landed: Vec<Landed> = self.receiver.try_iter().collect();
        for Landed { departure: Departure { storage, version, bytes, leave }, words } in landed {
            gpu.counters.downloads_now.sub(1);
            self.copies -= 1;
            self.on_the_way -= bytes;
            let Some(storage) = storage.upgrade() else { continue };
            let stays = leave.is_some_and(|used| self.ledger.get(storage.id()).is_none_or(|entry| entry.used != used));
            // If the storage stays, its host copy is kept only if the settings ask for it.
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

    /// Evicts a storage at once if the host has its content. Returns whether it did.
    fn depart(&mut self, gpu: &Gpu, storage: &Storage) -> bool {
        let left = storage.leave();
        if left {
            self.ledger.remove(storage.id());
            gpu.counters.evictions.add(1);
        }
        left
    }

    /// Whether `slots` and `extra` bytes fit in the budget now. If not, other storages are evicted, and the call has to
    /// be repeated in a later frame. An error if they will never fit.
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

    /// The largest storages that cannot be evicted.
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

    /// Evicts storages. Returns whether all have left at once; the others leave after a copy to the host.
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

    /// Starts copies of storages to the host, as many as staging memory allows. Returns whether all were started; if
    /// not, the call has to be repeated. An error if there is no staging memory and no copy in flight will free some.
    /// Storages whose copy was not started stay as they were.
    pub(crate) fn copy_to_host(&mut self, gpu: &Gpu, copies: Vec<(Arc<Storage>, Copy)>) -> Result<bool, RunError> {
        let cap = gpu.settings().idle_staging_bytes;
        let mut encoder: Option<wgpu::CommandEncoder> = None;
        let (mut departures, mut all, mut failure) = (Vec::new(), true, None);
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
            let staging = match gpu.allocate(Purpose::Staging, storage.words()) {
                Ok(staging) => staging,
                Err(error) => {
                    (all, failure) = (false, Some(error));
                    break;
                }
            };
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
        match failure {
            Some(error) if self.copies == 0 => Err(error),
            _ => Ok(all),
        }
    }

    /// Sends the words on when the staging buffer is mapped. The copier copies them, because that may take long.
    fn fly(&mut self, gpu: &Gpu, departure: Departure, staging: Arc<DeviceBuffer>) {
        gpu.counters.downloads_now.add(1);
        self.copies += 1;
        let (sender, buffer, bytes) = (self.sender.clone(), staging.buffer.clone(), departure.bytes);
        let copier = gpu.copier.clone();
        buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| {
            // Sending fails only when the executor is gone.
            if result.is_err() {
                let _ = sender.send(Landed { departure, words: None });
                return;
            }
            copier.run(move || {
                // A copy that panics has failed. Without an answer, its storage would be about to leave for ever.
                let words = catch(|| {
                    let view = staging.buffer.slice(..bytes).get_mapped_range();
                    Arc::<[u32]>::from(bytemuck::cast_slice(&view))
                });
                staging.buffer.unmap();
                let _ = sender.send(Landed { departure, words: words.ok() });
            });
        });
    }

    /// Gives storages their buffers and contents. There must be room. Returns the storages whose content has to be
    /// generated by a kernel.
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
        clear_buffers(gpu, &clear);
        Ok(make)
    }

    /// Evicts a storage at the app's request. Returns whether that is done or has been started.
    pub(crate) fn evict(&mut self, gpu: &Gpu, storage: &Arc<Storage>) -> Result<bool, RunError> {
        if storage.is_pinned() || storage.device(gpu.generation).is_none() || self.depart(gpu, storage) {
            return Ok(true);
        }
        self.copy_to_host(gpu, vec![(storage.clone(), Copy::Leave)])
    }

    /// Evicts idle storages as the policy says, if its interval has passed or `now` is set.
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

    /// The storages that were on a lost device. Copies in flight are abandoned.
    pub(crate) fn into_storages(self, gpu: &Gpu) -> impl Iterator<Item = Arc<Storage>> + use<> {
        gpu.counters.downloads_now.sub(self.copies);
        self.ledger.into_handles().filter_map(|storage| storage.upgrade())
    }
}

/// Clears buffers at once. `write_buffer` runs before the next submission, so a clear in a later one would erase what
/// it wrote.
fn clear_buffers(gpu: &Gpu, buffers: &[Arc<DeviceBuffer>]) {
    if buffers.is_empty() {
        return;
    }
    let label = Some("tensor:clear");
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label });
    for buffer in buffers {
        encoder.clear_buffer(&buffer.buffer, 0, Some(buffer.size));
    }
    gpu.queue.submit([encoder.finish()]);
    gpu.counters.submits.add(1);
}

fn load(figure: &AtomicU64) -> u64 {
    figure.load(Ordering::Relaxed)
}
