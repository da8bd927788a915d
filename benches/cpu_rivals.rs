//! The CPU backend beside onnxruntime: the same op, the same numbers and the same threads, in turns in one run. Run with
//! `PEERS_PYTHON=… cargo bench --bench cpu_rivals [-- FILTER]`. The Python needs onnxruntime, onnx and numpy.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use common::Rig;
use serde_json::{Value, json};

/// Rounds per work. Both sides run once per round.
const ROUNDS: usize = 21;
/// Minimum time of one measurement in seconds.
const LEAST: f64 = 0.004;

type Record = Arc<dyn for<'a> Fn(&'a TensorCommands, &[Entity]) -> OpResult<TensorValue<'a>> + Send + Sync>;

/// One op at one size.
struct Work {
    name: String,
    /// Shapes of the inputs, and whether they are weights.
    inputs: Vec<(Vec<usize>, bool)>,
    record: Record,
    onnx: Value,
    integers: Value,
}

/// onnxruntime in a Python process, driven by lines of JSON.
struct Ort {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Ort {
    fn start() -> Option<Self> {
        let python = std::env::var("PEERS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut child = Command::new(python)
            .args(["-c", include_str!("peers/src/ort.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let folder = std::env::temp_dir().join(format!("cpu_rivals-{}", child.id()));
        std::fs::create_dir_all(&folder).ok()?;
        let (requests, answers) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut ort = Self { child, requests, answers, folder };
        ort.answer().is_some().then_some(ort)
    }

    fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.requests, "{request}").expect("onnxruntime listens");
        let answer = self.answer().expect("onnxruntime answers");
        assert!(answer["error"].is_null(), "{}", answer["error"]);
        answer
    }

    fn load(&mut self, work: &Work, values: &[Vec<f32>]) {
        let array = |(i, (shape, weight)): (usize, &(Vec<usize>, bool))| {
            let file = self.folder.join(format!("x{i}"));
            write(&file, &values[i]);
            json!({ "name": format!("x{i}"), "shape": shape, "file": file, "shared": weight })
        };
        let inputs: Vec<Value> = work.inputs.iter().enumerate().map(array).collect();
        let threads = bevy::tasks::available_parallelism();
        let request = json!({ "do": "load", "inputs": inputs, "nodes": work.onnx, "integers": work.integers, "threads": threads });
        self.ask(&request);
    }

    fn seconds(&mut self, repetitions: usize) -> f64 {
        let answer = self.ask(&json!({ "do": "run", "repetitions": repetitions }));
        answer["seconds"].as_f64().expect("a time") / repetitions as f64
    }

    fn result(&mut self) -> Vec<f32> {
        let file = self.folder.join("y");
        self.ask(&json!({ "do": "result", "file": file }));
        let bytes = std::fs::read(&file).expect("the process wrote it");
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

impl Drop for Ort {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn write(file: &Path, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(file, bytes).expect("the temporary folder is writable");
}

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with("--"));
    let Some(mut ort) = Ort::start() else {
        eprintln!("PEERS_PYTHON must name a Python that has onnxruntime, onnx and numpy");
        return;
    };
    let mut rig = Rig::new(Backend::Cpu);
    println!("{:<30} {:>9} {:>12} {:>7}  {:>16}", "work", "ours, ms", "onnxruntime", "ratio", "quartiles");
    for work in all_work().into_iter().filter(|w| filter.as_ref().is_none_or(|f| w.name.contains(f))) {
        measure(&mut rig, &mut ort, &work);
    }
}

/// Runs both sides in turns and prints the medians, and the median and quartiles of the ratio of a round.
fn measure(rig: &mut Rig, ort: &mut Ort, work: &Work) {
    let values: Vec<Vec<f32>> = work.inputs.iter().enumerate().map(|(i, (shape, _))| noise(shape, i)).collect();
    ort.load(work, &values);
    let tensors = work.inputs.iter().zip(&values).map(|((shape, _), v)| Tensor::from_slice(v, shape.as_slice()));
    let inputs: Vec<Entity> = tensors.map(|tensor| rig.spawn(tensor.expect("fits"))).collect();
    let (record, entities) = (work.record.clone(), inputs.clone());
    let first = rig.compute(move |ops| record(ops, &entities)).expect("the work records");
    let out = rig.spawn(Tensor::zeros(first.shape(), first.dtype()).expect("it was made before"));
    let corner = rig.spawn(Tensor::zeros([1], DType::F32).expect("small"));
    let mut ours = |repeats: usize| {
        let (record, entities) = (work.record.clone(), inputs.clone());
        let start = Instant::now();
        let receiver = rig.record(move |ops| {
            for _ in 0..repeats {
                ops.store(record(ops, &entities)?, out)?;
            }
            ops.read(corner)
        });
        rig.wait(&receiver.expect("the work records")).expect("the work runs");
        start.elapsed().as_secs_f64() / repeats as f64
    };
    ours(1);
    let once = ours(8).min(ort.seconds(8));
    let repeats = ((LEAST / once) as usize).clamp(1, 200);
    // Plans of many repetitions are built once.
    ours(repeats);
    let mut rounds: Vec<[f64; 2]> = (0..ROUNDS).map(|_| [ours(repeats), ort.seconds(repeats)]).collect();
    let expected = ort.result();
    let got = first.to_f32();
    let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
    assert!(got.len() == expected.len() && worst < 1e-3, "{}: results differ by {worst}", work.name);
    let mut sorted = |key: fn(&[f64; 2]) -> f64| {
        rounds.sort_by(|a, b| key(a).total_cmp(&key(b)));
        [1, 2, 3].map(|quarter| key(&rounds[ROUNDS * quarter / 4]))
    };
    let (mine, theirs, ratio) = (sorted(|r| r[0])[1], sorted(|r| r[1])[1], sorted(|r| r[1] / r[0]));
    println!(
        "{:<30} {:>9.3} {:>12.3} {:>7.2}  {:>7.2} … {:.2}",
        work.name,
        mine * 1e3,
        theirs * 1e3,
        ratio[1],
        ratio[0],
        ratio[2]
    );
    for entity in inputs.into_iter().chain([out, corner]) {
        rig.app.world_mut().despawn(entity);
    }
}

fn noise(shape: &[usize], seed: usize) -> Vec<f32> {
    let mut state = seed as u32 + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..shape.iter().product()).map(|_| next()).collect()
}

fn node(op: &str, inputs: &[&str], attributes: Value) -> Value {
    json!([{ "op": op, "inputs": inputs, "output": "y", "attributes": attributes }])
}

fn all_work() -> Vec<Work> {
    let mut list = Vec::new();
    let mut add = |name: String, inputs: Vec<(Vec<usize>, bool)>, onnx: Value, record: Record| {
        list.push(Work { name, inputs, record, onnx, integers: json!({ "axis0": [0], "axis1": [1] }) });
    };
    let plain = || json!({});
    for [m, n, k] in
        [[64; 3], [128; 3], [256; 3], [512; 3], [1024; 3], [16, 384, 384], [128, 1536, 384], [128, 384, 1536]]
    {
        add(
            format!("matmul {m}×{n}×{k}"),
            vec![(vec![m, k], false), (vec![k, n], true)],
            node("MatMul", &["x0", "x1"], plain()),
            Arc::new(|o, x| o.matmul(x[0], x[1])),
        );
    }
    add(
        "matmul 12×128×128×64".to_owned(),
        vec![(vec![12, 128, 64], false), (vec![12, 64, 128], false)],
        node("MatMul", &["x0", "x1"], plain()),
        Arc::new(|o, x| o.matmul(x[0], x[1])),
    );
    let square = || (vec![1024, 1024], false);
    let one = ["x0"];
    add("add 1 M".to_owned(), vec![square(), square()], node("Add", &["x0", "x1"], plain()), {
        Arc::new(|o, x| o.add(x[0], x[1]))
    });
    add("exp 1 M".to_owned(), vec![square()], node("Exp", &one, plain()), Arc::new(|o, x| o.exp(x[0])));
    add("gelu 1 M".to_owned(), vec![square()], node("Gelu", &one, plain()), Arc::new(|o, x| o.gelu(x[0])));
    add("tanh 1 M".to_owned(), vec![square()], node("Tanh", &one, plain()), Arc::new(|o, x| o.tanh(x[0])));
    add("softmax 1024²".to_owned(), vec![square()], node("Softmax", &one, json!({ "axis": -1 })), {
        Arc::new(|o, x| o.softmax(x[0], -1))
    });
    add(
        "layer_norm 1024²".to_owned(),
        vec![square(), (vec![1024], true), (vec![1024], true)],
        node("LayerNormalization", &["x0", "x1", "x2"], json!({ "axis": -1, "epsilon": 1e-5 })),
        Arc::new(|o, x| o.layer_norm(x[0], x[1], x[2], -1, 1e-5)),
    );
    for (name, axis) in [("columns", 0), ("rows", 1)] {
        let onnx = node("ReduceSum", &["x0", ["axis0", "axis1"][axis]], json!({ "keepdims": 0 }));
        add(format!("sum {name} 1024²"), vec![square()], onnx, Arc::new(move |o, x| o.sum(x[0], axis as isize)));
    }
    add("transpose 1024²".to_owned(), vec![square()], node("Transpose", &one, plain()), {
        Arc::new(|o, x| o.copy(o.transpose(x[0])?))
    });
    for (channels, out, side, size, groups, stride) in [
        (64, 64, 56, 3, 1, 1),
        (64, 64, 56, 1, 1, 1),
        (64, 64, 56, 3, 64, 1),
        (3, 32, 224, 3, 1, 2),
        (16, 96, 112, 1, 1, 1),
        (144, 144, 56, 5, 144, 2),
        (672, 112, 14, 1, 1, 1),
        (320, 1280, 7, 1, 1, 1),
    ] {
        let (before, kind) = (size / 2, if groups > 1 { "depthwise" } else { "conv" });
        let settings = ConvSettings {
            padding: Padding::Explicit([[before, before]; 2]),
            groups,
            stride: [stride, stride],
            ..default()
        };
        let attributes =
            json!({ "pads": [before, before, before, before], "group": groups, "strides": [stride, stride] });
        add(
            format!("{kind} {channels}→{out} {size}×{size}/{stride} {side}²"),
            vec![(vec![1, channels, side, side], false), (vec![out, channels / groups, size, size], true)],
            node("Conv", &["x0", "x1"], attributes),
            Arc::new(move |o, x| o.conv2d(x[0], x[1], None, settings)),
        );
    }
    for n in [128, 1024] {
        let head = || (vec![1, 12, n, 64], false);
        let onnx = json!([
            { "op": "Transpose", "inputs": ["x1"], "output": "t", "attributes": { "perm": [0, 1, 3, 2] } },
            { "op": "MatMul", "inputs": ["x0", "t"], "output": "s", "attributes": {} },
            { "op": "Mul", "inputs": ["s", "x3"], "output": "m", "attributes": {} },
            { "op": "Softmax", "inputs": ["m"], "output": "p", "attributes": { "axis": -1 } },
            { "op": "MatMul", "inputs": ["p", "x2"], "output": "y", "attributes": {} },
        ]);
        let scale = Some(noise(&[1], 3)[0]);
        add(
            format!("attention 12×{n}×64"),
            vec![head(), head(), head(), (vec![1], true)],
            onnx,
            Arc::new(move |o, x| o.attention(x[0], x[1], x[2], AttentionSettings { scale, ..default() })),
        );
    }
    list
}
