//! onnxruntime in a Python process: the same graph with the same weights, as ONNX.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::array::Array;
use crate::cpu_rivals::threads;
use crate::measure::Contestant;

const SCRIPT: &str = include_str!("ort.py");

/// A graph with the inputs `x0`, `x1`, … in the order of the work's inputs, and the result `y`.
#[derive(Clone, Default)]
pub struct OnnxGraph {
    nodes: Vec<Value>,
    integers: Map<String, Value>,
}

impl OnnxGraph {
    /// A graph with one node without attributes.
    pub fn of(op: &str, inputs: &[&str]) -> Self {
        let mut graph = Self::default();
        graph.node(op, inputs, "y", json!({}));
        graph
    }

    /// Appends a node and returns its output.
    pub fn node(&mut self, op: &str, inputs: &[&str], output: &str, attributes: Value) -> String {
        self.nodes.push(json!({ "op": op, "inputs": inputs, "output": output, "attributes": attributes }));
        output.to_owned()
    }

    /// Adds integers that nodes take as an input.
    pub fn integers(&mut self, name: &str, values: &[i64]) {
        self.integers.insert(name.to_owned(), json!(values));
    }
}

/// The process.
#[derive(Clone)]
pub struct Ort(Rc<RefCell<Process>>);

struct Process {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Folder through which arrays are exchanged.
    folder: PathBuf,
}

impl Ort {
    pub fn start() -> Result<Self, String> {
        let python = std::env::var("PEERS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let folder = std::env::temp_dir().join(format!("peers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut child = Command::new(&python)
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{python}: {error}"))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the process has no pipes".to_owned());
        };
        let mut process = Process { child, requests, answers: BufReader::new(answers), folder };
        match process.answer() {
            Ok(_) => Ok(Self(Rc::new(RefCell::new(process)))),
            Err(_) => Err(format!("`{python} -c 'import onnxruntime, onnx, numpy'` fails")),
        }
    }

    /// Loads a graph. The process runs one graph at a time, the last one loaded.
    pub fn load(&self, inputs: &[Array], graph: &OnnxGraph) -> Result<OrtWork, String> {
        let mut process = self.0.borrow_mut();
        let mut arrays = Vec::new();
        for (i, array) in inputs.iter().enumerate() {
            let file = process.folder.join(format!("x{i}"));
            let bytes: Vec<u8> = array.values.iter().flat_map(|value| value.to_le_bytes()).collect();
            std::fs::write(&file, bytes).map_err(|error| format!("{}: {error}", file.display()))?;
            arrays.push(json!({ "name": format!("x{i}"), "shape": array.shape, "file": file, "shared": array.shared }));
        }
        process.ask(&json!({
            "do": "load",
            "inputs": arrays,
            "nodes": graph.nodes,
            "integers": graph.integers,
            "threads": threads(),
        }))?;
        drop(process);
        Ok(OrtWork(self.clone()))
    }
}

impl Process {
    fn ask(&mut self, request: &Value) -> Result<Value, String> {
        writeln!(self.requests, "{request}").map_err(|error| error.to_string())?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The loaded graph.
pub struct OrtWork(Ort);

impl Contestant for OrtWork {
    fn name(&self) -> String {
        "onnxruntime".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        let request = json!({ "do": "run", "repetitions": repetitions });
        let answer = self.0.0.borrow_mut().ask(&request).expect("onnxruntime does the work");
        Duration::from_secs_f64(answer["seconds"].as_f64().expect("a run answers with its time"))
    }

    fn result(&mut self) -> Vec<f32> {
        let mut process = self.0.0.borrow_mut();
        let file = process.folder.join("y");
        process.ask(&json!({ "do": "result", "file": file })).expect("there was a run");
        let bytes = std::fs::read(&file).expect("the process wrote it");
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}
