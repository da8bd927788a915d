//! What is printed and written about a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bevy_tensor_compute::figures::TimingReport;
use bevy_tensor_compute::onnx::{OnnxAnswer, OnnxAnswers, OnnxPort, OnnxSummary, UnsupportedNode};
use serde_json::{Value, json};

use crate::options::Options;

pub struct Report {
    model: PathBuf,
    summary: OnnxSummary,
    pub backend: String,
    pub load: Duration,
    pub first: Duration,
    pub median: Duration,
    pub bytes: u64,
    pub launches: u64,
    pub unsupported: Vec<UnsupportedNode>,
    pub answers: Option<OnnxAnswers>,
    pub times: Option<TimingReport>,
}

impl Report {
    pub fn new(model: &Path, summary: &OnnxSummary) -> Self {
        Self {
            model: model.to_owned(),
            summary: summary.clone(),
            backend: String::new(),
            load: Duration::ZERO,
            first: Duration::ZERO,
            median: Duration::ZERO,
            bytes: 0,
            launches: 0,
            unsupported: Vec::new(),
            answers: None,
            times: None,
        }
    }

    pub fn print(&self) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "loaded in {:.1} ms, first run {:.1} ms, then {:.2} ms, {} launches",
            ms(self.load),
            ms(self.first),
            ms(self.median),
            self.launches
        );
        let mut by_operator: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
        for node in self.times.iter().flat_map(|times| &times.nodes) {
            let entry = by_operator.entry(operators(&node.nodes)).or_default();
            entry.0 += node.stats.count;
            entry.1 += node.stats.mean * node.stats.count as u32;
        }
        let mut rows: Vec<_> = by_operator.into_iter().collect();
        rows.sort_by_key(|(_, (_, time))| core::cmp::Reverse(*time));
        for (operator, (count, time)) in rows {
            println!("  {operator:<28} {count:>6} launches {:>10.3} ms", ms(time));
        }
        let Some(answers) = &self.answers else { return };
        match answers.left_device.len() {
            0 => println!("no values left the device before the end"),
            count => println!("values left the device {count} times: {}", answers.left_device.join(", ")),
        }
        for (name, answer) in &answers.outputs {
            match answer {
                OnnxAnswer::Tensor(tensor) => {
                    let values = tensor.to_f32().unwrap_or_default();
                    let first: Vec<String> = values.iter().take(6).map(|v| format!("{v:.4}")).collect();
                    println!("{name}: {}{} {}", tensor.element(), tensor.shape(), first.join(" "));
                }
                other => println!("{name}: {other:?}"),
            }
        }
    }

    /// Writes `NAME.npy` for each output. Characters that a file name cannot have become `_`.
    pub fn save_outputs(&self, options: &Options) -> Result<(), String> {
        let (Some(folder), Some(answers)) = (&options.output, &self.answers) else { return Ok(()) };
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (name, answer) in &answers.outputs {
            let Some(tensor) = answer.tensor() else { continue };
            let safe = name.replace(['/', '\\', ':', '*', '?', '"', '<', '>', '|'], "_");
            tensor.save_npy(folder.join(format!("{safe}.npy"))).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub fn write(&self, options: &Options) -> Result<(), String> {
        let Some(path) = &options.report else { return Ok(()) };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let port = |port: &OnnxPort| {
            let declared = port.declared.as_ref().map(|declared| declared.to_string());
            json!({ "name": port.name, "type": declared, "optional": port.optional })
        };
        let outputs: Vec<Value> = match &self.answers {
            Some(answers) => answers.outputs.iter().map(|(name, answer)| match answer.tensor() {
                Some(tensor) => {
                    json!({ "name": name, "type": tensor.element().name(), "shape": tensor.shape().to_vec() })
                }
                None => json!({ "name": name }),
            }),
            None => return self.write_json(path, self.summary.outputs.iter().map(port).collect(), &ms, &port),
        }
        .collect();
        self.write_json(path, outputs, &ms, &port)
    }

    fn write_json(
        &self,
        path: &Path,
        outputs: Vec<Value>,
        ms: &dyn Fn(Duration) -> f64,
        port: &dyn Fn(&OnnxPort) -> Value,
    ) -> Result<(), String> {
        let ran = self.answers.is_some();
        let unsupported: Vec<String> = self.unsupported.iter().map(UnsupportedNode::to_string).collect();
        let report = json!({
            "model": self.model.display().to_string(),
            "backend": self.backend,
            "inputs": self.summary.inputs.iter().map(port).collect::<Vec<_>>(),
            "outputs": outputs,
            "operators": self.summary.operators,
            "load_ms": ran.then(|| ms(self.load)),
            "first_ms": ran.then(|| ms(self.first)),
            "median_ms": ran.then(|| ms(self.median)),
            "bytes": self.bytes,
            "leaves_device": self.answers.as_ref().map_or(0, |answers| answers.left_device.len()),
            "launches": self.launches,
            "unsupported": unsupported,
        });
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The operators of nodes that share a launch: "node `a` (Conv)" and "node `b` (Relu)" give "Conv + Relu".
fn operators(nodes: &[std::sync::Arc<str>]) -> String {
    let operator = |node: &std::sync::Arc<str>| {
        let open = node.rfind('(').map_or(0, |at| at + 1);
        node[open..].trim_end_matches(')').to_owned()
    };
    nodes.iter().map(operator).collect::<Vec<_>>().join(" + ")
}
