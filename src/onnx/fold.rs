//! Made ready when a model is loaded: constants are folded, unused nodes dropped, large constants become weights.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::build::dependencies;
use super::graph::{Attribute, Constant, Graph, Node, ValueId};
use super::host::HostTensor;
use super::host_ops::HostCall;
use super::program::Weight;

/// Folded values up to this size may be larger than what they were computed from.
const SMALL: usize = 1 << 16;

/// Constants with more bytes than this are tensors of the model. Smaller ones are parts of plans.
const WEIGHT_BYTES: usize = 1 << 10;

/// Folds constants and drops unused nodes, in a graph and the graphs inside it.
pub(super) fn simplify(graph: &mut Graph) {
    for node in &mut graph.nodes {
        if node.attributes.iter().any(|(_, attribute)| matches!(attribute, Attribute::Graph(_))) {
            let node = Arc::make_mut(node);
            for (_, attribute) in &mut node.attributes {
                if let Attribute::Graph(inner) = attribute {
                    simplify(Arc::make_mut(inner));
                }
            }
        }
    }
    fold(graph);
    prune(graph);
    last_uses(graph);
}

/// Evaluates nodes whose inputs are all constants.
fn fold(graph: &mut Graph) {
    let inputs: HashSet<ValueId> = graph.inputs.iter().map(|port| port.value).collect();
    // The default of an input is no constant: a run may replace it.
    let mut known: HashMap<ValueId, Arc<HostTensor>> = graph
        .constants
        .iter()
        .filter(|constant| !inputs.contains(&constant.value))
        .map(|constant| (constant.value, constant.tensor.clone()))
        .collect();
    let nodes = core::mem::take(&mut graph.nodes);
    for node in nodes {
        match evaluate(&node, &known) {
            Some(outputs) => {
                for (value, tensor) in node.outputs.iter().zip(outputs) {
                    if let Some(value) = *value {
                        let tensor = Arc::new(tensor);
                        known.insert(value, tensor.clone());
                        graph.constants.push(Constant { value, tensor, weight: None });
                    }
                }
            }
            None => graph.nodes.push(node),
        }
    }
}

/// The outputs of a node with constant inputs. `None` if it has others, or if the result would waste memory.
fn evaluate(node: &Node, known: &HashMap<ValueId, Arc<HostTensor>>) -> Option<Vec<HostTensor>> {
    let host = node.host?;
    let inputs: Vec<Option<Arc<HostTensor>>> = node
        .inputs
        .iter()
        .map(|input| input.map_or(Some(None), |value| known.get(&value).map(|tensor| Some(tensor.clone()))))
        .collect::<Option<_>>()?;
    let bytes = |tensor: &HostTensor| tensor.bytes().len();
    let given: usize = inputs.iter().flatten().map(|tensor| bytes(tensor)).sum();
    // An operator that fails reports its error when it runs.
    let outputs = host(&HostCall { node, inputs: &inputs }).ok()?;
    let enough = node.outputs.iter().enumerate().all(|(i, output)| output.is_none() || i < outputs.len());
    let fits = outputs.iter().map(bytes).sum::<usize>() <= SMALL.max(2 * given);
    (enough && fits).then_some(outputs)
}

/// Drops nodes that no output depends on, and constants that nothing uses.
fn prune(graph: &mut Graph) {
    let mut used = vec![false; graph.names.len()];
    for output in &graph.outputs {
        used[output.value.index()] = true;
    }
    let mut nodes: Vec<Arc<Node>> = Vec::with_capacity(graph.nodes.len());
    for node in graph.nodes.drain(..).rev() {
        if node.outputs.iter().flatten().any(|value| used[value.index()]) {
            for value in dependencies(&node) {
                used[value.index()] = true;
            }
            nodes.push(node);
        }
    }
    nodes.reverse();
    graph.nodes = nodes;
    for input in &graph.inputs {
        used[input.value.index()] = true;
    }
    graph.constants.retain(|constant| used[constant.value.index()]);
    graph.captures.retain(|(_, inner)| used[inner.index()]);
}

/// Finds the last use of every value.
fn last_uses(graph: &mut Graph) {
    graph.last_use = vec![0; graph.names.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for value in dependencies(node) {
            graph.last_use[value.index()] = index as u32;
        }
    }
    for output in &graph.outputs {
        graph.last_use[output.value.index()] = u32::MAX;
    }
}

/// Gives large constants a tensor of the model. Names are unique; a name that two graphs use gets a number.
pub(super) fn name_weights(graph: &mut Graph, weights: &mut Vec<Weight>, names: &mut HashMap<String, usize>) {
    let mut own = core::mem::take(&mut graph.constants);
    for constant in &mut own {
        if constant.tensor.bytes().len() <= WEIGHT_BYTES {
            continue;
        }
        // Values that do not fit in 32 bits stay on the host. An operator that needs them on the device reports it.
        let Ok(data) = constant.tensor.to_data() else { continue };
        let name = &graph.names[constant.value.index()];
        let count = names.entry(name.clone()).or_default();
        *count += 1;
        let name = if *count == 1 { name.clone() } else { format!("{name} ({count})") };
        constant.weight = Some(weights.len() as u32);
        weights.push(Weight { name, data });
    }
    graph.constants = own;
    for node in &mut graph.nodes {
        if node.attributes.iter().any(|(_, attribute)| matches!(attribute, Attribute::Graph(_))) {
            for (_, attribute) in &mut Arc::make_mut(node).attributes {
                if let Attribute::Graph(inner) = attribute {
                    name_weights(Arc::make_mut(inner), weights, names);
                }
            }
        }
    }
}
