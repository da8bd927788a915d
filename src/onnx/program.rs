//! A loaded model: its checked graph, its weights, and what can be told about it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path};
use std::sync::Arc;

use bevy::prelude::*;
use prost::bytes::Bytes;

use super::build::build;
use super::error::OnnxError;
use super::fold::{name_weights, simplify};
use super::graph::{Attribute, Graph, Port, ValueType};
use crate::formats::onnx::{ExternalFiles, ModelProto, OnnxFormatError, decode_model};
use crate::tensor::TensorData;

/// A constant that is a tensor of the model.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub name: String,
    pub data: TensorData,
}

/// A checked ONNX model, as an asset: `asset_server.load("net.onnx")`. [`OnnxModel`](super::OnnxModel) runs it.
#[derive(Asset, TypePath, Clone, Debug)]
pub struct OnnxGraph {
    pub(super) graph: Arc<Graph>,
    pub(super) weights: Arc<[(String, TensorData)]>,
    nodes: usize,
    /// Name and operator of the nodes of the model's own graph, before any were folded.
    pub(super) listed: Arc<[(String, String)]>,
    operators: Arc<BTreeMap<String, usize>>,
    opset: i64,
    producer: String,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxPort {
    /// Its name.
    pub name: String,
    /// Its declared type. Declared shapes of real files can be wrong; runs use the shapes of the values.
    pub declared: Option<ValueType>,
    /// Whether a run may leave it out, because the model has a default.
    pub optional: bool,
}

impl OnnxGraph {
    /// Reads a model from bytes, without files beside it.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, OnnxError> {
        let model = decode_model(Bytes::from(bytes.into()))?;
        Self::from_message(model, &ExternalFiles::new())
    }

    /// Reads a model from a file, and the files with external data beside it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OnnxError> {
        let path = path.as_ref();
        let read = |path: &Path| {
            std::fs::read(path)
                .map(Bytes::from)
                .map_err(|error| OnnxError::Io { path: path.display().to_string(), message: error.to_string() })
        };
        let model = decode_model(read(path)?)?;
        let mut files = ExternalFiles::new();
        let folder = path.parent().unwrap_or(Path::new(""));
        for location in external_files(&model)? {
            let content = read(&folder.join(&location))?;
            files.insert(location, content);
        }
        Self::from_message(model, &files)
    }

    pub(super) fn from_message(model: ModelProto, files: &ExternalFiles) -> Result<Self, OnnxError> {
        let (mut graph, nodes) = build(&model, files)?;
        let mut operators = BTreeMap::new();
        count_operators(&graph, &mut operators);
        let imports = model.opset_import.iter();
        let opset = imports.filter(|import| import.domain.is_empty() || import.domain == "ai.onnx");
        let opset = opset.map(|import| import.version).max().unwrap_or(0);
        let producer = model.producer_name.clone();
        // The bytes of the file are not needed any more. They are as large as the weights.
        drop(model);
        let listed = graph.nodes.iter().map(|node| (node.name.clone(), node.op.clone())).collect();
        simplify(&mut graph);
        let mut weights = Vec::new();
        name_weights(&mut graph, &mut weights, &mut HashMap::new());
        let weights = weights.into_iter().map(|Weight { name, data }| (name, data)).collect();
        Ok(Self { graph: Arc::new(graph), weights, nodes, listed, operators: Arc::new(operators), opset, producer })
    }

    fn port(&self, port: &Port) -> OnnxPort {
        OnnxPort {
            name: port.name.clone(),
            declared: port.declared.clone(),
            optional: self.graph.constants.iter().any(|constant| constant.value == port.value),
        }
    }

    /// The inputs in order. Those with a default come with `optional`.
    pub fn inputs(&self) -> Vec<OnnxPort> {
        self.graph.inputs.iter().map(|port| self.port(port)).collect()
    }

    /// The outputs in order.
    pub fn outputs(&self) -> Vec<OnnxPort> {
        self.graph.outputs.iter().map(|port| OnnxPort { optional: false, ..self.port(port) }).collect()
    }

    /// Number of nodes in the file, those of functions and subgraphs included.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How often each operator occurs in the file. Operators of other domains have the domain before their name.
    pub fn operators(&self) -> &BTreeMap<String, usize> {
        &self.operators
    }

    /// The version of the standard operators.
    pub fn opset(&self) -> i64 {
        self.opset
    }

    /// The program that wrote the file.
    pub fn producer(&self) -> &str {
        &self.producer
    }

    /// Number of elements of all weights.
    pub fn parameters(&self) -> u64 {
        self.weights.iter().map(|(_, data)| data.shape().elements() as u64).sum()
    }

    /// Bytes of all weights on a device.
    pub fn bytes(&self) -> u64 {
        self.weights.iter().map(|(_, data)| data.bytes().len() as u64).sum()
    }
}

fn count_operators(graph: &Graph, counts: &mut BTreeMap<String, usize>) {
    for node in &graph.nodes {
        let name = if node.domain.is_empty() { node.op.clone() } else { format!("{}.{}", node.domain, node.op) };
        *counts.entry(name).or_default() += 1;
        for (_, attribute) in &node.attributes {
            if let Attribute::Graph(inner) = attribute {
                count_operators(inner, counts);
            }
        }
    }
}

/// The paths of the files with external data, checked to be below the model's folder.
pub(super) fn external_files(model: &ModelProto) -> Result<Vec<String>, OnnxError> {
    let mut found = Vec::new();
    let mut graphs: Vec<&crate::formats::onnx::GraphProto> = model.graph.iter().collect();
    let mut nodes: Vec<&crate::formats::onnx::NodeProto> = model.functions.iter().flat_map(|f| &f.node).collect();
    while let Some(graph) = graphs.pop() {
        let sparse = graph.sparse_initializer.iter().flat_map(|sparse| sparse.values.iter().chain(&sparse.indices));
        for tensor in graph.initializer.iter().chain(sparse) {
            collect_external(tensor, &mut found)?;
        }
        nodes.extend(&graph.node);
        while let Some(node) = nodes.pop() {
            for attribute in &node.attribute {
                if let Some(tensor) = &attribute.t {
                    collect_external(tensor, &mut found)?;
                }
                graphs.extend(&attribute.g);
            }
        }
    }
    Ok(found)
}

fn collect_external(tensor: &crate::formats::onnx::TensorProto, found: &mut Vec<String>) -> Result<(), OnnxError> {
    let Some(external) = tensor.external()? else { return Ok(()) };
    let location = external.location;
    if found.iter().any(|known| known == location) {
        return Ok(());
    }
    let fail =
        |reason: String| OnnxFormatError::External { name: tensor.name.clone(), location: location.to_owned(), reason };
    // A model must not read files outside of its folder.
    let plain = |part: Component| matches!(part, Component::Normal(_) | Component::CurDir);
    if location.is_empty() || location.contains('\\') || !Path::new(location).components().all(plain) {
        return Err(fail("the path must be below the model's folder".to_owned()).into());
    }
    if found.len() == MAX_FILES {
        return Err(fail(format!("the model has more than {MAX_FILES} files")).into());
    }
    found.push(location.to_owned());
    Ok(())
}

/// The largest number of files with external data.
const MAX_FILES: usize = 4096;
