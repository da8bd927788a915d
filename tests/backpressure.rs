//! Recording faster than the backend runs: queues are bounded, the policy of the model decides what happens at the
//! bound, and every request is answered exactly once.

use std::sync::{Arc, Condvar, Mutex};

use bevy::ecs::system::RunSystemOnce;
use bevy::prelude::*;
use bevy_tensor_compute::error::ReadError;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};

const COPY: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&y)) { y[id.x] = x[id.x]; }
}";

/// An app whose backend can be held: the renderer stands still, or the CPU worker waits inside of a kernel.
struct Held {
    rig: Rig,
    kernel: TensorKernel,
    door: Arc<(Mutex<bool>, Condvar)>,
}

impl Held {
    fn new(backend: Backend) -> Self {
        let mut rig = Rig::new(backend);
        let door = Arc::new((Mutex::new(false), Condvar::new()));
        let inside = door.clone();
        let kernel =
            CustomKernel::wgsl("door", COPY).inputs(["x"]).output("y", OutputShape::like("x")).cpu(move |call| {
                let (open, opened) = &*inside;
                drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
                let x = call.input::<f32>(0)?;
                call.output::<f32>(0)?.copy_from_slice(x);
                Ok(())
            });
        let kernel = rig.app.register_kernel(kernel).expect("a good kernel");
        Self { rig, kernel, door }
    }

    /// A model with an input and an output of one number.
    fn model(&mut self, policy: Option<TensorBacklog>) -> (Entity, Entity, Entity) {
        let world = self.rig.app.world_mut();
        let model = world.spawn(TensorModel).id();
        if let Some(policy) = policy {
            world.entity_mut(model).insert(policy);
        }
        let zero = || Tensor::zeros([1], DType::F32).unwrap();
        (model, world.spawn((zero(), TensorOf(model))).id(), world.spawn((zero(), TensorOf(model))).id())
    }

    /// Records `y = x` behind the door, for an `x` from the host.
    fn show(&mut self, x: Entity, y: Entity, value: f32) -> Result<TensorReceiver, OpError> {
        let kernel = self.kernel.clone();
        self.rig.record(move |ops| {
            ops.write(x, &[value])?;
            ops.store(ops.custom(&kernel, [x], &())?, y)?;
            ops.read(y)
        })
    }

    /// Records `x = x + 1` behind the door.
    fn count(&mut self, x: Entity) -> Result<(), OpError> {
        let kernel = self.kernel.clone();
        self.rig.record(move |ops| ops.store(ops.add(ops.custom(&kernel, [x], &())?, 1.0)?, x))
    }

    /// A frame in which the backend does not advance.
    fn frame(&mut self) {
        match self.rig.backend {
            Backend::Gpu => self.rig.app.main_mut().update(),
            Backend::Cpu => self.rig.app.update(),
        }
    }

    fn open(&self) {
        *self.door.0.lock().unwrap() = true;
        self.door.1.notify_all();
    }

    fn backlog(&self, model: Entity) -> bevy_tensor_compute::schedule::Backlog {
        self.rig.app.world().resource::<TensorBacklogs>().of(Some(model))
    }

    /// Runs until nothing is unfinished.
    fn finish(&mut self) {
        self.open();
        self.rig.step_until(|app| app.world().resource::<TensorBacklogs>().all().is_empty());
    }
}

/// What a request was answered with.
fn answer(rig: &mut Rig, receiver: &TensorReceiver) -> Result<f32, ReadError> {
    let answer = rig.wait(receiver).map(|data| data.item::<f32>().unwrap());
    assert_eq!(receiver.try_recv(), Some(Err(ReadError::Disabled)), "answered once");
    answer
}

#[test]
fn a_model_that_waits_is_busy_at_its_bound_and_recovers_at_once() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (model, x, y) = held.model(Some(TensorBacklog::Wait));
        let (_, other_x, other_y) = held.model(Some(TensorBacklog::Wait));
        let mut receivers = Vec::new();
        for frame in 0..3 {
            receivers.push(held.show(x, y, frame as f32).unwrap());
            held.frame();
        }
        for _ in 0..10 {
            let refused = held.show(x, y, 9.0).map(drop);
            assert_eq!(
                refused,
                Err(OpError::Busy { op: "write", model: Some(model), in_flight: 3, waiting: 0 }),
                "{backend}"
            );
            held.frame();
        }
        let backlog = held.backlog(model);
        assert_eq!((backlog.in_flight, backlog.waiting, backlog.busy), (3, 0, true), "{backend}");
        assert_eq!(held.rig.figures().ops_refused, 10, "{backend}");
        // Another model is not affected.
        receivers.push(held.show(other_x, other_y, 3.0).unwrap());
        held.finish();
        for (frame, receiver) in receivers.iter().enumerate() {
            assert_eq!(answer(&mut held.rig, receiver), Ok(frame as f32), "{backend}");
        }
        assert!(!held.backlog(model).busy, "{backend}");
        let receiver = held.show(x, y, 7.0).unwrap();
        assert_eq!(answer(&mut held.rig, &receiver), Ok(7.0), "{backend}");
    }
}

#[test]
fn the_latest_recording_replaces_those_that_wait() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (model, x, y) = held.model(Some(TensorBacklog::Latest));
        let mut receivers = Vec::new();
        for frame in 0..100 {
            receivers.push(held.show(x, y, frame as f32).unwrap());
            held.frame();
            let backlog = held.backlog(model);
            assert!(backlog.in_flight <= 3 && backlog.waiting <= 1 && !backlog.busy, "{backend}: {backlog:?}");
        }
        assert_eq!(held.rig.figures().recordings_replaced, 96, "{backend}");
        assert_eq!(held.rig.figures().recordings_waiting_now, 1, "{backend}");
        assert!(held.backlog(model).age.is_some(), "{backend}");
        held.finish();
        for (frame, receiver) in receivers.iter().enumerate() {
            let expected = if (3..99).contains(&frame) { Err(ReadError::Replaced) } else { Ok(frame as f32) };
            assert_eq!(answer(&mut held.rig, receiver), expected, "{backend}: frame {frame}");
        }
    }
}

#[test]
fn a_recording_that_updates_what_it_reads_is_never_replaced() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (_, x, _) = held.model(Some(TensorBacklog::Latest));
        let accepted = (0..20).filter(|_| {
            let accepted = held.count(x).is_ok();
            held.frame();
            accepted
        });
        let accepted = accepted.count();
        assert_eq!(accepted, 4, "{backend}: three in flight and one that waits");
        held.finish();
        assert_eq!(held.rig.read(x).to_f32(), [accepted as f32], "{backend}");
    }
}

#[test]
fn a_recording_whose_result_others_use_is_not_replaced() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (_, x, y) = held.model(Some(TensorBacklog::Latest));
        let (_, sum, _) = held.model(Some(TensorBacklog::Queue(8)));
        for frame in 0..3 {
            held.show(x, y, frame as f32).unwrap();
            held.frame();
        }
        held.show(x, y, 10.0).unwrap();
        held.frame();
        // Waits for the 10, which the next recording must not replace.
        held.rig.record(move |ops| ops.store(ops.add(sum, y)?, sum)).unwrap();
        held.frame();
        assert!(matches!(held.show(x, y, 20.0), Err(OpError::Busy { .. })), "{backend}");
        held.frame();
        held.finish();
        assert_eq!(held.rig.read(sum).to_f32(), [10.0], "{backend}");
        assert_eq!(held.rig.read(y).to_f32(), [10.0], "{backend}");
    }
}

#[test]
fn a_queue_holds_its_number_and_runs_in_order() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (model, x, _) = held.model(Some(TensorBacklog::Queue(5)));
        for frame in 0..8 {
            held.count(x).unwrap_or_else(|error| panic!("{backend}: frame {frame}: {error}"));
            held.frame();
        }
        let error = held.count(x).unwrap_err();
        assert_eq!(error, OpError::Busy { op: "door", model: Some(model), in_flight: 3, waiting: 5 }, "{backend}");
        assert!(error.to_string().contains("busy"), "{error}");
        assert_eq!(held.rig.figures().recordings_waiting_now, 5, "{backend}");
        held.finish();
        assert_eq!(held.rig.read(x).to_f32(), [8.0], "{backend}");
    }
}

#[test]
fn without_a_policy_the_queue_is_long_but_bounded() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let x = held.rig.spawn(Tensor::zeros([1], DType::F32).unwrap());
        let accepted = (0..1100).filter(|_| {
            let accepted = held.count(x).is_ok();
            held.frame();
            accepted
        });
        assert_eq!(accepted.count(), 1027, "{backend}");
        held.finish();
        assert_eq!(held.rig.read(x).to_f32(), [1027.0], "{backend}");
        assert_eq!(held.rig.faults(), [], "{backend}");
    }
}

#[test]
fn recordings_of_one_frame_count_as_one() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (model, x, _) = held.model(Some(TensorBacklog::Wait));
        for _ in 0..10 {
            held.count(x).unwrap();
        }
        held.frame();
        assert_eq!(held.backlog(model).in_flight, 1, "{backend}");
        held.finish();
        assert_eq!(held.rig.read(x).to_f32(), [10.0], "{backend}");
    }
}

#[test]
fn queued_frames_share_one_plan_however_many_wait() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (_, x, _) = held.model(Some(TensorBacklog::Queue(50)));
        for _ in 0..40 {
            held.count(x).unwrap();
            held.frame();
        }
        let before = held.rig.figures();
        held.finish();
        let after = held.rig.figures();
        assert!(after.plans_built - before.plans_built <= 1, "{backend}: {}", after.plans_built - before.plans_built);
        assert_eq!(held.rig.read(x).to_f32(), [40.0], "{backend}");
    }
}

#[test]
fn memory_requests_keep_their_place_behind_waiting_work() {
    let mut held = Held::new(Backend::Gpu);
    let (_, x, _) = held.model(Some(TensorBacklog::Queue(50)));
    for _ in 0..10 {
        held.count(x).unwrap();
        held.frame();
    }
    held.rig.memory(|memory| memory.evict(x)).unwrap();
    held.frame();
    for _ in 0..5 {
        held.count(x).unwrap();
        held.frame();
    }
    held.finish();
    assert_eq!(held.rig.read(x).to_f32(), [15.0]);
    assert_eq!(held.rig.faults(), []);
}

#[test]
fn a_run_condition_and_the_recording_system_can_ask() {
    #[derive(Component)]
    struct Camera;
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (model, x, y) = held.model(Some(TensorBacklog::Wait));
        held.rig.app.world_mut().entity_mut(model).insert(Camera);
        let room = |held: &mut Held| held.rig.app.world_mut().run_system_once(has_room::<Camera>).unwrap();
        let busy = |held: &mut Held| {
            held.rig.app.world_mut().run_system_once(move |ops: TensorCommands| ops.backlog(model)).unwrap()
        };
        for frame in 0..3 {
            assert!(room(&mut held), "{backend}");
            assert_eq!(busy(&mut held).in_flight, frame, "{backend}");
            held.show(x, y, 1.0).unwrap();
            held.frame();
        }
        assert!(!room(&mut held) && busy(&mut held).busy, "{backend}");
        held.finish();
        assert!(room(&mut held), "{backend}");
    }
}

#[test]
fn a_model_despawned_while_its_work_waits_leaves_nothing_behind() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (model, x, y) = held.model(Some(TensorBacklog::Queue(20)));
        let mut receivers = Vec::new();
        for frame in 0..8 {
            receivers.push(held.show(x, y, frame as f32).unwrap());
            held.rig.record(move |ops| ops.notify(y)).unwrap();
            held.frame();
        }
        held.rig.app.world_mut().despawn(model);
        held.frame();
        held.finish();
        for (frame, receiver) in receivers.iter().enumerate() {
            assert_eq!(answer(&mut held.rig, receiver), Ok(frame as f32), "{backend}");
        }
        held.rig.settle();
        let faults = held.rig.faults();
        assert_eq!(faults, vec![TensorFault::Undelivered { tensor: y }; 8], "{backend}");
        assert_eq!(held.rig.figures().readbacks_now, 0, "{backend}");
    }
}

#[test]
fn a_policy_can_change_while_work_waits() {
    for backend in BACKENDS {
        let mut held = Held::new(backend);
        let (model, x, y) = held.model(Some(TensorBacklog::Queue(20)));
        let mut receivers = Vec::new();
        for frame in 0..10 {
            if frame == 8 {
                held.rig.app.world_mut().entity_mut(model).insert(TensorBacklog::Latest);
            }
            receivers.push(held.show(x, y, frame as f32).unwrap());
            held.frame();
        }
        assert_eq!(held.backlog(model).waiting, 1, "{backend}");
        held.finish();
        for (frame, receiver) in receivers.iter().enumerate() {
            let expected = if (3..9).contains(&frame) { Err(ReadError::Replaced) } else { Ok(frame as f32) };
            assert_eq!(answer(&mut held.rig, receiver), expected, "{backend}: frame {frame}");
        }
    }
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Records every frame while the backend advances in one frame of ten, then stands still, then recovers. Returns the
/// memory of the process after a tenth of the frames and at the end.
fn record_too_fast(backend: Backend, policy: TensorBacklog, frames: usize) -> (u64, u64) {
    let mut held = Held::new(backend);
    held.open();
    let (model, x, y) = held.model(Some(policy));
    let (mut asked, mut answered, mut refused, mut early) = (0, 0, 0, 0);
    let mut receivers: Vec<(usize, TensorReceiver)> = Vec::new();
    for frame in 0..frames {
        match held.show(x, y, (frame % 1000) as f32) {
            Ok(receiver) => receivers.push((frame, receiver)),
            Err(OpError::Busy { .. }) => refused += 1,
            Err(error) => panic!("{backend}: {error}"),
        }
        asked += 1;
        let still = frame > frames / 2 && frame < frames / 2 + 600;
        if frame % 10 == 0 && !still {
            held.rig.app.update()
        } else {
            held.frame()
        }
        receivers.retain(|(frame, receiver)| {
            let Some(result) = receiver.try_recv() else { return true };
            match result {
                Ok(data) => assert_eq!(data.item::<f32>().unwrap(), (frame % 1000) as f32, "{backend} {policy:?}"),
                Err(error) => assert_eq!(error, ReadError::Replaced, "{backend} {policy:?}"),
            }
            answered += 1;
            false
        });
        assert!(receivers.len() <= 40, "{backend} {policy:?}: {} unanswered", receivers.len());
        if frame == frames / 10 {
            early = resident();
        }
    }
    held.finish();
    for (_, receiver) in &receivers {
        let _ = answer(&mut held.rig, receiver);
        answered += 1;
    }
    assert_eq!(asked, answered + refused, "{backend} {policy:?}");
    // Within three frames it is as if nothing had been.
    let receiver = held.show(x, y, 5.0).unwrap();
    assert_eq!(answer(&mut held.rig, &receiver), Ok(5.0), "{backend} {policy:?}");
    assert_eq!(held.backlog(model).waiting, 0, "{backend} {policy:?}");
    (early, resident())
}

const POLICIES: [TensorBacklog; 3] = [TensorBacklog::Wait, TensorBacklog::Latest, TensorBacklog::Queue(16)];

#[test]
fn a_backend_that_is_too_slow_loses_no_answer() {
    for backend in BACKENDS {
        for policy in POLICIES {
            record_too_fast(backend, policy, 1500);
        }
    }
}

#[test]
#[ignore = "takes minutes; run with --release"]
fn memory_stays_flat_over_100_000_frames() {
    for backend in BACKENDS {
        for policy in POLICIES {
            let (early, late) = record_too_fast(backend, policy, 100_000);
            println!("{backend} {policy:?}: {} MB, then {} MB", early >> 20, late >> 20);
            assert!(late as f64 <= early as f64 * 1.05, "{backend} {policy:?}: {early} bytes, then {late}");
        }
    }
}
