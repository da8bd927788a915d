//! Loading weights over several frames: bounded per frame, ordered by priority, identical to the file, and never used
//! when incomplete.

use std::sync::{Arc, Mutex};

use bevy::prelude::*;
use bevy_tensor_compute::formats::{TensorWeights, UploadSettings, WeightsProgress, WeightsReady, save_safetensors};
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Faults, Rig, assert_close};

/// Events of models, in order: progress in bytes, then the result.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Progress(Entity, u64, u64),
    Ready(Entity, Result<usize, String>),
}

#[derive(Resource, Clone, Default)]
struct Events(Arc<Mutex<Vec<Event>>>);

impl Events {
    fn watch(app: &mut App) -> Self {
        let events = Self::default();
        let (progress, ready) = (events.clone(), events.clone());
        app.add_observer(move |event: On<WeightsProgress>| {
            progress.0.lock().unwrap().push(Event::Progress(event.entity, event.done, event.total));
        });
        app.add_observer(move |event: On<WeightsReady>| {
            let result = event.result.clone().map_err(|error| error.to_string());
            ready.0.lock().unwrap().push(Event::Ready(event.entity, result));
        });
        events
    }

    fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    /// Updates until this many models are ready.
    fn wait(&self, rig: &mut Rig, count: usize) {
        let ready = |event: &Event| matches!(event, Event::Ready(..));
        rig.step_until(|_| self.all().iter().filter(|event| ready(event)).count() == count);
    }
}

/// A rig with an asset server.
fn rig(backend: Backend) -> (Rig, Events) {
    let mut rig = match backend {
        Backend::Gpu => Rig::new(backend),
        Backend::Cpu => {
            let mut app = App::new();
            app.add_plugins((
                MinimalPlugins,
                AssetPlugin { file_path: std::env::temp_dir().display().to_string(), ..default() },
            ));
            app.add_plugins(TensorComputePlugin { backend: BackendChoice::Cpu, ..default() }).init_resource::<Faults>();
            app.finish();
            app.cleanup();
            Rig { app, backend }
        }
    };
    let events = Events::watch(&mut rig.app);
    (rig, events)
}

/// Numbers that differ by row and column.
fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 1013) as f32 / 64.0 - 7.0).collect()
}

fn add(rig: &mut Rig, tensors: Vec<(String, TensorData)>, priority: i32) -> Entity {
    let handle = rig.app.world_mut().resource_mut::<Assets<TensorWeights>>().add(TensorWeights::from(tensors));
    rig.app.world_mut().spawn(LoadWeights::new(handle).with_priority(priority)).id()
}

fn find(rig: &mut Rig, model: Entity, name: &'static str) -> Entity {
    let find = move |models: TensorModels| models.find(model, name).unwrap();
    let id = rig.app.world_mut().register_system(find);
    rig.app.world_mut().run_system(id).unwrap()
}

#[test]
fn weights_arrive_within_the_frames_budget_and_as_they_were() {
    const BUDGET: u64 = 64 << 10;
    for backend in BACKENDS {
        let (mut rig, events) = rig(backend);
        rig.app.insert_resource(UploadSettings { bytes_per_frame: BUDGET as usize });
        // Tensors larger than the budget of a frame, one for each way of splitting, and many that fit.
        let mut tensors = vec![
            ("floats".to_owned(), TensorData::new(&ramp(301 * 100), [301, 100]).unwrap()),
            ("bytes".to_owned(), TensorData::new(&[7u8; 1027 * 77], [1027, 77]).unwrap()),
            ("blocks".to_owned(), TensorData::quantized(DType::Q8_0, [1023, 96], &ramp(1023 * 96)).unwrap()),
        ];
        tensors.extend((0..20).map(|i| (format!("small {i}"), TensorData::new(&ramp(1000 + i), [1000 + i]).unwrap())));
        let expected = tensors.clone();
        let model = add(&mut rig, tensors, 0);
        events.wait(&mut rig, 1);

        let total = expected.iter().map(|(_, data)| data.bytes().len() as u64).sum::<u64>();
        let mut before = 0;
        for event in events.all() {
            match event {
                Event::Progress(entity, done, all) => {
                    assert_eq!((entity, all), (model, total));
                    // The CPU loads whole tensors, because it does not copy them.
                    assert!(backend == Backend::Cpu || done - before <= BUDGET, "{} bytes in a frame", done - before);
                    before = done;
                }
                Event::Ready(entity, result) => assert_eq!((entity, result), (model, Ok(expected.len()))),
            }
        }
        assert_eq!(before, total);
        if backend == Backend::Gpu {
            let frames = events.all().len() as u64 - 1;
            assert!(frames >= total.div_ceil(BUDGET), "{frames} frames");
        }
        for (name, data) in expected {
            let tensor = find(&mut rig, model, name.leak());
            assert_eq!(rig.read(tensor), data);
        }
        assert!(rig.faults().is_empty(), "{:?}", rig.faults());
    }
}

#[test]
fn the_cpu_takes_weights_in_before_work_needs_them() {
    let (mut rig, events) = rig(Backend::Cpu);
    let values = ramp(300 * 100);
    let data = TensorData::new(&values, [300, 100]).unwrap();
    let model = add(&mut rig, vec![("weights".to_owned(), data)], 0);
    events.wait(&mut rig, 1);
    // No work has been recorded.
    rig.step_until(|app| app.world().resource::<TensorDiagnostics>().figures().host_bytes == 4 * 300 * 100);
    let tensor = find(&mut rig, model, "weights");
    assert_eq!(rig.read(tensor).to_f32(), values);
    assert!(rig.faults().is_empty());
}

#[test]
fn urgent_models_come_first_and_equals_take_turns() {
    for backend in BACKENDS {
        let (mut rig, events) = rig(backend);
        rig.app.insert_resource(UploadSettings { bytes_per_frame: 8 << 10 });
        let tensors = || (0..8).map(|i| (format!("{i}"), TensorData::new(&ramp(1024), [1024]).unwrap())).collect();
        let late = add(&mut rig, tensors(), 0);
        let [a, b] = [add(&mut rig, tensors(), 1), add(&mut rig, tensors(), 1)];
        events.wait(&mut rig, 3);
        let done = |model| move |event: &Event| *event == Event::Ready(model, Ok(8));
        let all = events.all();
        let at = |model| all.iter().position(done(model)).unwrap();
        assert!(at(a) < at(late) && at(b) < at(late), "{all:?}");
        // When the first of two equal priorities was half loaded, so was the other.
        let half =
            |event: &&Event| matches!(event, Event::Progress(model, done, total) if *model == b && done * 2 == *total);
        assert!(all[..at(a)].iter().any(|event| half(&event)), "{all:?}");
    }
}

#[test]
fn files_that_cannot_be_used_are_named_and_change_nothing() {
    let name = |kind: &str| format!("tensor_loading_{}_{kind}.safetensors", std::process::id());
    let path = |kind: &str| std::env::temp_dir().join(name(kind));
    save_safetensors(
        path("good"),
        &[("x".to_owned(), TensorData::quantized(DType::Q8_0, [2, 32], &ramp(64)).unwrap())],
    )
    .unwrap();
    let good = std::fs::read(path("good")).unwrap();
    std::fs::write(path("short"), &good[..good.len() - 1]).unwrap();
    std::fs::write(path("noise"), [0xffu8; 64]).unwrap();
    // Blocks of an unknown type.
    let text = String::from_utf8_lossy(&good).into_owned();
    assert!(text.contains("q8_0"));
    let strange: Vec<u8> =
        good.windows(4).position(|w| w == b"q8_0").map(|at| [&good[..at], b"q9_9", &good[at + 4..]].concat()).unwrap();
    std::fs::write(path("strange"), strange).unwrap();

    let (mut rig, events) = rig(Backend::Cpu);
    for (kind, part) in [
        ("missing", "tensor_loading"),
        ("short", "bytes but its header declares"),
        ("noise", "exceeds the limit"),
        ("strange", "q9_9"),
    ] {
        let handle = rig.app.world().resource::<AssetServer>().load(name(kind));
        let model = rig.app.world_mut().spawn(LoadWeights::new(handle)).id();
        events.wait(&mut rig, 1);
        let Some(Event::Ready(entity, Err(message))) = events.all().pop() else { panic!("{:?}", events.all()) };
        assert!(entity == model && message.contains(part) && message.contains(&name(kind)), "{message}");
        let of_rust = message.contains("Loader") || message.lines().count() > 1;
        assert!(!of_rust, "neither types nor backtraces: {message}");
        assert!(rig.app.world().get::<bevy_tensor_compute::tensor::ModelTensors>(model).is_none());
        events.0.lock().unwrap().clear();
    }
    let handle = rig.app.world().resource::<AssetServer>().load(name("good"));
    let model = rig.app.world_mut().spawn(LoadWeights::new(handle)).id();
    events.wait(&mut rig, 1);
    let tensor = find(&mut rig, model, "x");
    let data = rig.read(tensor);
    assert_eq!(data.dtype(), DType::Q8_0);
    assert_close(&data.to_f32(), &ramp(64), 0.05, 0.0, "rounded to blocks");
    for kind in ["good", "short", "noise", "strange"] {
        std::fs::remove_file(path(kind)).unwrap();
    }
}
