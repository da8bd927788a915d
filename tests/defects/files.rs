//! Files: what cannot be saved does not destroy what was, and what a file says is never trusted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bevy::prelude::*;
use bevy_tensor_compute::error::{OpError, TensorError};
use bevy_tensor_compute::formats::{
    FormatError, SafetensorsFile, TensorWeights, TensorsLoaded, TensorsSaved, UploadSettings, WeightsReady, save_npy,
    save_safetensors,
};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::ModelTensors;

use crate::common::{BACKENDS, Faults, Rig};

/// A folder of its own for a test, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tensor_defects_{}_{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A model's file with this number in it.
    fn good(&self, name: &str, number: f32) -> PathBuf {
        let path = self.file(name);
        save_safetensors(&path, &[("w".to_owned(), TensorData::new(&[number], [1]).unwrap())]).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What was reported, in order.
#[derive(Clone, Default)]
struct Reports {
    saved: Arc<Mutex<Vec<TensorsSaved>>>,
    loaded: Arc<Mutex<Vec<TensorsLoaded>>>,
    ready: Arc<Mutex<Vec<WeightsReady>>>,
}

impl Reports {
    fn watch(app: &mut App) -> Self {
        let reports = Self::default();
        let Reports { saved, loaded, ready } = reports.clone();
        app.add_observer(move |event: On<TensorsSaved>| saved.lock().unwrap().push(event.clone()));
        app.add_observer(move |event: On<TensorsLoaded>| loaded.lock().unwrap().push(event.clone()));
        app.add_observer(move |event: On<WeightsReady>| ready.lock().unwrap().push(event.clone()));
        reports
    }

    fn next_saved(&self, rig: &mut Rig) -> TensorsSaved {
        rig.step_until(|_| !self.saved.lock().unwrap().is_empty());
        self.saved.lock().unwrap().remove(0)
    }

    fn next_loaded(&self, rig: &mut Rig) -> TensorsLoaded {
        rig.step_until(|_| !self.loaded.lock().unwrap().is_empty());
        self.loaded.lock().unwrap().remove(0)
    }

    fn next_ready(&self, rig: &mut Rig) -> WeightsReady {
        rig.step_until(|_| !self.ready.lock().unwrap().is_empty());
        self.ready.lock().unwrap().remove(0)
    }
}

/// A rig with an asset server.
fn rig(backend: Backend) -> (Rig, Reports) {
    let mut rig = match backend {
        Backend::Gpu => Rig::new(backend),
        Backend::Cpu => {
            let mut app = App::new();
            app.add_plugins((MinimalPlugins, AssetPlugin::default()));
            app.add_plugins(TensorComputePlugin { backend: BackendChoice::Cpu, ..default() }).init_resource::<Faults>();
            app.finish();
            app.cleanup();
            app.update();
            Rig { app, backend }
        }
    };
    let reports = Reports::watch(&mut rig.app);
    (rig, reports)
}

fn with_files<T: 'static>(rig: &mut Rig, work: impl FnMut(TensorFiles) -> T + Send + Sync + 'static) -> T {
    let id = rig.app.world_mut().register_system(work);
    rig.app.world_mut().run_system(id).unwrap()
}

fn save(rig: &mut Rig, model: Entity, path: &Path) -> Result<(), OpError> {
    let path = path.to_owned();
    with_files(rig, move |mut files| files.save(model, path.clone()))
}

fn load(rig: &mut Rig, model: Entity, path: &Path) {
    let path = path.to_owned();
    with_files(rig, move |mut files| files.load(model, path.clone(), None));
}

fn names(rig: &Rig, model: Entity) -> Vec<String> {
    let tensors = rig.app.world().get::<ModelTensors>(model).map(|tensors| tensors.iter().collect::<Vec<_>>());
    let name = |tensor: Entity| rig.app.world().get::<Name>(tensor).unwrap().to_string();
    tensors.unwrap_or_default().into_iter().map(name).collect()
}

// 3

#[test]
fn a_model_that_is_gone_empty_or_loading_is_not_saved_over_a_good_file() {
    for backend in BACKENDS {
        let folder = Folder::new();
        let path = folder.good("model.safetensors", 7.0);
        let before = fs::read(&path).unwrap();
        let (mut rig, reports) = rig(backend);
        let gone = rig.app.world_mut().spawn(TensorModel).id();
        rig.app.world_mut().despawn(gone);
        let empty = rig.app.world_mut().spawn(TensorModel).id();
        let weights = TensorWeights::from(vec![("w".to_owned(), TensorData::new(&[1.0f32], [1]).unwrap())]);
        let handle = rig.app.world_mut().resource_mut::<Assets<TensorWeights>>().add(weights);
        let arriving = rig.app.world_mut().spawn(LoadWeights::new(handle)).id();
        let reading = rig.app.world_mut().spawn(TensorModel).id();
        load(&mut rig, reading, &path);
        // All in one frame, before anything can arrive.
        let errors: Vec<(Entity, OpError)> = [gone, empty, arriving, reading]
            .map(|model| (model, save(&mut rig, model, &path).unwrap_err()))
            .into_iter()
            .collect();
        for (model, error) in errors {
            match model {
                _ if model == gone => assert!(matches!(error, OpError::MissingModel { .. }), "{error}"),
                _ if model == empty => assert!(matches!(error, OpError::EmptyModel { .. }), "{error}"),
                _ => assert!(matches!(error, OpError::LoadingModel { .. }), "{error}"),
            }
            let event = reports.next_saved(&mut rig);
            assert_eq!((event.entity, event.result), (model, Err(FormatError::Refused(Box::new(error)))));
            assert_eq!(fs::read(&path).unwrap(), before, "{backend}: the old file stays");
        }
        // Once everything has arrived, both can be saved.
        reports.next_ready(&mut rig);
        reports.next_loaded(&mut rig).result.unwrap();
        for model in [arriving, reading] {
            save(&mut rig, model, &path).unwrap();
            assert_eq!(reports.next_saved(&mut rig).result, Ok(1), "{backend}");
        }
    }
}

#[test]
fn every_save_and_load_sends_an_event_even_if_the_model_is_despawned_meanwhile() {
    for backend in BACKENDS {
        let folder = Folder::new();
        let (mut rig, reports) = rig(backend);
        let path = folder.file("model.safetensors");
        let model = rig.app.world_mut().spawn(TensorModel).id();
        let tensor = Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap();
        rig.app.world_mut().spawn((Name::new("w"), tensor, TensorOf(model)));
        save(&mut rig, model, &path).unwrap();
        rig.app.world_mut().despawn(model);
        assert_eq!(reports.next_saved(&mut rig).result, Ok(1), "{backend}");
        assert_eq!(SafetensorsFile::open(&path).unwrap().names(), ["w"]);

        let model = rig.app.world_mut().spawn(TensorModel).id();
        load(&mut rig, model, &path);
        rig.app.world_mut().despawn(model);
        let event = reports.next_loaded(&mut rig);
        assert_eq!(event.result, Err(FormatError::MissingModel { model }), "{backend}");
    }
}

// 6

/// Weights of so many tensors of 40,000 bytes.
fn weights(rig: &mut Rig, name: &str, count: usize, value: f32) -> Handle<TensorWeights> {
    let data = |i: usize| (format!("{name} {i}"), TensorData::new(&vec![value; 10_000], [100, 100]).unwrap());
    let weights = TensorWeights::from((0..count).map(data).collect::<Vec<_>>());
    rig.app.world_mut().resource_mut::<Assets<TensorWeights>>().add(weights)
}

#[test]
fn weights_that_replace_others_while_these_arrive_are_loaded_and_reported() {
    for backend in BACKENDS {
        let (mut rig, reports) = rig(backend);
        // A tensor and a half in a frame, so that the replacement finds one in parts.
        rig.app.insert_resource(UploadSettings { bytes_per_frame: 20_000 });
        let (old, new) = (weights(&mut rig, "old", 20, 1.0), weights(&mut rig, "new", 3, 2.0));
        let model = rig.app.world_mut().spawn(LoadWeights::new(old)).id();
        for _ in 0..6 {
            rig.app.update();
        }
        assert!(!names(&rig, model).is_empty(), "{backend}: some of it has arrived");
        rig.app.world_mut().entity_mut(model).insert(LoadWeights::new(new));
        let ready = reports.next_ready(&mut rig);
        assert_eq!((ready.entity, ready.result.map_err(|error| error.to_string())), (model, Ok(3)), "{backend}");
        let mut arrived = names(&rig, model);
        arrived.sort();
        assert_eq!(arrived, ["new 0", "new 1", "new 2"], "{backend}: nothing of the old file is left");
        for _ in 0..20 {
            rig.app.update();
        }
        assert!(reports.ready.lock().unwrap().is_empty(), "{backend}: one report");
        assert!(rig.app.world().get::<LoadWeights>(model).is_none());
    }
}

#[test]
fn removing_load_weights_cancels_it_and_leaves_nothing_behind() {
    for backend in BACKENDS {
        let (mut rig, reports) = rig(backend);
        rig.app.insert_resource(UploadSettings { bytes_per_frame: 20_000 });
        rig.settle();
        let before = (rig.app.world_mut().query::<&Tensor>().iter(rig.app.world()).count(), rig.figures().host_bytes);
        let handle = weights(&mut rig, "old", 20, 1.0);
        let model = rig.app.world_mut().spawn(LoadWeights::new(handle)).id();
        for _ in 0..6 {
            rig.app.update();
        }
        let archetype = |rig: &Rig| rig.app.world().entity(model).archetype().component_count();
        let while_arriving = archetype(&rig);
        rig.app.world_mut().entity_mut(model).remove::<LoadWeights>();
        for _ in 0..6 {
            rig.app.update();
        }
        rig.settle();
        assert!(reports.ready.lock().unwrap().is_empty(), "{backend}");
        assert!(names(&rig, model).is_empty(), "{backend}");
        // The component of the request, and the one that holds the content of the file.
        assert!(archetype(&rig) + 2 <= while_arriving, "{backend}: {} of {while_arriving}", archetype(&rig));
        let after = (rig.app.world_mut().query::<&Tensor>().iter(rig.app.world()).count(), rig.figures().host_bytes);
        assert_eq!(after, before, "{backend}");
        // The model can load another file.
        let handle = weights(&mut rig, "new", 2, 2.0);
        rig.app.world_mut().entity_mut(model).insert(LoadWeights::new(handle));
        assert_eq!(reports.next_ready(&mut rig).result.map_err(|error| error.to_string()), Ok(2), "{backend}");
    }
}

// 9

#[derive(Component)]
struct Doomed;

/// Despawns in the schedule of the crate's own systems, whose commands are applied later or earlier.
fn doom(app: &mut App) {
    let despawn = |doomed: Query<Entity, With<Doomed>>, mut commands: Commands| {
        doomed.iter().for_each(|entity| commands.entity(entity).despawn());
    };
    app.add_systems(First, despawn).add_systems(PreUpdate, despawn);
    app.add_systems(PostUpdate, despawn).add_systems(Last, despawn);
}

#[test]
fn despawning_in_any_schedule_does_not_panic() {
    for backend in BACKENDS {
        let (mut rig, _) = rig(backend);
        if rig.app.world().get_resource::<Assets<Image>>().is_none() {
            rig.app.init_asset::<Image>();
        }
        let image = bevy_tensor_compute::image::image_for_tensor(4, 4);
        let image = rig.app.world_mut().resource_mut::<Assets<Image>>().add(image);
        let handle = weights(&mut rig, "w", 3, 1.0);
        // Many apps and frames, since the order of systems is not fixed.
        for round in 0..8 {
            doom(&mut rig.app);
            for _ in 0..2 {
                let world = rig.app.world_mut();
                world.spawn((Doomed, LoadWeights::new(handle.clone())));
                world.spawn((Doomed, TensorFromImage { image: image.clone(), live: true }));
                let pixels = Tensor::zeros([4, 4, 4], DType::U8).unwrap();
                world.spawn((Doomed, pixels, ImageFromTensor { image: image.clone(), live: true }));
                world.spawn((Doomed, Tensor::zeros([4], DType::F32).unwrap(), Pinned));
                rig.app.update();
            }
            assert_eq!(rig.faults(), [], "{backend} round {round}");
        }
    }
}

#[test]
fn a_tensor_can_be_pinned_and_released_while_it_is_despawned() {
    let (mut rig, _) = rig(Backend::Cpu);
    let model = rig.app.world_mut().spawn(TensorModel).id();
    let tensor = Tensor::zeros([4], DType::F32).unwrap();
    let tensor = rig.app.world_mut().spawn((Name::new("w"), tensor, TensorOf(model))).id();
    let system = move |mut memory: TensorMemory, mut commands: Commands| {
        commands.entity(tensor).despawn();
        memory.pin(tensor).unwrap();
        memory.unpin(tensor).unwrap();
        memory.release(model);
    };
    let id = rig.app.world_mut().register_system(system);
    rig.app.world_mut().run_system(id).unwrap();
    rig.app.update();
}

// 10

/// A file with this header and so many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn hostile_headers_are_errors() {
    let tensor = |name: &str, dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{from},{to}]}}"#)
    };
    let metadata = |name: &str, dtype: &str| format!(r#""__metadata__":{{"dtype.{name}":"{dtype}"}}"#);
    let huge = usize::MAX / 18 * 18;
    let a = tensor("a", "F32", "1", 0, 4);
    let cases: Vec<(&str, String, usize)> = vec![
        ("a name twice, same place", format!("{{{a},{a}}}"), 4),
        ("a name twice, in a row", format!("{{{a},{}}}", tensor("a", "F32", "1", 4, 8)), 8),
        ("a name twice, second valid alone", format!("{{{},{a}}}", tensor("a", "F32", "2", 0, 8)), 4),
        ("metadata twice", format!("{{{},{},{a}}}", metadata("a", "q4_0"), metadata("b", "q4_0")), 4),
        ("a tensor in place of metadata", format!("{{{}}}", tensor("__metadata__", "F32", "1", 0, 4)), 4),
        ("elements overflow", format!("{{{}}}", tensor("a", "F32", &format!("{huge},{huge}"), 0, 4)), 4),
        ("bits overflow", format!("{{{}}}", tensor("a", "F64", &format!("{}", usize::MAX / 8), 0, 4)), 4),
        ("offsets beyond the file", format!("{{{}}}", tensor("a", "F32", "4", 0, 16)), 8),
        ("offsets at the end of numbers", format!("{{{}}}", tensor("a", "F32", "0", u64::MAX, u64::MAX)), 0),
        ("offsets backwards", format!("{{{}}}", tensor("a", "F32", "1", 8, 4)), 8),
        ("a gap", format!("{{{a},{}}}", tensor("b", "F32", "1", 8, 12)), 12),
        ("an overlap", format!("{{{a},{}}}", tensor("b", "F32", "1", 0, 4)), 4),
        ("data that nobody has", format!("{{{a}}}"), 8),
        ("a negative size", format!("{{{}}}", tensor("a", "F32", "-1", 0, 4)), 4),
        ("not an object", "[1]".to_owned(), 0),
        ("no JSON", "{".to_owned(), 0),
        ("deep JSON", "[".repeat(100_000), 0),
        ("an empty header", String::new(), 0),
    ];
    let folder = Folder::new();
    let path = folder.file("hostile.safetensors");
    for (what, header, data) in cases {
        let bytes = file(&header, data);
        fs::write(&path, &bytes).unwrap();
        let opened = SafetensorsFile::open(&path).map(|file| file.names());
        assert!(matches!(opened, Err(FormatError::Header { .. } | FormatError::Length { .. })), "{what}: {opened:?}");
        let decoded = TensorWeights::from_bytes(&path, &bytes).map(|weights| weights.tensors().len());
        assert!(decoded.is_err(), "{what}: {decoded:?}");
    }
    // Valid headers of tensors that cannot be addressed.
    for dtype in ["q4_0", "q8_0", "q4_128"] {
        let blocks = (usize::MAX / (18 * 34 * 66)) * (18 * 34 * 66);
        let header = format!("{{{},{}}}", metadata("a", dtype), tensor("a", "U8", &format!("0,{blocks}"), 0, 0));
        let bytes = file(&header, 0);
        fs::write(&path, &bytes).unwrap();
        let read = SafetensorsFile::open(&path).unwrap().read("a");
        assert!(
            matches!(&read, Err(FormatError::Tensor { error, .. }) if matches!(**error, TensorError::TooLarge { .. })),
            "{read:?}"
        );
        assert!(TensorWeights::from_bytes(&path, &bytes).is_err());
    }
    let header = format!("{{{}}}", tensor("a", "F32", &format!("0,{}", 1u64 << 40), 0, 0));
    fs::write(&path, file(&header, 0)).unwrap();
    assert!(matches!(SafetensorsFile::open(&path).unwrap().read("a"), Err(FormatError::Tensor { .. })));
    // Lengths of the header itself.
    for length in [u64::MAX, u64::MAX - 7, 100_000_001, 9, 1 << 40] {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        fs::write(&path, &bytes).unwrap();
        let opened = SafetensorsFile::open(&path).map(|file| file.names());
        assert!(matches!(opened, Err(FormatError::Header { .. } | FormatError::Length { .. })), "{length}: {opened:?}");
        assert!(TensorWeights::from_bytes(&path, &bytes).is_err());
    }
    for short in 0..8 {
        assert!(TensorWeights::from_bytes(&path, &vec![0; short]).is_err());
    }
}

#[test]
fn names_that_cannot_be_loaded_are_not_saved() {
    let folder = Folder::new();
    let path = folder.good("model.safetensors", 7.0);
    let before = fs::read(&path).unwrap();
    let one = TensorData::new(&[1.0f32], [1]).unwrap();
    let named = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), one.clone())).collect::<Vec<_>>();
    for names in [&["__metadata__"][..], &["a", "a"], &["a", "b", "a"], &["a", "__metadata__"]] {
        let error = save_safetensors(&path, &named(names)).unwrap_err();
        assert!(matches!(error, FormatError::Name { .. }), "{names:?}: {error}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
    // Whatever else a name is, it comes back.
    let odd = ["", "\"", "\\", "a\nb", "ä€😀", "dtype.a", "\u{0}", "__metadata", "data_offsets"];
    save_safetensors(&path, &named(&odd)).unwrap();
    let mut file = SafetensorsFile::open(&path).unwrap();
    for name in odd {
        assert_eq!(file.read(name), Ok(one.clone()), "{name:?}");
    }
    // A model whose tensor has such a name: an error in the event, and the file stays.
    let (mut rig, reports) = rig(Backend::Cpu);
    let model = rig.app.world_mut().spawn(TensorModel).id();
    let tensor = Tensor::from_slice(&[1.0f32], [1]).unwrap();
    rig.app.world_mut().spawn((Name::new("__metadata__"), tensor, TensorOf(model)));
    let before = fs::read(&path).unwrap();
    save(&mut rig, model, &path).unwrap();
    assert!(matches!(reports.next_saved(&mut rig).result, Err(FormatError::Name { .. })));
    assert_eq!(fs::read(&path).unwrap(), before);
}

// 14

#[test]
fn errors_of_the_disk_are_told_from_errors_of_the_file() {
    let folder = Folder::new();
    let one = [("w".to_owned(), TensorData::new(&[1.0f32], [1]).unwrap())];
    // A file where a folder should be, and a folder where the file should be.
    let inside = folder.good("model.safetensors", 1.0).join("model.safetensors");
    let is_io = |error: FormatError| assert!(matches!(error, FormatError::Io { .. }), "{error}");
    is_io(save_safetensors(&inside, &one).unwrap_err());
    is_io(save_safetensors(&folder.0, &one).unwrap_err());
    is_io(save_safetensors(folder.file("missing").join("x"), &one).unwrap_err());
    is_io(save_npy(&inside, &one[0].1).unwrap_err());
    assert!(matches!(SafetensorsFile::open(&inside), Err(FormatError::Io { .. })));
    // No temporary files are left.
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn saves_and_loads_of_one_path_run_in_the_order_of_their_calls() {
    for backend in BACKENDS {
        let folder = Folder::new();
        let path = folder.file("model.safetensors");
        fs::create_dir(folder.file("sub")).unwrap();
        let (mut rig, reports) = rig(backend);
        let target = rig.app.world_mut().spawn(TensorModel).id();
        let models: Vec<Entity> = (0..12)
            .map(|i| {
                let model = rig.app.world_mut().spawn(TensorModel).id();
                // The first are the largest, so that they would be the last without an order.
                let values = vec![i as f32; 1 + (12 - i) * 40_000];
                let tensor = Tensor::from_slice(&values, [values.len()]).unwrap();
                rig.app.world_mut().spawn((Name::new("w"), tensor, TensorOf(model)));
                model
            })
            .collect();
        for (i, &model) in models.iter().enumerate() {
            // The same file by several names.
            let path = if i % 2 == 0 { path.clone() } else { folder.0.join("./sub/../model.safetensors") };
            save(&mut rig, model, &path).unwrap();
        }
        load(&mut rig, target, &path);
        for &model in &models {
            let event = reports.next_saved(&mut rig);
            assert_eq!((event.entity, event.result), (model, Ok(1)), "{backend}");
        }
        reports.next_loaded(&mut rig).result.unwrap();
        let loaded = rig.app.world().get::<ModelTensors>(target).unwrap().iter().next().unwrap();
        assert_eq!(rig.read(loaded).to_f32()[0], 11.0, "{backend}: the load comes after all saves");
        let last = SafetensorsFile::open(&path).unwrap().read("w").unwrap();
        assert_eq!(last.to_f32()[0], 11.0, "{backend}");
    }
}

#[test]
fn nobody_can_put_a_link_where_a_temporary_file_will_be() {
    let folder = Folder::new();
    let path = folder.file("model.safetensors");
    let victim = folder.file("victim");
    fs::write(&victim, b"precious").unwrap();
    // What the names were before: the process and a small number.
    #[cfg(unix)]
    for number in 0..2000 {
        let name = format!("model.safetensors.{}-{number}.tmp", std::process::id());
        std::os::unix::fs::symlink(&victim, folder.file(&name)).unwrap();
    }
    for i in 0..3 {
        folder.good("model.safetensors", i as f32);
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(SafetensorsFile::open(&path).unwrap().read("w").unwrap().to_f32(), [2.0]);
}
