//! Random frames compared with a model on the host. Tensors are spawned, shared, viewed, pinned, written, moved and
//! despawned, beside custom kernels, pictures, files, models that move between the backends, lost devices and a renderer
//! that stands still. Every value read must be correct, every request must be answered, and nothing may remain at the
//! end. `scripts/soak` runs it long, with several seeds; `SOAK_FRAMES` and `SOAK_SEED` replay one run.

mod mixed;

use std::time::{Duration, Instant};

use bevy::prelude::*;
use bevy_tensor_compute::error::ReadError;
use bevy_tensor_compute::memory::{HostCopies, MemoryPolicy, SyncDirection};
use bevy_tensor_compute::prelude::*;

use crate::common::Rig;
use mixed::Mixed;

/// A small random number generator. A seed replays a run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// A tensor in the app, and the elements of the expected storage that it views.
#[derive(Clone, Copy)]
struct Shown {
    entity: Entity,
    storage: usize,
    offset: usize,
    size: usize,
    pinned: bool,
}

/// A read that has not been answered.
struct Pending {
    receiver: TensorReceiver,
    expected: Vec<f32>,
    /// The frame of the request.
    asked: usize,
    when: Instant,
}

struct Soak {
    rig: Rig,
    random: Random,
    /// Contents of all storages ever created, as integers that `f32` represents exactly.
    storages: Vec<Vec<f32>>,
    tensors: Vec<Shown>,
    pending: Vec<Pending>,
    reads: usize,
    frame: usize,
    mixed: Mixed,
    /// The frame in which a device was lost last. Reads before it may be answered with an error.
    last_loss: usize,
    /// The longest time from a request to its answer, in frames and on the clock.
    longest: (usize, Duration),
}

/// Elements of the largest tensor: 64 KiB.
const LARGEST: usize = 16 << 10;

impl Soak {
    fn any(&mut self) -> Option<usize> {
        (!self.tensors.is_empty()).then(|| self.random.below(self.tensors.len()))
    }

    fn spawn(&mut self) {
        let most = if self.random.below(4) == 0 { LARGEST } else { 300 };
        let size = 1 + self.random.below(most);
        let value = self.random.below(100) as f32;
        let (tensor, content) = match self.random.below(3) {
            0 => (Tensor::zeros([size], DType::F32).unwrap(), vec![0.0; size]),
            1 => (Tensor::full([size], f64::from(value), DType::F32).unwrap(), vec![value; size]),
            _ => {
                let content: Vec<f32> = (0..size).map(|i| value + (i % 50) as f32).collect();
                (Tensor::from_slice(&content, [size]).unwrap(), content)
            }
        };
        let entity = self.rig.spawn(tensor);
        self.storages.push(content);
        self.tensors.push(Shown { entity, storage: self.storages.len() - 1, offset: 0, size, pinned: false });
    }

    /// Adds a share or a view of a part.
    fn share(&mut self) {
        let Some(i) = self.any() else { return };
        let from = self.tensors[i];
        let offset = self.random.below(from.size);
        let size = 1 + self.random.below(from.size - offset);
        let tensor = self.rig.app.world().get::<Tensor>(from.entity).unwrap().window(offset, size).unwrap();
        let entity = self.rig.spawn(tensor);
        self.tensors.push(Shown { entity, offset: from.offset + offset, size, pinned: false, ..from });
    }

    fn despawn(&mut self) {
        let Some(i) = self.any() else { return };
        let gone = self.tensors.swap_remove(i);
        self.rig.app.world_mut().despawn(gone.entity);
        self.forget(gone.storage);
    }

    /// Frees the expected content of a storage that no tensor views any more.
    fn forget(&mut self, storage: usize) {
        if !self.tensors.iter().any(|shown| shown.storage == storage) {
            self.storages[storage] = Vec::new();
        }
    }

    fn content(&mut self, shown: Shown) -> &mut [f32] {
        &mut self.storages[shown.storage][shown.offset..shown.offset + shown.size]
    }

    fn write(&mut self) {
        let Some(i) = self.any() else { return };
        let (shown, value) = (self.tensors[i], self.random.below(1000) as f32);
        let values: Vec<f32> = (0..shown.size).map(|i| value - (i % 7) as f32).collect();
        self.content(shown).copy_from_slice(&values);
        self.rig.record(move |ops| ops.write(shown.entity, &values)).unwrap();
    }

    /// A kernel that reads and writes.
    fn compute(&mut self) {
        let (Some(i), Some(j)) = (self.any(), self.any()) else { return };
        let (a, b, add) = (self.tensors[i], self.tensors[j], self.random.below(10) as f32);
        // Bounded, so that all numbers stay exact: the smaller of the two, plus a number, modulo 997.
        let first = self.content(b)[0];
        self.content(a).iter_mut().for_each(|v| *v = (v.min(first) + add).rem_euclid(997.0));
        let (a, b) = (a.entity, b.entity);
        self.rig
            .record(move |ops| {
                let first = ops.slice(b, 0, 0, 1)?;
                let small = ops.min(a, first)?;
                let sum = ops.add(small, add)?;
                let bounded = ops.modulo(sum, 997.0)?;
                ops.store(bounded, a)
            })
            .unwrap();
    }

    fn read(&mut self) {
        let Some(i) = self.any() else { return };
        let shown = self.tensors[i];
        let expected = self.content(shown).to_vec();
        let receiver = self.rig.record(move |ops| ops.read(shown.entity)).unwrap();
        self.pending.push(Pending { receiver, expected, asked: self.frame, when: Instant::now() });
    }

    fn pin(&mut self) {
        let Some(i) = self.any() else { return };
        let pins = self.tensors.iter().filter(|shown| shown.pinned).count();
        let shown = &mut self.tensors[i];
        shown.pinned = !shown.pinned && pins < 2;
        let mut entity = self.rig.app.world_mut().entity_mut(shown.entity);
        if shown.pinned {
            entity.insert(Pinned);
        } else {
            entity.remove::<Pinned>();
        }
    }

    fn move_about(&mut self) {
        let Some(i) = self.any() else { return };
        let (entity, what) = (self.tensors[i].entity, self.random.below(7));
        self.rig.memory(|memory| match what {
            0..3 => memory.evict(entity).unwrap(),
            3 => memory.synchronize(entity, SyncDirection::ToDevice).unwrap(),
            4 => memory.synchronize(entity, SyncDirection::ToHost).unwrap(),
            5 => memory.optimize(),
            _ => memory.trim(),
        });
    }

    fn settings(&mut self) {
        // The largest batch needs two tensors, in addition to two that may be pinned.
        let budget = [None, Some(320 << 10), Some(512 << 10), Some(1 << 20)][self.random.below(4)];
        let host_copies = [HostCopies::Drop, HostCopies::Keep][self.random.below(2)];
        let policy = MemoryPolicy::level(self.random.below(4) as u8);
        let mut settings = self.rig.app.world_mut().resource_mut::<MemorySettings>();
        *settings = MemorySettings { budget, host_copies, policy, ..*settings };
    }

    fn step(&mut self) {
        for _ in 0..1 + self.random.below(4) {
            match self.random.below(24) {
                0..4 => self.spawn(),
                4..6 => self.share(),
                6..9 => self.despawn(),
                9..12 => self.write(),
                12..16 => self.compute(),
                16..19 => self.read(),
                19 => self.pin(),
                20..23 => self.move_about(),
                _ => self.settings(),
            }
        }
        if self.tensors.len() > 60 {
            self.despawn();
        }
        self.mix();
        self.rig.app.update();
        self.frame += 1;
        self.collect();
    }

    /// Compares the values that have arrived.
    fn collect(&mut self) {
        let (frame, last_loss) = (self.frame, self.last_loss);
        let (reads, longest) = (&mut self.reads, &mut self.longest);
        self.pending.retain(|Pending { receiver, expected, asked, when }| match receiver.try_recv() {
            None => true,
            Some(Err(ReadError::DeviceLost)) if *asked <= last_loss => false,
            Some(answer) => {
                let data = answer.unwrap_or_else(|error| panic!("frame {asked}, answered in {frame}: {error}"));
                assert_eq!(data.as_slice::<f32>().unwrap(), expected, "frame {asked}, answered in {frame}");
                *longest = (longest.0.max(frame - asked), longest.1.max(when.elapsed()));
                *reads += 1;
                false
            }
        });
    }
}

/// Resident pages of the process.
fn resident_pages() -> Option<usize> {
    std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()
}

#[test]
fn every_value_is_right_and_nothing_is_left() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (frames, seed) = (number("SOAK_FRAMES"), number("SOAK_SEED").unwrap_or(1));
    println!("SOAK_SEED={seed}");
    let mut rig = Rig::new(Backend::Gpu);
    let mixed = Mixed::new(&mut rig);
    let mut soak = Soak {
        rig,
        random: Random(seed),
        storages: Vec::new(),
        tensors: Vec::new(),
        pending: Vec::new(),
        reads: 0,
        frame: 0,
        mixed,
        last_loss: 0,
        longest: (0, Duration::ZERO),
    };
    let long = frames.is_some();
    let frames = frames.unwrap_or(300) as usize;
    let mut early = None;
    for frame in 0..frames {
        soak.step();
        if frame == frames / 2 {
            early = resident_pages();
        }
        if long && (frame + 1) % (frames / 10).max(1) == 0 {
            let (memory, figures) = (resident_pages().map_or(0, |pages| (pages * 4096) >> 20), soak.rig.figures());
            let device = figures.total_device_bytes >> 10;
            println!("frame {}: process {memory} MiB, device {device} KiB, {} reads", frame + 1, soak.reads);
        }
    }
    soak.end_mix();
    soak.rig.app.world_mut().resource_mut::<MemorySettings>().budget = None;
    while !soak.pending.is_empty() {
        soak.rig.settle();
        soak.collect();
    }
    let (waited, mixed) = (soak.longest, &soak.mixed);
    println!(
        "{frames} frames: {} reads, {} losses, {} pauses, {} moves, {} files, {} pictures; longest wait {} frames, {:?}; \
         unanswered {}",
        soak.reads,
        mixed.losses,
        mixed.pauses,
        mixed.moves,
        mixed.files,
        mixed.pictures,
        waited.0,
        waited.1,
        soak.pending.len()
    );
    assert_eq!(soak.rig.faults(), []);
    assert!(soak.reads > frames / 5, "{} values compared", soak.reads);
    if let (true, Some(early), Some(late)) = (long, early, resident_pages()) {
        assert!(late < early + (64 << 20) / 4096, "the process grew from {early} to {late} pages");
    }
    for shown in core::mem::take(&mut soak.tensors) {
        soak.rig.app.world_mut().despawn(shown.entity);
    }
    soak.rig.settle();
    soak.rig.memory(|memory| memory.trim());
    soak.rig.settle();
    let end = soak.rig.figures();
    assert!(end.evictions > frames as u64 / 50 || frames < 100, "{end:?}");
    assert_eq!((end.device_bytes, end.scratch_bytes, end.pool_idle_bytes), (0, 0, 0), "{end:?}");
    assert_eq!((end.host_copy_bytes, end.staging_bytes, end.readbacks_now, end.downloads_now), (0, 0, 0, 0), "{end:?}");
    assert_eq!(end.total_device_bytes, end.plan_bytes, "{end:?}");
}
