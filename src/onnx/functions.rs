//! Functions that a file defines: calls are replaced by the nodes of the function.

use std::collections::{HashMap, HashSet};

use super::build::{Opsets, invalid, opsets};
use super::error::OnnxError;
use crate::formats::onnx::{AttributeProto, FunctionProto, GraphProto, NodeProto};

/// How deep functions may call each other.
const MAX_DEPTH: usize = 32;

/// The functions of a file, by domain, name and overload.
pub(super) struct Functions<'a>(HashMap<[String; 3], (&'a FunctionProto, Opsets)>);

impl<'a> Functions<'a> {
    pub(super) fn new(functions: &'a [FunctionProto]) -> Self {
        let key = |f: &FunctionProto| [f.domain.clone(), f.name.clone(), f.overload.clone()];
        Self(functions.iter().map(|f| (key(f), (f, opsets(&f.opset_import)))).collect())
    }

    fn find(&self, node: &NodeProto) -> Option<&(&'a FunctionProto, Opsets)> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&[node.domain.clone(), node.op_type.clone(), node.overload.clone()])
    }
}

/// A node without calls of functions, and the operator sets it was written for.
pub(super) struct Flat {
    pub proto: NodeProto,
    pub opsets: Opsets,
}

/// Replaces calls of functions by their nodes.
pub(super) fn flatten(
    nodes: &[NodeProto],
    sets: &Opsets,
    functions: &Functions,
    room: usize,
) -> Result<Vec<Flat>, OnnxError> {
    let mut flat = Vec::with_capacity(nodes.len());
    // Nodes still to look at, the next one last.
    let mut open: Vec<(NodeProto, Opsets, usize)> =
        nodes.iter().rev().map(|node| (node.clone(), sets.clone(), 0)).collect();
    let mut calls = 0usize;
    while let Some((node, sets, depth)) = open.pop() {
        let Some((function, inner)) = functions.find(&node) else {
            flat.push(Flat { proto: node, opsets: sets });
            if flat.len() > room {
                return invalid("the model has too many nodes");
            }
            continue;
        };
        if depth == MAX_DEPTH {
            return invalid(format!("the function \"{}\" calls itself", function.name));
        }
        calls += 1;
        if open.len() + function.node.len() > room {
            return invalid("the model has too many nodes");
        }
        let call = Call::new(&node, function, calls);
        for body in function.node.iter().rev() {
            open.push((call.node(body), inner.clone(), depth + 1));
        }
    }
    Ok(flat)
}

/// One call of a function.
struct Call<'a> {
    node: &'a NodeProto,
    function: &'a FunctionProto,
    /// The function's inputs and outputs, as the caller names them.
    names: HashMap<&'a str, &'a str>,
    prefix: String,
}

impl<'a> Call<'a> {
    fn new(node: &'a NodeProto, function: &'a FunctionProto, number: usize) -> Self {
        let given = |names: &'a [String], i: usize| names.get(i).map_or("", String::as_str);
        let inputs = function.input.iter().enumerate().map(|(i, name)| (name.as_str(), given(&node.input, i)));
        let outputs = function.output.iter().enumerate().filter_map(|(i, name)| {
            // An output that the caller does not name still needs a name inside.
            Some((name.as_str(), given(&node.output, i))).filter(|(_, outer)| !outer.is_empty())
        });
        let label = if node.name.is_empty() { &function.name } else { &node.name };
        Self { node, function, names: inputs.chain(outputs).collect(), prefix: format!("{label}:{number}/") }
    }

    fn name(&self, inner: &str) -> String {
        match self.names.get(inner) {
            _ if inner.is_empty() => String::new(),
            Some(outer) => (*outer).to_owned(),
            None => format!("{}{inner}", self.prefix),
        }
    }

    fn node(&self, body: &NodeProto) -> NodeProto {
        let mut node = body.clone();
        node.name = format!("{}{}", self.prefix, if body.name.is_empty() { &body.op_type } else { &body.name });
        self.rename(&mut node, &mut Vec::new());
        node
    }

    /// Renames the values of a node, except for those that a graph around it defines, and fills in attributes of the call.
    fn rename(&self, node: &mut NodeProto, local: &mut Vec<HashSet<String>>) {
        for name in node.input.iter_mut().chain(&mut node.output) {
            if !local.iter().any(|names| names.contains(name)) {
                *name = self.name(name);
            }
        }
        let attributes = core::mem::take(&mut node.attribute);
        node.attribute = attributes.into_iter().filter_map(|attribute| self.attribute(attribute)).collect();
        for attribute in &mut node.attribute {
            if let Some(graph) = &mut attribute.g {
                self.rename_graph(graph, local);
            }
        }
    }

    /// An attribute whose value may be an attribute of the call, or its default.
    fn attribute(&self, attribute: AttributeProto) -> Option<AttributeProto> {
        if attribute.ref_attr_name.is_empty() {
            return Some(attribute);
        }
        let wanted = |a: &&AttributeProto| a.name == attribute.ref_attr_name;
        let value = self.node.attribute.iter().find(wanted);
        let value = value.or_else(|| self.function.attribute_proto.iter().find(wanted))?;
        Some(AttributeProto { name: attribute.name, ..value.clone() })
    }

    fn rename_graph(&self, graph: &mut GraphProto, local: &mut Vec<HashSet<String>>) {
        let inputs = graph.input.iter().map(|input| &input.name);
        let initialisers = graph.initializer.iter().map(|tensor| &tensor.name);
        let outputs = graph.node.iter().flat_map(|node| &node.output);
        local.push(inputs.chain(initialisers).chain(outputs).cloned().collect());
        for node in &mut graph.node {
            self.rename(node, local);
        }
        for output in &mut graph.output {
            if !local.iter().any(|names| names.contains(&output.name)) {
                output.name = self.name(&output.name);
            }
        }
        local.pop();
    }
}
