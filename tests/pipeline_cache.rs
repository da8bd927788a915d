//! Pipelines: compiled once and off the frame, bounded, compiled ahead, kept for the next start.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::{
    CacheFound, OpSpec, PipelineList, PipelineReport, PipelineSettings, PipelineState, TensorPipelines,
    TensorReadyState, TensorWarmUp, WarmUpState,
};

use crate::common::Rig;

fn pipelines(rig: &Rig) -> TensorPipelines {
    rig.app.world().resource::<TensorPipelines>().clone()
}

fn report(rig: &Rig) -> PipelineReport {
    pipelines(rig).report()
}

fn with(pipelines: PipelineSettings) -> Rig {
    Rig::with(Backend::Gpu, TensorComputePlugin { pipelines, ..default() })
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tensor_pipelines_{}_{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tensor(rig: &mut Rig, shape: [usize; 2]) -> Entity {
    rig.spawn(Tensor::random_uniform(shape, -1.0, 1.0, 9, DType::F32).unwrap())
}

/// A product, its softmax and a sum.
fn work(ops: &TensorCommands, x: Entity, out: Entity) -> OpResult<()> {
    let y = ops.matmul(x, x)?;
    let y = ops.softmax(y, -1)?;
    let y = ops.sum(y, TensorAxis(0).keep())?;
    ops.store(y, out)
}

#[test]
fn a_kernel_is_compiled_once_however_often_it_is_used() {
    let mut rig = Rig::new(Backend::Gpu);
    let (a, b) = (tensor(&mut rig, [32, 32]), tensor(&mut rig, [20, 20]));
    // The tensors' own contents are made by a kernel too.
    rig.read(a);
    rig.read(b);
    let before = report(&rig);
    for x in [a, b, a] {
        rig.compute(move |ops| ops.softmax(x, -1)).unwrap();
    }
    let after = report(&rig);
    assert_eq!((after.misses - before.misses, after.hits - before.hits), (1, 1), "two plans, one pipeline");
    assert_eq!(rig.figures().pipelines_built, after.misses);
    assert_eq!((after.in_flight, after.evicted), (0, 0));
    let softmax = after.pipelines.iter().find(|pipeline| &*pipeline.kernel == "softmax").unwrap();
    assert_eq!((softmax.state, softmax.builds, softmax.hits, softmax.launches), (PipelineState::Ready, 1, 1, 3));
    assert!(softmax.compile.unwrap() > core::time::Duration::ZERO && softmax.idle.is_some());
    assert!(after.compile >= softmax.compile.unwrap());
    assert!(!softmax.variant.is_empty() && !softmax.offered);
}

#[test]
fn a_pipeline_is_rebuilt_on_request_and_works_as_before() {
    for synchronous in [true, false] {
        let mut rig = with(PipelineSettings { synchronous, ..default() });
        let x = tensor(&mut rig, [8, 8]);
        let first = rig.compute(move |ops| ops.softmax(x, -1)).unwrap();
        let find = |rig: &Rig| report(rig).pipelines.into_iter().find(|p| &*p.kernel == "softmax").unwrap();
        let id = find(&rig).id;
        pipelines(&rig).rebuild(id);
        rig.step_until(|app| {
            let report = app.world().resource::<TensorPipelines>().report();
            report.in_flight == 0 && report.pipelines.iter().any(|p| p.id == id && p.builds == 2)
        });
        assert_eq!(rig.compute(move |ops| ops.softmax(x, -1)).unwrap().bytes(), first.bytes());
        assert_eq!((find(&rig).builds, find(&rig).state), (2, PipelineState::Ready));
        assert_eq!(rig.faults(), []);
    }
}

#[test]
fn beyond_the_capacity_idle_pipelines_go_and_those_in_use_stay() {
    let list = {
        let mut rig = Rig::new(Backend::Gpu);
        let (x, out) = (tensor(&mut rig, [16, 16]), tensor(&mut rig, [1, 16]));
        rig.record(move |ops| work(ops, x, out)).unwrap();
        rig.read(out);
        pipelines(&rig).list()
    };
    assert!(list.len() >= 3, "{}", list.len());
    let mut rig = with(PipelineSettings { synchronous: true, capacity: 2, ..default() });
    pipelines(&rig).precompile("list", 0, &list);
    rig.step_until(|app| !app.world().resource::<TensorReadyState>().warm_ups.is_empty());
    rig.step_until(|app| app.world().resource::<TensorReadyState>().is_ready());
    pipelines(&rig).trim();
    rig.app.update();
    let idle = report(&rig);
    assert_eq!((idle.pipelines.len(), idle.evicted), (0, list.len() as u64), "nobody uses them");
    // In use: three plans with a kernel each, though there is room for two.
    let (x, out) = (tensor(&mut rig, [16, 16]), tensor(&mut rig, [1, 16]));
    rig.record(move |ops| work(ops, x, out)).unwrap();
    let first = rig.read(out);
    let used = report(&rig);
    assert!(used.pipelines.len() >= 3, "{:?}", used.pipelines);
    pipelines(&rig).trim();
    rig.app.update();
    rig.record(move |ops| work(ops, x, out)).unwrap();
    assert_eq!(rig.read(out).bytes(), first.bytes());
    assert_eq!(report(&rig).misses, used.misses, "none that is in use went");
}

#[derive(Resource, Default)]
struct Seen(Vec<TensorWarmUp>);

#[test]
fn a_recorded_model_is_warmed_up_without_running() {
    let mut rig = with(PipelineSettings::default());
    rig.app.init_resource::<Seen>();
    rig.app.add_observer(|warm_up: On<TensorWarmUp>, mut seen: ResMut<Seen>| seen.0.push(warm_up.clone()));
    let x = rig.spawn(Tensor::from_slice(&[0.5f32; 256], [16, 16]).unwrap());
    let out = rig.spawn(Tensor::from_slice(&[7.0f32; 16], [1, 16]).unwrap());
    assert!(rig.app.world().resource::<TensorReadyState>().is_ready());
    rig.with_ops(|ops| {
        ops.warm_up("model", 5, |ops| {
            work(ops, x, out)?;
            ops.notify(out)
        })
        .unwrap();
    });
    rig.step_until(|app| app.world().resource::<TensorReadyState>().warm_ups.len() == 1);
    rig.step_until(|app| app.world().resource::<TensorReadyState>().is_ready());
    let state = rig.app.world().resource::<TensorReadyState>().clone();
    assert_eq!((state.progress(), state.errors().count()), (1.0, 0));
    assert_eq!((state.warm_ups[0].label.as_str(), &state.warm_ups[0].state), ("model", &WarmUpState::Ready));
    assert_eq!((state.warm_ups[0].done, state.warm_ups[0].total), (3, 3));
    let seen = &rig.app.world().resource::<Seen>().0;
    assert!(seen.len() >= 2 && seen.last().unwrap().0.is_finished(), "{seen:?}");
    assert!(!seen[0].0.is_finished(), "{seen:?}");

    let before = rig.figures();
    assert_eq!(rig.read(out).as_slice::<f32>().unwrap().to_vec(), [7.0; 16], "the work did not happen");
    let built = rig.figures().pipelines_built;
    rig.record(move |ops| work(ops, x, out)).unwrap();
    let first = rig.figures().pipelines_built;
    assert_eq!(rig.read(out).as_slice::<f32>().unwrap().to_vec(), [1.0; 16]);
    assert_eq!((built, first), (before.pipelines_built, before.pipelines_built));
    assert_eq!(rig.figures().pipelines_built, before.pipelines_built, "all was there");
    assert_eq!(rig.faults(), []);
}

#[test]
fn ops_by_name_and_saved_lists_are_compiled_ahead() {
    let folder = Folder::new();
    let file = folder.0.join("kernels.json");
    let specs = [
        OpSpec::new("matmul", [[48, 48], [48, 48]]),
        OpSpec::new("gelu", [[48, 48]]),
        OpSpec::new("add", [[48, 48], [48, 48]]),
        OpSpec::new("layer_norm", [[48, 48]]),
        OpSpec::new("softmax", [[48, 48]]),
    ];
    let mut rig = with(PipelineSettings::default());
    rig.with_ops(|ops| {
        ops.warm_up_ops("ops", 0, &specs).unwrap();
        let unknown = ops.warm_up_ops("none", 0, &[OpSpec::new("frobnicate", [[2, 2]])]).unwrap_err();
        assert!(unknown.to_string().contains("frobnicate"), "{unknown}");
    });
    rig.step_until(|app| !app.world().resource::<TensorReadyState>().warm_ups.is_empty());
    rig.step_until(|app| app.world().resource::<TensorReadyState>().is_ready());
    assert_eq!(rig.app.world().resource::<TensorReadyState>().errors().count(), 0);
    let spawn = |rig: &mut Rig| rig.spawn(Tensor::from_slice(&[0.25f32; 48 * 48], [48, 48]).unwrap());
    let (x, y) = (spawn(&mut rig), spawn(&mut rig));
    let before = rig.figures().pipelines_built;
    let expected = rig.compute(move |ops| ops.matmul(x, y)).unwrap();
    rig.compute(move |ops| ops.softmax(x, -1)).unwrap();
    assert_eq!(rig.figures().pipelines_built, before);
    pipelines(&rig).list().save(&file).unwrap();
    drop(rig);

    let list = PipelineList::load(&file).unwrap();
    let mut rig = with(PipelineSettings::default());
    pipelines(&rig).precompile("list", 0, &list);
    rig.step_until(|app| !app.world().resource::<TensorReadyState>().warm_ups.is_empty());
    rig.step_until(|app| app.world().resource::<TensorReadyState>().is_ready());
    assert_eq!(rig.figures().pipelines_built, list.len() as u64);
    let (x, y) = (spawn(&mut rig), spawn(&mut rig));
    assert_eq!(rig.compute(move |ops| ops.matmul(x, y)).unwrap().bytes(), expected.bytes());
    assert_eq!(rig.figures().pipelines_built, list.len() as u64);

    std::fs::write(&file, "{\"version\": 1, \"kernels\": [{}]}").unwrap();
    assert_eq!(PipelineList::load(&file).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    // A list whose kernel does not compile is an error of its warm-up, and of nothing else.
    let broken = r#"{"version": 1, "kernels": [{"kernel": "k", "variant": "", "wgsl": "nonsense", "entry": "main", "checked": true, "params_in_storage": false, "writes": [], "faults": false}]}"#;
    std::fs::write(&file, broken).unwrap();
    pipelines(&rig).precompile("broken", 0, &PipelineList::load(&file).unwrap());
    rig.step_until(|app| app.world().resource::<TensorReadyState>().warm_ups.len() == 2);
    rig.step_until(|app| app.world().resource::<TensorReadyState>().is_ready());
    assert_eq!(rig.app.world().resource::<TensorReadyState>().errors().count(), 1);
    let failed = report(&rig).pipelines.into_iter().find(|p| p.state == PipelineState::Failed).unwrap();
    assert!(failed.error.is_some_and(|error| !error.is_empty()));
    assert_eq!(rig.compute(move |ops| ops.matmul(x, y)).unwrap().bytes(), expected.bytes());
    assert_eq!(rig.faults(), []);
}

#[test]
fn without_a_device_a_warm_up_is_done_at_once() {
    let mut rig = Rig::new(Backend::Cpu);
    let x = tensor(&mut rig, [4, 4]);
    rig.with_ops(|ops| {
        ops.warm_up("nothing to compile", 0, |ops| ops.softmax(x, -1).map(drop)).unwrap();
    });
    pipelines(&rig).precompile("list", 0, &PipelineList::default());
    rig.app.update();
    rig.app.update();
    let state = rig.app.world().resource::<TensorReadyState>();
    assert!(state.warm_ups.len() == 2 && state.is_ready(), "{state:?}");
}

/// Runs the work in an app with a cache in `folder`: the result, and the report at the end.
fn start(folder: &Folder) -> (TensorData, PipelineReport) {
    let mut rig = with(PipelineSettings { synchronous: true, cache: Some(folder.0.clone()), ..default() });
    let x = rig.spawn(Tensor::from_slice(&[0.5f32; 256], [16, 16]).unwrap());
    let out = rig.spawn(Tensor::from_slice(&[0.0f32; 16], [1, 16]).unwrap());
    rig.record(move |ops| work(ops, x, out)).unwrap();
    let data = rig.read(out);
    pipelines(&rig).save();
    rig.step_until(|app| {
        let file = app.world().resource::<TensorPipelines>().report().file.unwrap();
        file.writes > 0 || file.error.is_some()
    });
    assert_eq!(rig.faults(), []);
    (data, report(&rig))
}

#[test]
fn a_second_start_compiles_nothing_that_the_driver_was_not_offered() {
    let folder = Folder::new();
    let (first, report) = start(&folder);
    let file = report.file.clone().unwrap();
    assert_eq!((file.found, file.error), (CacheFound::Nothing, None));
    assert_eq!((report.offered, file.bytes), (0, Some(std::fs::metadata(&file.path).unwrap().len())));
    assert!(report.misses >= 3);

    let (second, again) = start(&folder);
    let found = again.file.clone().unwrap().found;
    assert_eq!(found, CacheFound::Read { pipelines: report.pipelines.len(), tuned: 0 });
    assert_eq!(second.bytes(), first.bytes());
    assert_eq!(again.misses, report.misses);
    if file.driver {
        assert_eq!(again.offered, again.misses, "every pipeline was offered to the driver");
        assert!(again.pipelines.iter().all(|pipeline| pipeline.offered));
    } else {
        assert_eq!(again.offered, 0);
    }
}

#[test]
fn a_damaged_or_foreign_file_changes_nothing() {
    let folder = Folder::new();
    let (first, report) = start(&folder);
    let path = report.file.unwrap().path;
    let good = std::fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let bad: [(&str, Vec<u8>); 6] = [
        ("empty", Vec::new()),
        ("cut short", good[..good.len() / 2].to_vec()),
        ("foreign", b"a picture of a cat, or a file of another program that is long enough".to_vec()),
        ("of another adapter", flipped(13)),
        ("flipped in the sum", flipped(21)),
        ("flipped at the end", flipped(good.len() - 1)),
    ];
    for (what, bytes) in bad {
        std::fs::write(&path, bytes).unwrap();
        let (data, report) = start(&folder);
        let file = report.file.unwrap();
        assert!(matches!(file.found, CacheFound::Ignored(_)), "{what}: {:?}", file.found);
        assert_eq!((report.offered, data.bytes()), (0, first.bytes()), "{what}");
        // It is good again.
        assert_eq!((file.error, std::fs::read(&path).unwrap().len()), (None, good.len()), "{what}");
    }
    // A folder that cannot be written is a line in the log, not more.
    let nowhere = Folder(folder.0.join("file"));
    std::fs::write(&nowhere.0, "not a folder").unwrap();
    let (data, report) = start(&nowhere);
    assert_eq!(data.bytes(), first.bytes());
    assert!(report.file.unwrap().error.is_some());
}
