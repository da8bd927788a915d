//! What a file says about itself, whether it can run or not.

use std::collections::BTreeMap;

use prost::bytes::Bytes;

use super::build::declared_type;
use super::error::OnnxError;
use super::program::OnnxPort;
use crate::formats::onnx::{GraphProto, decode_model};

/// What a file says about itself. Unlike [`OnnxGraph`](super::OnnxGraph) it can be read from models that cannot run.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxSummary {
    /// The program that wrote the file.
    pub producer: String,
    /// The versions of the operator sets, by domain.
    pub opsets: BTreeMap<String, i64>,
    /// The inputs in order.
    pub inputs: Vec<OnnxPort>,
    /// The outputs in order.
    pub outputs: Vec<OnnxPort>,
    /// How often each operator occurs, subgraphs included. Operators of other domains have the domain before their name.
    pub operators: BTreeMap<String, usize>,
    /// The operators of the nodes of the model's own graph, in the order of the file.
    pub nodes: Vec<String>,
    /// Number of elements of all initialisers.
    pub parameters: u64,
}

impl OnnxSummary {
    /// Reads the bytes of a file. Checks nothing but the format.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, OnnxError> {
        let model = decode_model(Bytes::from(bytes.into()))?;
        let graph = model.graph.unwrap_or_default();
        let name = |domain: &str, op: &str| match domain {
            "" | "ai.onnx" => op.to_owned(),
            domain => format!("{domain}.{op}"),
        };
        let mut operators = BTreeMap::new();
        let mut parameters = 0u64;
        let mut open: Vec<&GraphProto> = vec![&graph];
        while let Some(graph) = open.pop() {
            for tensor in &graph.initializer {
                let elements = tensor.dims.iter().map(|&n| n.max(0) as u64).fold(1u64, u64::saturating_mul);
                parameters = parameters.saturating_add(elements);
            }
            for node in &graph.node {
                *operators.entry(name(&node.domain, &node.op_type)).or_default() += 1;
                open.extend(node.attribute.iter().flat_map(|attribute| &attribute.g));
            }
        }
        let filled: std::collections::HashSet<&str> =
            graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let port = |info: &crate::formats::onnx::ValueInfoProto| OnnxPort {
            name: info.name.clone(),
            declared: declared_type(info),
            optional: filled.contains(info.name.as_str()),
        };
        Ok(Self {
            producer: model.producer_name,
            opsets: model.opset_import.iter().map(|import| (import.domain.clone(), import.version)).collect(),
            inputs: graph.input.iter().map(port).collect(),
            outputs: graph.output.iter().map(port).collect(),
            operators,
            nodes: graph.node.iter().map(|node| name(&node.domain, &node.op_type)).collect(),
            parameters,
        })
    }
}
