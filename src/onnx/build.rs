//! From the messages of a file to a graph: names become numbers, functions are inlined, nodes are ordered.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use super::error::{OnnxError, UnsupportedNode};
use super::functions::{Flat, flatten};
use super::graph::{Attribute, Constant, Dimension, Graph, Node, Port, ValueId, ValueType};
use super::host::{HostError, HostTensor};
use super::host_ops;
use super::operators::{self, Operator};
use crate::formats::onnx::{
    AttributeProto, ElementType, ExternalFiles, GraphProto, ModelProto, OnnxFormatError, OperatorSetIdProto,
    TensorProto, TypeProto, ValueInfoProto,
};

/// The largest number of nodes of a model, functions and subgraphs included.
pub(super) const MAX_NODES: usize = 1 << 20;

/// The versions of the operator sets that apply to a node, by domain.
pub(super) type Opsets = Rc<HashMap<String, i64>>;

pub(super) fn opsets(imports: &[OperatorSetIdProto]) -> Opsets {
    let name = |domain: &str| if domain == "ai.onnx" { String::new() } else { domain.to_owned() };
    Rc::new(imports.iter().map(|import| (name(&import.domain), import.version)).collect())
}

pub(super) fn invalid<T>(reason: impl Into<String>) -> Result<T, OnnxError> {
    Err(OnnxError::Graph { reason: reason.into() })
}

/// Stands for an operator that does not exist. Models with such nodes are refused.
static UNKNOWN: Operator = Operator::new("");

/// A graph under construction.
#[derive(Default)]
struct Scope {
    ids: HashMap<String, ValueId>,
    /// Values that have an initialiser.
    filled: HashSet<ValueId>,
    graph: Graph,
}

impl Scope {
    fn define(&mut self, name: &str) -> ValueId {
        let id = ValueId(self.graph.names.len() as u32);
        self.graph.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }
}

/// Builds the graphs of one model.
pub(super) struct Builder<'a> {
    files: &'a ExternalFiles,
    functions: super::functions::Functions<'a>,
    /// From the model's graph to the one that is built now.
    scopes: Vec<Scope>,
    unsupported: Vec<UnsupportedNode>,
    nodes: usize,
}

/// Builds the graph of a model. Nodes that cannot run are an error that lists all of them.
pub(super) fn build(model: &ModelProto, files: &ExternalFiles) -> Result<(Graph, usize), OnnxError> {
    let Some(graph) = &model.graph else { return invalid("the file has no graph") };
    let functions = super::functions::Functions::new(&model.functions);
    let mut builder = Builder { files, functions, scopes: Vec::new(), unsupported: Vec::new(), nodes: 0 };
    let graph = builder.graph(graph, &opsets(&model.opset_import))?;
    match builder.unsupported.is_empty() {
        true => Ok((graph, builder.nodes)),
        false => Err(OnnxError::Unsupported { nodes: builder.unsupported, total: builder.nodes }),
    }
}

impl Builder<'_> {
    /// Builds a graph. It recurses into the graphs of attributes, whose depth the decoder limits.
    fn graph(&mut self, proto: &GraphProto, opsets: &Opsets) -> Result<Graph, OnnxError> {
        let flat = flatten(&proto.node, opsets, &self.functions, MAX_NODES - self.nodes)?;
        self.nodes += flat.len();
        self.scopes.push(Scope::default());
        let result = self.fill(proto, &flat);
        let scope = self.scopes.pop().unwrap_or_default();
        result?;
        let mut graph = scope.graph;
        order(&mut graph)?;
        Ok(graph)
    }

    fn scope(&mut self) -> &mut Scope {
        let top = self.scopes.len() - 1;
        &mut self.scopes[top]
    }

    /// First all names of the graph, then the nodes, which may come in any order.
    fn fill(&mut self, proto: &GraphProto, flat: &[Flat]) -> Result<(), OnnxError> {
        for input in &proto.input {
            if self.scope().ids.contains_key(&input.name) {
                return invalid(format!("two inputs are named \"{}\"", input.name));
            }
            let value = self.scope().define(&input.name);
            let declared = declared_type(input);
            self.scope().graph.inputs.push(Port { name: input.name.clone(), value, declared });
        }
        for tensor in &proto.initializer {
            let content = read_tensor(tensor, self.files)?;
            self.constant(&tensor.name, content)?;
        }
        for sparse in &proto.sparse_initializer {
            let (name, stored) = sparse.read(self.files)?;
            let content = HostTensor::from_stored(stored).map_err(|error| bad_tensor(&name, error))?;
            self.constant(&name, content)?;
        }
        for node in flat {
            for output in node.proto.output.iter().filter(|name| !name.is_empty()) {
                if self.scope().ids.contains_key(output) {
                    return invalid(format!("two nodes or inputs give the value \"{output}\""));
                }
                self.scope().define(output);
            }
        }
        for (position, node) in flat.iter().enumerate() {
            self.node(node, position)?;
        }
        for output in &proto.output {
            let level = self.scopes.len() - 1;
            let Some(value) = self.resolve(&output.name, level) else {
                return invalid(format!("nothing gives the output \"{}\"", output.name));
            };
            let declared = declared_type(output);
            self.scope().graph.outputs.push(Port { name: output.name.clone(), value, declared });
        }
        Ok(())
    }

    /// An initialiser: the content of a value of its own, or the default of an input.
    fn constant(&mut self, name: &str, content: HostTensor) -> Result<(), OnnxError> {
        let scope = self.scope();
        let value = match scope.ids.get(name) {
            Some(&id) => id,
            None => scope.define(name),
        };
        if !scope.filled.insert(value) {
            return invalid(format!("two initialisers are named \"{name}\""));
        }
        scope.graph.constants.push(Constant { value, tensor: Arc::new(content), weight: None });
        Ok(())
    }

    /// The value with this name, in the graph at a level or in those around it.
    fn resolve(&mut self, name: &str, level: usize) -> Option<ValueId> {
        if let Some(&id) = self.scopes[level].ids.get(name) {
            return Some(id);
        }
        let outer = self.resolve(name, level.checked_sub(1)?)?;
        let id = self.scopes[level].define(name);
        self.scopes[level].graph.captures.push((outer, id));
        Some(id)
    }

    fn node(&mut self, flat: &Flat, position: usize) -> Result<(), OnnxError> {
        let proto = &flat.proto;
        let name = match proto.name.is_empty() {
            true => format!("{}_{position}", proto.op_type),
            false => proto.name.clone(),
        };
        let domain = if proto.domain == "ai.onnx" { String::new() } else { proto.domain.clone() };
        let level = self.scopes.len() - 1;
        let mut inputs = Vec::with_capacity(proto.input.len());
        for input in &proto.input {
            inputs.push(match input.is_empty() {
                true => None,
                false => match self.resolve(input, level) {
                    Some(id) => Some(id),
                    None => return invalid(format!("node \"{name}\" reads \"{input}\", which nothing gives")),
                },
            });
        }
        let outputs: Vec<Option<ValueId>> =
            proto.output.iter().map(|output| self.scopes[level].ids.get(output).copied()).collect();
        let version = flat.opsets.get(&domain).copied();
        if domain.is_empty()
            && proto.op_type == "Constant"
            && let (Some(content), [Some(value)]) = (constant_node(&proto.attribute, self.files)?, &outputs[..])
        {
            self.scope().graph.constants.push(Constant { value: *value, tensor: Arc::new(content), weight: None });
            return Ok(());
        }
        let operator = match version {
            Some(version) => operators::find(&domain, &proto.op_type, version),
            None => Err("the model does not import the operator set".to_owned()),
        };
        let mut attributes = Vec::with_capacity(proto.attribute.len());
        let mut refused = operator.as_ref().err().cloned();
        for attribute in &proto.attribute {
            match self.attribute(attribute, &flat.opsets, operator.is_ok())? {
                Some(value) => attributes.push((attribute.name.clone(), value)),
                None => {
                    refused.get_or_insert_with(|| {
                        format!("the attribute \"{}\" has a type that is not supported", attribute.name)
                    });
                }
            }
        }
        let node = Node {
            name,
            op: proto.op_type.clone(),
            domain,
            version: version.unwrap_or(0),
            host: operator.as_ref().ok().and_then(|operator| host_ops::find(operator)),
            operator: operator.unwrap_or(&UNKNOWN),
            inputs,
            outputs,
            attributes,
            memo: Default::default(),
        };
        if refused.is_none()
            && let Some(check) = node.operator.check
        {
            refused = check(&node).err();
        }
        if let Some(reason) = refused {
            self.unsupported.push(UnsupportedNode {
                name: node.name.clone(),
                operator: node.op.clone(),
                domain: node.domain.clone(),
                opset: node.version,
                reason,
            });
        }
        self.scope().graph.nodes.push(Arc::new(node));
        Ok(())
    }

    /// An attribute, or `None` if its type is not supported.
    fn attribute(
        &mut self,
        proto: &AttributeProto,
        opsets: &Opsets,
        known: bool,
    ) -> Result<Option<Attribute>, OnnxError> {
        Ok(Some(match kind_of(proto) {
            Kind::Float => Attribute::Float(proto.f),
            Kind::Int => Attribute::Int(proto.i),
            Kind::Text => Attribute::Text(String::from_utf8_lossy(&proto.s).into_owned()),
            Kind::Floats => Attribute::Floats(proto.floats.clone()),
            Kind::Ints => Attribute::Ints(proto.ints.clone()),
            Kind::Texts => Attribute::Texts(proto.strings.iter().map(|s| s.to_vec()).collect()),
            Kind::Tensor => match &proto.t {
                Some(tensor) => Attribute::Tensor(Arc::new(read_tensor(tensor, self.files)?)),
                None => return invalid(format!("the attribute \"{}\" has no tensor", proto.name)),
            },
            Kind::Graph => match &proto.g {
                // The nodes of an operator that does not exist would only repeat the error.
                Some(graph) if known => Attribute::Graph(Arc::new(self.graph(graph, opsets)?)),
                Some(_) => return Ok(None),
                None => return invalid(format!("the attribute \"{}\" has no graph", proto.name)),
            },
            Kind::Type => Attribute::Type(value_type(proto.tp.as_ref())),
            Kind::Sparse => match &proto.sparse_tensor {
                Some(sparse) => {
                    let (name, stored) = sparse.read(self.files)?;
                    let tensor = HostTensor::from_stored(stored).map_err(|error| bad_tensor(&name, error))?;
                    Attribute::Tensor(Arc::new(tensor))
                }
                None => return invalid(format!("the attribute \"{}\" has no tensor", proto.name)),
            },
            Kind::Other => return Ok(None),
        }))
    }
}

/// Which field of an attribute holds its value.
enum Kind {
    Float,
    Int,
    Text,
    Tensor,
    Graph,
    Floats,
    Ints,
    Texts,
    Type,
    Sparse,
    Other,
}

fn kind_of(proto: &AttributeProto) -> Kind {
    match proto.kind {
        1 => Kind::Float,
        2 => Kind::Int,
        3 => Kind::Text,
        4 => Kind::Tensor,
        5 => Kind::Graph,
        6 => Kind::Floats,
        7 => Kind::Ints,
        8 => Kind::Texts,
        11 => Kind::Sparse,
        13 => Kind::Type,
        // Old files do not say: the field that is there.
        0 if proto.t.is_some() => Kind::Tensor,
        0 if proto.g.is_some() => Kind::Graph,
        0 if !proto.s.is_empty() => Kind::Text,
        0 if !proto.floats.is_empty() => Kind::Floats,
        0 if !proto.ints.is_empty() => Kind::Ints,
        0 if !proto.strings.is_empty() => Kind::Texts,
        0 if proto.f != 0.0 => Kind::Float,
        0 => Kind::Int,
        _ => Kind::Other,
    }
}

/// The value of a `Constant` node, whose attributes are read here because the value is no input of any operator.
fn constant_node(attributes: &[AttributeProto], files: &ExternalFiles) -> Result<Option<HostTensor>, OnnxError> {
    let [attribute] = attributes else { return Ok(None) };
    let name = &attribute.name;
    let content = match name.as_str() {
        "value" => match &attribute.t {
            Some(tensor) => return Ok(Some(read_tensor(tensor, files)?)),
            None => return Ok(None),
        },
        "sparse_value" => match &attribute.sparse_tensor {
            Some(sparse) => HostTensor::from_stored(sparse.read(files)?.1),
            None => return Ok(None),
        },
        "value_float" => HostTensor::from_f32(&[attribute.f], []),
        "value_floats" => HostTensor::from_f32(&attribute.floats, [attribute.floats.len()]),
        "value_int" => HostTensor::from_i64(&[attribute.i], []),
        "value_ints" => HostTensor::from_i64(&attribute.ints, [attribute.ints.len()]),
        "value_string" => HostTensor::from_strings(vec![attribute.s.to_vec()], []),
        "value_strings" => {
            let strings: Vec<Vec<u8>> = attribute.strings.iter().map(|s| s.to_vec()).collect();
            let count = strings.len();
            HostTensor::from_strings(strings, [count])
        }
        _ => return Ok(None),
    };
    content.map(Some).map_err(|error| bad_tensor(name, error))
}

fn bad_tensor(name: &str, error: HostError) -> OnnxError {
    OnnxFormatError::Tensor { name: name.to_owned(), reason: error.to_string() }.into()
}

pub(super) fn read_tensor(tensor: &TensorProto, files: &ExternalFiles) -> Result<HostTensor, OnnxError> {
    HostTensor::from_stored(tensor.read(files)?).map_err(|error| bad_tensor(&tensor.name, error))
}

pub(super) fn declared_type(info: &ValueInfoProto) -> Option<ValueType> {
    info.r#type.as_ref().map(|declared| value_type(Some(declared)))
}

fn value_type(proto: Option<&TypeProto>) -> ValueType {
    let Some(proto) = proto else { return ValueType::Other("a value of no type".to_owned()) };
    if let Some(tensor) = &proto.tensor_type {
        let Some(element) = ElementType::from_code(tensor.elem_type.into()) else {
            return ValueType::Other(format!("a tensor of type {}", tensor.elem_type));
        };
        let shape = tensor.shape.as_ref().map(|shape| {
            let size = |dim: &crate::formats::onnx::DimensionProto| match (dim.dim_value, &dim.dim_param) {
                (Some(size), _) if size >= 0 => Dimension::Fixed(size as usize),
                (_, Some(name)) if !name.is_empty() => Dimension::Symbol(Some(name.clone())),
                _ => Dimension::Symbol(None),
            };
            shape.dim.iter().map(size).collect()
        });
        ValueType::Tensor { element, shape }
    } else if let Some(sequence) = &proto.sequence_type {
        ValueType::Sequence(Box::new(value_type(sequence.elem_type.as_deref())))
    } else if let Some(optional) = &proto.optional_type {
        ValueType::Optional(Box::new(value_type(optional.elem_type.as_deref())))
    } else if proto.map_type.is_some() {
        ValueType::Other("a map".to_owned())
    } else if proto.sparse_tensor_type.is_some() {
        ValueType::Other("a sparse tensor".to_owned())
    } else {
        ValueType::Other("a value of no type".to_owned())
    }
}

/// The values of a graph that a node depends on: its inputs, and what its subgraphs capture.
pub(super) fn dependencies(node: &Node) -> impl Iterator<Item = ValueId> + '_ {
    let captured = node.attributes.iter().flat_map(|(_, attribute)| match attribute {
        Attribute::Graph(graph) => graph.captures.as_slice(),
        _ => &[],
    });
    node.inputs.iter().flatten().copied().chain(captured.map(|(outer, _)| *outer))
}

/// Orders the nodes so that each comes after those it depends on. Keeps the order of the file where it can.
fn order(graph: &mut Graph) -> Result<(), OnnxError> {
    let mut producer = vec![None; graph.names.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for output in node.outputs.iter().flatten() {
            producer[output.index()] = Some(index);
        }
    }
    let mut waits_for = vec![0usize; graph.nodes.len()];
    let mut followers = vec![Vec::new(); graph.nodes.len()];
    let mut sorted = true;
    for (index, node) in graph.nodes.iter().enumerate() {
        for value in dependencies(node) {
            if let Some(before) = producer[value.index()] {
                waits_for[index] += 1;
                followers[before].push(index);
                sorted &= before < index;
            }
        }
    }
    if sorted {
        return Ok(());
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..graph.nodes.len()).filter(|&index| waits_for[index] == 0).map(Reverse).collect();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    while let Some(Reverse(index)) = ready.pop() {
        nodes.push(graph.nodes[index].clone());
        for &follower in &followers[index] {
            waits_for[follower] -= 1;
            if waits_for[follower] == 0 {
                ready.push(Reverse(follower));
            }
        }
    }
    if nodes.len() < graph.nodes.len() {
        let stuck = (0..graph.nodes.len()).find(|&index| waits_for[index] > 0);
        let name = stuck.map_or("", |index| graph.nodes[index].name.as_str());
        return invalid(format!("node \"{name}\" depends on its own output"));
    }
    graph.nodes = nodes;
    Ok(())
}
