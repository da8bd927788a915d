//! What the last run made of each node, for reports.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::graph::Node;
use super::program::OnnxGraph;
use super::value::Value;
use crate::figures::NodePlace;
use crate::ir::Shape;
use crate::record::TensorCommands;

/// A node of a model's graph, and what its last run made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxNode {
    /// Its name in the file, or a name made from the operator and the position.
    pub name: String,
    /// Its operator.
    pub operator: String,
    /// The shape of its first output in the last run.
    pub shape: Option<Shape>,
    /// Where it ran.
    pub place: NodePlace,
    /// How errors, timings and reports name it: "node `/conv1/Conv` (Conv)".
    pub label: Arc<str>,
}

/// What the last run made of a node.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    label: OnceLock<Arc<str>>,
    last: Mutex<(NodePlace, Option<Shape>)>,
}

impl Node {
    /// How errors, timings and reports name the node.
    pub(crate) fn label(&self) -> Arc<str> {
        self.memo.seen.label.get_or_init(|| label(&self.name, &self.op)).clone()
    }

    /// Notes where the node ran and the shape of its first output.
    pub(super) fn note(&self, ops: &TensorCommands, outputs: &[Option<Value<'_>>]) {
        let (place, shape) = match outputs.first().and_then(Option::as_ref) {
            Some(Value::Device(value, _)) => (NodePlace::Device, ops.shape(*value).ok()),
            Some(Value::Host(host)) => (NodePlace::Host, Some(host.tensor.shape().clone())),
            Some(Value::Sequence(..) | Value::Nothing) | None => (NodePlace::Host, None),
        };
        let mut last = self.memo.seen.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != place || last.1 != shape {
            *last = (place, shape);
        }
    }
}

fn label(name: &str, operator: &str) -> Arc<str> {
    format!("node `{name}` ({operator})").into()
}

impl OnnxGraph {
    /// The nodes of the model's own graph in the order of the file, and what the last run made of them. Nodes of
    /// subgraphs belong to the node that has them.
    pub fn node_list(&self) -> Vec<OnnxNode> {
        let mut kept = self.graph.nodes.iter().peekable();
        let entry = |(name, operator): &(String, String)| {
            let node = kept.next_if(|node| node.name == *name && node.op == *operator);
            let (place, shape) = match node {
                Some(node) => node.memo.seen.last.lock().unwrap_or_else(PoisonError::into_inner).clone(),
                None => (NodePlace::Folded, None),
            };
            let label = node.map_or_else(|| label(name, operator), |node| node.label());
            OnnxNode { name: name.clone(), operator: operator.clone(), shape, place, label }
        };
        self.listed.iter().map(entry).collect()
    }
}
