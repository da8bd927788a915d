//! The panels of the inspector, driven through their accessible labels, and the plugin in a running app.

use std::sync::Arc;
use std::time::Duration;

use bevy::prelude::*;
use bevy_egui::egui;
use bevy_egui::egui::accesskit::Role;
use bevy_tensor_compute::figures::{KernelTiming, NodePlace, TimingReport, TimingStats};
use bevy_tensor_compute::inspector::*;
use bevy_tensor_compute::memory::ModelUsage;
use bevy_tensor_compute::pipelines::{PipelineInfo, PipelineState};
use bevy_tensor_compute::plan::{PlanReport, StepReport, Unfused, UnfusedReason};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::{Residency, TensorUsage};
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable;

use crate::common::{BACKENDS, Rig};

/// The state of a panel and the actions it requested.
struct Bench {
    snapshot: InspectorSnapshot,
    state: InspectorState,
    actions: Vec<InspectorAction>,
}

fn open(panel: InspectorPanel, snapshot: InspectorSnapshot) -> Harness<'static, Bench> {
    let bench = Bench { snapshot, state: InspectorState::default(), actions: Vec::new() };
    let mut harness = Harness::builder().with_size([980.0, 640.0]).with_max_steps(32).build_ui_state(
        move |ui, bench: &mut Bench| {
            let asked = bevy_tensor_compute::inspector::panel(ui, panel, &bench.snapshot, &mut bench.state);
            bench.actions.extend(asked);
        },
        bench,
    );
    harness.run_steps(3);
    harness
}

/// Clicks the only element with this label.
fn click(harness: &mut Harness<Bench>, label: &str) {
    harness.get_by_label(label).click();
    harness.run_steps(3);
}

fn type_into(harness: &mut Harness<Bench>, label: &str, text: &str) {
    harness.get_by_role_and_label(Role::TextInput, label).focus();
    harness.run_steps(2);
    harness.get_by_role_and_label(Role::TextInput, label).type_text(text);
    harness.run_steps(3);
}

fn shows(harness: &Harness<Bench>, text: &str) -> bool {
    harness.query_all_by_label_contains(text).next().is_some()
}

fn entity(id: u32) -> Entity {
    Entity::from_raw_u32(id).expect("a small number")
}

fn tensor(id: u32, name: &str, shape: &[usize], bytes: u64) -> TensorRow {
    TensorRow {
        entity: entity(id),
        name: name.to_owned(),
        model: None,
        shape: Shape::new(shape.iter().copied()),
        dtype: DType::F32,
        usage: TensorUsage {
            storage: u64::from(id),
            bytes,
            device_bytes: bytes,
            host_bytes: 0,
            residency: Residency::Device,
            pinned: false,
            last_used: None,
        },
        owners: 1,
    }
}

fn with_tensors(tensors: Vec<TensorRow>) -> InspectorSnapshot {
    let model = ModelRow {
        model: None,
        name: "no model".to_owned(),
        usage: ModelUsage { tensors: tensors.len(), ..default() },
        own_device_bytes: 0,
    };
    InspectorSnapshot { revision: 1, models: vec![model], tensors, ..default() }
}

/// A snapshot with a single tensor, selected, with these values.
fn with_values(data: TensorData) -> InspectorSnapshot {
    let mut row = tensor(7, "subject", data.shape(), data.bytes().len() as u64);
    row.dtype = data.dtype();
    let mut snapshot = with_tensors(vec![row]);
    snapshot.values = Some(Arc::new(TensorValues::new(entity(7), Duration::ZERO, &data)));
    snapshot
}

#[test]
fn ten_thousand_tensors_can_be_searched_sorted_and_selected() {
    let tensors = (0..10_000).map(|i| tensor(i + 1, &format!("layer {i:04}"), &[4], u64::from(10_000 - i)));
    let mut harness = open(InspectorPanel::Tensors, with_tensors(tensors.collect()));
    // Only visible rows are laid out.
    let rows = harness.query_all_by_label_contains("layer ").count();
    assert!((10..80).contains(&rows), "{rows} rows");
    assert!(shows(&harness, "layer 0000") && !shows(&harness, "layer 9999"));

    click(&mut harness, "Sort by bytes");
    assert!(shows(&harness, "layer 0000"), "the largest first");
    click(&mut harness, "Sort by bytes");
    assert!(shows(&harness, "layer 9999") && !shows(&harness, "layer 0000"), "the smallest first");

    type_into(&mut harness, "Search tensors", "4321");
    assert_eq!(harness.query_all_by_label_contains("layer ").count(), 1);
    assert!(shows(&harness, "1 of 10"));
    click(&mut harness, "layer 4321");
    assert_eq!(harness.state().state.tensors.selected, Some(entity(4322)));

    click(&mut harness, "Clear the search");
    assert!(harness.query_all_by_label_contains("layer ").count() > 1);
    click(&mut harness, "Collapse no model");
    assert_eq!(harness.query_all_by_label("layer 9999").count(), 0);
    click(&mut harness, "Expand no model");
    assert!(shows(&harness, "layer 9999"));

    type_into(&mut harness, "Search tensors", "nothing of the kind");
    assert!(shows(&harness, "No tensor matches the search"));
}

#[test]
fn a_selected_tensor_can_be_pinned_spilled_and_read() {
    let snapshot = with_tensors(vec![tensor(7, "weights", &[2, 3], 24)]);
    let mut harness = open(InspectorPanel::Tensors, snapshot);
    click(&mut harness, "weights");
    for label in ["Pin", "Evict now", "Read now"] {
        click(&mut harness, label);
    }
    let asked = [InspectorAction::Pin(entity(7)), InspectorAction::Spill(entity(7)), InspectorAction::Read];
    assert_eq!(harness.state().actions, asked);

    // The state after the action was applied.
    harness.state_mut().snapshot.tensors[0].usage.pinned = true;
    harness.run_steps(2);
    assert!(harness.query_by_label("Pin").is_none());
    click(&mut harness, "Unpin");
    click(&mut harness, "Evict now");
    assert_eq!(harness.state().actions[3..], [InspectorAction::Unpin(entity(7))], "a pinned tensor is not evicted");
    click(&mut harness, "Close the tensor");
    assert_eq!(harness.state().state.tensors.selected, None);
}

#[test]
fn values_are_paged_and_can_be_changed_and_saved() {
    let numbers: Vec<f32> = (0..40 * 20).map(|i| i as f32).collect();
    let mut harness = open(InspectorPanel::Tensors, with_values(TensorData::new(&numbers, [40, 20]).unwrap()));
    click(&mut harness, "subject");
    assert!(shows(&harness, "rows 0 to 11 of 40") && shows(&harness, "columns 0 to 7 of 20"));
    click(&mut harness, "Next rows");
    click(&mut harness, "Next columns");
    assert!(shows(&harness, "rows 12 to 23 of 40") && shows(&harness, "columns 8 to 15 of 20"));
    // Row 12, column 8.
    click(&mut harness, "248");
    assert!(shows(&harness, "Value at [12, 8]"));
    type_into(&mut harness, "New value", "5");
    click(&mut harness, "Write");
    let written = InspectorAction::Write { tensor: entity(7), index: vec![12, 8], value: 2485.0 };
    assert_eq!(harness.state().actions, [written, InspectorAction::Read]);
    click(&mut harness, "Previous rows");
    assert!(shows(&harness, "rows 0 to 11 of 40"));

    click(&mut harness, "Save");
    let saved = harness.state().actions.last().cloned().unwrap();
    let expected = InspectorAction::Save { tensor: entity(7), name: "subject".to_owned(), path: "subject.npy".into() };
    assert_eq!(saved, expected);
    click(&mut harness, "PNG");
    match harness.state().actions.last() {
        Some(InspectorAction::SavePicture { path, picture }) => {
            assert_eq!(path.to_str(), Some("subject.png"));
            assert_eq!((picture.width, picture.height), (20, 40));
        }
        other => panic!("{other:?}"),
    }
    assert!(harness.query_by_label("Heat map").is_some() && harness.query_by_label("Histogram").is_some());
}

#[test]
fn any_rank_can_be_looked_at() {
    let numbers: Vec<i32> = (0..2 * 3 * 2 * 2 * 3 * 4).collect();
    let data = TensorData::new(&numbers, [2, 3, 2, 2, 3, 4]).unwrap();
    let mut harness = open(InspectorPanel::Tensors, with_values(data));
    click(&mut harness, "subject");
    for axis in 0..4 {
        assert!(harness.query_by_label(&format!("Index on axis {axis}")).is_some(), "axis {axis}");
    }
    assert!(shows(&harness, "rows 0 to 2 of 3") && shows(&harness, "columns 0 to 3 of 4"));
    // Show axis 1 as rows.
    harness.get_by_label("Rows axis").click();
    harness.run_steps(3);
    harness.get_by_label("axis 1 (3)").click();
    harness.run_steps(3);
    assert!(harness.query_by_label("Index on axis 4").is_some() && harness.query_by_label("Index on axis 1").is_none());
    // The second row is one step further along axis 1: 2 · 2 · 3 · 4.
    assert!(harness.query_by_label("48").is_some());

    for (data, word) in [
        (TensorData::new(&[2.5f32], []).unwrap(), "2.5000"),
        (TensorData::new(&[1.0f32, 2.0, 7.25], [3]).unwrap(), "7.2500"),
    ] {
        let mut harness = open(InspectorPanel::Tensors, with_values(data));
        click(&mut harness, "subject");
        assert!(shows(&harness, word));
    }
}

#[test]
fn values_that_are_no_numbers_are_counted_and_empty_tensors_say_so() {
    let data = TensorData::new(&[1.0f32, f32::NAN, f32::INFINITY, f32::NAN], [2, 2]).unwrap();
    let mut harness = open(InspectorPanel::Tensors, with_values(data));
    click(&mut harness, "subject");
    // Two cells and the label of the count.
    assert_eq!(harness.query_all_by_label("NaN").count(), 3);
    assert!(shows(&harness, "inf"));

    let all_nan = TensorData::new(&[f32::NAN; 4], [2, 2]).unwrap();
    let mut harness = open(InspectorPanel::Tensors, with_values(all_nan));
    click(&mut harness, "subject");
    assert!(shows(&harness, "No finite value"));

    let mut harness = open(InspectorPanel::Tensors, with_values(TensorData::new::<f32>(&[], [0, 8]).unwrap()));
    click(&mut harness, "subject");
    assert!(shows(&harness, "This tensor has no elements") && shows(&harness, "0 B"));
}

#[test]
fn names_may_be_long_and_strange() {
    let long = "long".repeat(75);
    let tensors = vec![tensor(1, "emoji 🦀🔥 مرحبا", &[1], 4), tensor(2, &long, &[1], 4), tensor(3, "", &[1], 4)];
    let mut harness = open(InspectorPanel::Tensors, with_tensors(tensors));
    type_into(&mut harness, "Search tensors", "🦀");
    click(&mut harness, "emoji 🦀🔥 مرحبا");
    assert_eq!(harness.state().state.tensors.selected, Some(entity(1)));
    click(&mut harness, "Clear the search");
    let long_row = harness.query_all_by_label_contains("longlong").next().expect("it is listed");
    assert!(long_row.rect().right() < 700.0, "it is cut, not in the way: {:?}", long_row.rect());
    long_row.click();
    harness.run_steps(3);
    assert_eq!(harness.state().state.tensors.selected, Some(entity(2)));
    // Buttons next to a long name stay reachable.
    assert!(harness.get_by_label("Pin").rect().right() < 980.0);
}

#[test]
fn a_tensor_despawned_while_selected_is_reported() {
    let mut harness = open(InspectorPanel::Tensors, with_tensors(vec![tensor(7, "weights", &[2], 8)]));
    click(&mut harness, "weights");
    let bench = harness.state_mut();
    bench.snapshot.tensors.clear();
    bench.snapshot.models.clear();
    bench.snapshot.revision += 1;
    harness.run_steps(3);
    assert!(shows(&harness, "was despawned while it was selected"));
    click(&mut harness, "Close");
    assert!(shows(&harness, "No tensors"));
}

fn kernel(name: &'static str, variant: &str, mean: u64, count: u64) -> KernelTiming {
    let time = Duration::from_micros(mean);
    let stats =
        TimingStats { count, window: 10, last: time, min: time, mean: time, p95: time, bytes: 1000, flops: 2000 };
    KernelTiming { backend: Backend::Gpu, kernel: name, variant: variant.into(), stats }
}

/// The labels that contain a word, from top to bottom.
fn order(harness: &Harness<Bench>, words: &[&str]) -> Vec<String> {
    let mut found: Vec<(f32, String)> = Vec::new();
    for word in words {
        for node in harness.query_all_by_label(word) {
            found.push((node.rect().top(), (*word).to_owned()));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found.into_iter().map(|(_, word)| word).collect()
}

#[test]
fn kernels_are_sorted_and_searched() {
    let kernels = vec![kernel("matmul", "tiled", 900, 3), kernel("softmax", "", 20, 90), kernel("conv", "", 300, 1)];
    let snapshot = InspectorSnapshot { timings: Some(TimingReport { kernels, ..default() }), ..default() };
    let mut harness = open(InspectorPanel::Kernels, snapshot);
    let names = ["matmul (tiled)", "softmax", "conv"];
    click(&mut harness, "Sort by mean");
    assert_eq!(order(&harness, &names), ["matmul (tiled)", "conv", "softmax"]);
    click(&mut harness, "Sort by mean");
    assert_eq!(order(&harness, &names), ["softmax", "conv", "matmul (tiled)"]);
    click(&mut harness, "Sort by launches");
    assert_eq!(order(&harness, &names), ["softmax", "matmul (tiled)", "conv"]);
    click(&mut harness, "Sort by kernel");
    assert_eq!(order(&harness, &names), ["softmax", "matmul (tiled)", "conv"]);
    type_into(&mut harness, "Search kernels", "tiled");
    assert_eq!(order(&harness, &names), ["matmul (tiled)"]);
    click(&mut harness, "Clear");
    assert_eq!(harness.state().actions, [InspectorAction::ClearTimings]);
}

fn pipeline(id: u64, name: &str, state: PipelineState) -> PipelineInfo {
    PipelineInfo {
        id,
        kernel: name.into(),
        variant: "".into(),
        state,
        error: None,
        log: String::new(),
        hits: id,
        launches: 10 - id,
        compile: Some(Duration::from_millis(id)),
        builds: 1,
        idle: None,
        offered: false,
        wgsl_bytes: 10,
    }
}

#[test]
fn pipelines_show_their_text_and_can_be_rebuilt() {
    let mut snapshot = InspectorSnapshot::default();
    let mut broken = pipeline(3, "broken", PipelineState::Failed);
    broken.error = Some("unknown identifier at wgsl:2:5".to_owned());
    snapshot.pipelines.pipelines =
        vec![pipeline(1, "matmul", PipelineState::Ready), pipeline(2, "conv", PipelineState::Compiling), broken];
    let mut harness = open(InspectorPanel::Pipelines, snapshot);
    let names = ["matmul", "conv", "broken"];
    assert_eq!(order(&harness, &names), names);
    click(&mut harness, "Sort by compile");
    assert_eq!(order(&harness, &names), ["broken", "conv", "matmul"]);
    click(&mut harness, "broken");
    assert_eq!(harness.state().state.pipelines.selected, Some(3));
    harness.state_mut().snapshot.source = Some((3, "fn main() {\n    wrong\n}".into()));
    harness.run_steps(2);
    assert!(shows(&harness, "   2      wrong") && shows(&harness, "unknown identifier"));
    click(&mut harness, "Rebuild");
    assert_eq!(harness.state().actions, [InspectorAction::Rebuild(3)]);
    click(&mut harness, "Close the pipeline");
    click(&mut harness, "Trim");
    assert_eq!(harness.state().actions[1..], [InspectorAction::TrimPipelines]);
    type_into(&mut harness, "Search pipelines", "conv");
    assert_eq!(order(&harness, &names), ["conv"]);
}

#[test]
fn a_plan_lists_launches_and_what_was_not_joined() {
    let site = core::panic::Location::caller();
    let step = |kernel: &'static str, ops: &[&'static str]| StepReport {
        kernel,
        op: ops[0],
        ops: ops.to_vec(),
        site,
        scratch: std::iter::once(0..64).collect(),
        bytes: 64,
        flops: 1,
    };
    let reason = UnfusedReason::SeveralUsers;
    let report = PlanReport {
        recorded: 9,
        dead: 1,
        steps: vec![step("matmul", &["matmul", "add", "gelu"]), step("softmax", &["softmax"])],
        unfused: vec![Unfused { producer: "gelu", consumer: "softmax", steps: [0, 1], reason }],
        scratch_bytes: 128,
        unpacked_scratch_bytes: 256,
        live_scratch_bytes: 128,
    };
    let snapshot = InspectorSnapshot { plans: vec![(Backend::Gpu, report)], ..default() };
    let mut harness = open(InspectorPanel::Plan, snapshot);
    assert!(shows(&harness, "9 recorded nodes, 1 of them unused, became 2 launches"));
    assert!(shows(&harness, "matmul + add + gelu") && shows(&harness, "0 gelu to 1 softmax: several consumers"));
    type_into(&mut harness, "Search launches", "softmax");
    assert!(!shows(&harness, "matmul + add + gelu"));
}

#[test]
fn a_graph_lists_nodes_with_place_time_and_what_they_share() {
    let node =
        |name: &str, operator: &str, place, time: Option<u64>, kernel: &[&'static str], with: &[&str]| GraphNodeRow {
            name: name.to_owned(),
            operator: operator.to_owned(),
            shape: (place != NodePlace::Folded).then(|| Shape::from([1, 64, 28, 28])),
            place,
            time: time.map(Duration::from_micros),
            kernels: kernel.to_vec(),
            shares: with.iter().map(|name| (*name).to_owned()).collect(),
        };
    let nodes = vec![
        node("/conv1/Conv", "Conv", NodePlace::Device, Some(120), &["conv"], &["/relu1/Relu"]),
        node("/relu1/Relu", "Relu", NodePlace::Device, Some(120), &["conv"], &["/conv1/Conv"]),
        node("/Shape", "Shape", NodePlace::Host, None, &[], &[]),
        node("/Constant", "Constant", NodePlace::Folded, None, &[], &[]),
        node("/fc/Gemm", "Gemm", NodePlace::Device, Some(450), &["matmul"], &[]),
    ];
    let graph = GraphRow { model: entity(3), name: "digits".to_owned(), nodes };
    let other = GraphRow { model: entity(4), name: "faces".to_owned(), nodes: Vec::new() };
    let snapshot = InspectorSnapshot { graphs: vec![graph, other], ..default() };
    let mut harness = open(InspectorPanel::Graph, snapshot);
    assert!(shows(&harness, "5 nodes: 3 device, 1 host, 1 folded"));
    assert!(shows(&harness, "conv, with /relu1/Relu") && shows(&harness, "120"));
    let names = ["/conv1/Conv", "/relu1/Relu", "/Shape", "/Constant", "/fc/Gemm"];
    assert_eq!(order(&harness, &names), names);
    click(&mut harness, "Slowest first");
    assert_eq!(order(&harness, &names)[0], "/fc/Gemm");
    type_into(&mut harness, "Search nodes", "relu");
    assert_eq!(order(&harness, &names), ["/relu1/Relu"]);
    click(&mut harness, "faces");
    assert!(shows(&harness, "No nodes yet"));
    let empty = open(InspectorPanel::Graph, InspectorSnapshot::default());
    assert!(shows(&empty, "No ONNX model"));
}

#[test]
fn the_memory_panel_asks_for_what_its_buttons_say() {
    let mut harness = open(InspectorPanel::Memory, with_tensors(vec![tensor(1, "weights", &[2], 8)]));
    for label in ["Optimise", "Trim", "Recommend", "by kind"] {
        click(&mut harness, label);
    }
    let asked = [InspectorAction::Optimize, InspectorAction::Trim, InspectorAction::Advise];
    assert_eq!(harness.state().actions, asked);
    assert!(harness.state().state.memory.by_kind);
}

#[test]
fn the_log_is_filtered_by_word_and_by_kind() {
    let mut log = InspectorLog::default();
    log.push(Duration::from_secs(1), LogKind::Fault, "a batch failed");
    log.push(Duration::from_secs(2), LogKind::Memory, "2 tensors left the device");
    log.push(Duration::from_secs(2), LogKind::Memory, "2 tensors left the device");
    let snapshot = InspectorSnapshot { log: log.entries().clone(), ..default() };
    let mut harness = open(InspectorPanel::Log, snapshot);
    assert!(shows(&harness, "a batch failed") && shows(&harness, "left the device (2 times)"));
    harness.get_by_role_and_label(Role::Button, "memory").click();
    harness.run_steps(3);
    assert!(shows(&harness, "a batch failed") && !shows(&harness, "left the device"));
    type_into(&mut harness, "Search the log", "zebra");
    assert!(shows(&harness, "Nothing to report"));
    click(&mut harness, "Clear");
    assert_eq!(harness.state().actions, [InspectorAction::ClearLog]);
}

#[test]
fn empty_panels_say_what_would_be_there() {
    for (panel, words) in [
        (InspectorPanel::Overview, "No tensor backend yet"),
        (InspectorPanel::Memory, "No tensors yet"),
        (InspectorPanel::Tensors, "No tensors"),
        (InspectorPanel::Kernels, "No timings yet"),
        (InspectorPanel::Pipelines, "No pipelines"),
        (InspectorPanel::Plan, "No plan yet"),
        (InspectorPanel::Log, "Nothing to report"),
    ] {
        let harness = open(panel, InspectorSnapshot::default());
        assert!(shows(&harness, words), "{}", panel.name());
    }
}

/// A running app with a model of two tensors and the inspector, without a window.
fn live(backend: Backend) -> (Rig, Entity, Entity) {
    let plugin = TensorInspectorPlugin { open: true, window: false, refresh: Duration::ZERO, ..default() };
    let mut rig = Rig::with_plugin(backend, plugin);
    let world = rig.app.world_mut();
    let model = world.spawn((TensorModel, Name::new("mlp"))).id();
    let tensor = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap();
    let weights = world.spawn((tensor, TensorOf(model), Name::new("weights"))).id();
    rig.record(move |ops| {
        let doubled = ops.mul(weights, 2.0)?;
        ops.store(doubled, weights)
    })
    .unwrap();
    rig.app.update();
    (rig, model, weights)
}

fn act(rig: &mut Rig, action: InspectorAction) {
    rig.app.world_mut().resource_mut::<InspectorActions>().0.push(action);
    rig.app.update();
}

fn snapshot(rig: &Rig) -> &InspectorSnapshot {
    rig.app.world().resource()
}

fn wait_for_values(rig: &mut Rig, expected: &[f64]) {
    rig.step_until(|app| {
        let snapshot = app.world().resource::<InspectorSnapshot>();
        snapshot.values.as_ref().is_some_and(|values| values.values == expected)
    });
}

#[test]
fn a_live_tensor_is_shown_read_changed_pinned_and_saved() {
    let folder = std::env::temp_dir().join(format!("tensor-inspector-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for backend in BACKENDS {
        let (mut rig, model, weights) = live(backend);
        rig.app.update();
        let row = snapshot(&rig).tensor(weights).cloned().expect("it is listed");
        assert_eq!((row.name.as_str(), row.model, row.usage.bytes, row.owners), ("weights", Some(model), 24, 1));
        assert_eq!(snapshot(&rig).model_name(Some(model)), "mlp");
        rig.app.world_mut().resource_mut::<InspectorState>().tensors.selected = Some(weights);
        wait_for_values(&mut rig, &[2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!(snapshot(&rig).values.as_ref().unwrap().statistics.mean, Some(7.0));

        act(&mut rig, InspectorAction::Write { tensor: weights, index: vec![1, 0], value: -1.0 });
        act(&mut rig, InspectorAction::Read);
        wait_for_values(&mut rig, &[2.0, 4.0, 6.0, -1.0, 10.0, 12.0]);
        assert_eq!(rig.read(weights).to_f32(), [2.0, 4.0, 6.0, -1.0, 10.0, 12.0]);

        act(&mut rig, InspectorAction::Pin(weights));
        rig.app.update();
        assert!(snapshot(&rig).tensor(weights).unwrap().usage.pinned);
        act(&mut rig, InspectorAction::Unpin(weights));
        rig.app.update();
        assert!(!snapshot(&rig).tensor(weights).unwrap().usage.pinned);
        if backend == Backend::Gpu {
            // Reading it in every frame would make it resident again.
            rig.app.world_mut().resource_mut::<InspectorState>().tensors.selected = None;
            rig.app.update();
            act(&mut rig, InspectorAction::Spill(weights));
            rig.step_until(|app| app.world().get::<Tensor>(weights).unwrap().residency() == Residency::Host);
        }

        let picture = Picture { width: 2, height: 1, rgba: vec![255, 0, 0, 255, 0, 0, 255, 255] };
        for (name, action) in [
            ("w.npy", None),
            ("w.safetensors", None),
            ("w.png", Some(InspectorAction::SavePicture { path: folder.join("w.png"), picture: picture.clone() })),
        ] {
            let path = folder.join(name);
            let _ = std::fs::remove_file(&path);
            let save = InspectorAction::Save { tensor: weights, name: "weights".to_owned(), path: path.clone() };
            act(&mut rig, action.unwrap_or(save));
            let saved = format!("saved {}", path.display());
            rig.step_until(|app| app.world().resource::<InspectorLog>().entries().iter().any(|e| e.text == saved));
        }
        let npy = std::fs::read(folder.join("w.npy")).unwrap();
        assert_eq!(npy[npy.len() - 24..][12..16], (-1.0f32).to_le_bytes());
        let mut file = bevy_tensor_compute::formats::SafetensorsFile::open(folder.join("w.safetensors")).unwrap();
        assert_eq!(file.read("weights").unwrap().to_f32(), [2.0, 4.0, 6.0, -1.0, 10.0, 12.0]);
        let png = std::fs::read(folder.join("w.png")).unwrap();
        assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");

        // Failed actions are reported, and nothing breaks.
        rig.app.world_mut().despawn(weights);
        act(&mut rig, InspectorAction::Write { tensor: weights, index: vec![0, 0], value: 1.0 });
        act(&mut rig, InspectorAction::Pin(weights));
        let log = rig.app.world().resource::<InspectorLog>();
        assert_eq!(log.entries().iter().filter(|entry| entry.kind == LogKind::Fault).count(), 2, "{:?}", log.entries());
        assert_eq!(rig.faults(), []);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn closed_it_looks_at_nothing_and_leaves_timings_as_they_were() {
    let (mut rig, _, _) = live(Backend::Cpu);
    let diagnostics = rig.app.world().resource::<TensorDiagnostics>().clone();
    rig.app.update();
    assert!(diagnostics.timings_on(), "timed while it is open");
    rig.app.world_mut().resource_mut::<TensorInspector>().open = false;
    rig.app.update();
    assert!(!diagnostics.timings_on(), "as before");
    let before = snapshot(&rig).revision;
    for _ in 0..10 {
        rig.app.update();
    }
    assert_eq!(snapshot(&rig).revision, before, "no system of it has run");

    // An app that enabled timings itself keeps them enabled.
    diagnostics.set_timings(true);
    rig.app.world_mut().resource_mut::<TensorInspector>().open = true;
    rig.app.update();
    rig.app.world_mut().resource_mut::<TensorInspector>().open = false;
    rig.app.update();
    assert!(diagnostics.timings_on());
}

#[test]
fn a_key_opens_and_closes_it() {
    let plugin = TensorInspectorPlugin { window: false, key: KeyCode::F9, ..default() };
    let mut rig = Rig::with_plugin(Backend::Cpu, plugin);
    rig.app.init_resource::<ButtonInput<KeyCode>>();
    let press = |rig: &mut Rig, key: KeyCode| {
        rig.app.world_mut().resource_mut::<ButtonInput<KeyCode>>().press(key);
        rig.app.update();
        rig.app.world_mut().resource_mut::<ButtonInput<KeyCode>>().reset_all();
        rig.app.world().resource::<TensorInspector>().open
    };
    assert!(!press(&mut rig, KeyCode::F12));
    assert!(press(&mut rig, KeyCode::F9));
    assert!(!press(&mut rig, KeyCode::F9));
}

#[test]
fn failures_are_in_the_log_even_if_it_was_closed() {
    let mut rig = Rig::with_plugin(Backend::Cpu, TensorInspectorPlugin { window: false, ..default() });
    let model = rig.app.world_mut().spawn(TensorModel).id();
    for _ in 0..2 {
        let tensor = Tensor::zeros([1], DType::F32).unwrap();
        rig.app.world_mut().spawn((tensor, TensorOf(model), Name::new("same")));
    }
    rig.app.update();
    let log = rig.app.world().resource::<InspectorLog>();
    assert!(log.entries().iter().any(|entry| entry.kind == LogKind::Fault && entry.text.contains("same")));
}

#[test]
fn the_whole_window_works_in_light_and_dark() {
    for theme in [egui::Theme::Dark, egui::Theme::Light] {
        let (mut rig, _, _) = live(Backend::Cpu);
        rig.app.update();
        let state = (*rig.app.world().resource::<TensorInspector>(), InspectorState::default());
        let seen = snapshot(&rig).clone();
        let mut harness = Harness::builder().with_size([1280.0, 720.0]).with_theme(theme).build_ui_state(
            move |ui, (inspector, state): &mut (TensorInspector, InspectorState)| {
                inspector_window(ui.ctx(), inspector, &seen, state);
            },
            state,
        );
        harness.run_steps(3);
        for panel in InspectorPanel::ALL {
            harness.get_by_role_and_label(Role::Button, panel.name()).click();
            harness.run_steps(3);
            assert_eq!(harness.state().0.panel, panel);
        }
        let (other, next) = match theme {
            egui::Theme::Dark => ("Light theme", InspectorTheme::Light),
            egui::Theme::Light => ("Dark theme", InspectorTheme::Dark),
        };
        harness.get_by_label(other).click();
        harness.run_steps(3);
        assert_eq!(harness.state().0.theme, next);
        harness.get_by_label("Close the inspector").click();
        harness.run_steps(3);
        assert!(!harness.state().0.open);
    }
}
