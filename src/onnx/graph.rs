//! The graph after checking: nodes with resolved values, subgraphs, constants. Nothing here depends on the file's names
//! except for messages.

use std::sync::{Arc, Mutex, PoisonError};

use super::host::HostTensor;
use super::host_ops::Evaluate;
use super::operators::Operator;
use super::seen::Seen;
use crate::formats::onnx::ElementType;

/// A value of a graph, as an index into its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ValueId(pub u32);

impl ValueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A setting of a node.
#[derive(Clone, Debug)]
pub(crate) enum Attribute {
    Float(f32),
    Int(i64),
    Text(String),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Texts(Vec<Vec<u8>>),
    Tensor(Arc<HostTensor>),
    Graph(Arc<Graph>),
    Type(ValueType),
}

/// A node with its operator.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The name in the file, or a name made from the operator and the position.
    pub name: String,
    pub op: String,
    /// Empty for the standard operators.
    pub domain: String,
    /// The version of the operator set that the node was written for.
    pub version: i64,
    pub operator: &'static Operator,
    /// How the host computes it, if it can.
    pub host: Option<Evaluate>,
    pub inputs: Vec<Option<ValueId>>,
    pub outputs: Vec<Option<ValueId>>,
    pub attributes: Vec<(String, Attribute)>,
    /// Results on the host of earlier runs.
    pub memo: Memo,
}

/// Inputs on the host, and the outputs that they gave.
type Remembered = (Vec<Option<Arc<HostTensor>>>, Vec<Arc<HostTensor>>);

/// The last results of a node on the host, so that a run with the same shapes does not compute them again.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    results: Mutex<Vec<Remembered>>,
    /// What the last run made of the node.
    pub seen: Seen,
}

impl Clone for Memo {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Memo {
    /// Results that are kept for one node.
    const CAPACITY: usize = 4;
    /// Larger inputs are not compared.
    const MAX_ELEMENTS: usize = 1024;

    /// The outputs that these inputs gave before.
    pub(crate) fn find(&self, inputs: &[Option<Arc<HostTensor>>]) -> Option<Vec<Arc<HostTensor>>> {
        let same = |a: &Option<Arc<HostTensor>>, b: &Option<Arc<HostTensor>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || (a.elements() <= Self::MAX_ELEMENTS && a == b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let entries = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |(known, _): &&Remembered| known.len() == inputs.len() && known.iter().zip(inputs).all(|(a, b)| same(a, b));
        entries.iter().find(fits).map(|(_, outputs)| outputs.clone())
    }

    pub(crate) fn keep(&self, inputs: Vec<Option<Arc<HostTensor>>>, outputs: Vec<Arc<HostTensor>>) {
        let mut entries = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() == Self::CAPACITY {
            entries.remove(0);
        }
        entries.push((inputs, outputs));
    }
}

impl Node {
    /// An attribute by name.
    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        self.maybe_int(name).unwrap_or(default)
    }

    pub(crate) fn maybe_int(&self, name: &str) -> Option<i64> {
        match self.attribute(name) {
            Some(Attribute::Int(value)) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        self.int(name, i64::from(default)) != 0
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> f32 {
        self.maybe_float(name).unwrap_or(default)
    }

    pub(crate) fn maybe_float(&self, name: &str) -> Option<f32> {
        match self.attribute(name) {
            Some(Attribute::Float(value)) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn text<'t>(&'t self, name: &str, default: &'t str) -> &'t str {
        match self.attribute(name) {
            Some(Attribute::Text(value)) => value,
            _ => default,
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name) {
            Some(Attribute::Ints(values)) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn floats(&self, name: &str) -> Option<&[f32]> {
        match self.attribute(name) {
            Some(Attribute::Floats(values)) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Option<&[Vec<u8>]> {
        match self.attribute(name) {
            Some(Attribute::Texts(values)) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&Arc<HostTensor>> {
        match self.attribute(name) {
            Some(Attribute::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    pub(crate) fn graph(&self, name: &str) -> Option<&Arc<Graph>> {
        match self.attribute(name) {
            Some(Attribute::Graph(graph)) => Some(graph),
            _ => None,
        }
    }

    /// The element type that an attribute names by its code.
    pub(crate) fn element(&self, name: &str) -> Option<ElementType> {
        self.maybe_int(name).and_then(ElementType::from_code)
    }

    /// Whether an output is used.
    pub(crate) fn wants(&self, i: usize) -> bool {
        self.outputs.get(i).is_some_and(Option::is_some)
    }
}

/// A declared size of an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// A number.
    Fixed(usize),
    /// A name, or nothing: known when the inputs are.
    Symbol(Option<String>),
}

impl core::fmt::Display for Dimension {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Symbol(Some(name)) => f.write_str(name),
            Self::Symbol(None) => f.write_str("?"),
        }
    }
}

/// A declared type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueType {
    /// A tensor. Without a shape, its rank is not declared either.
    Tensor {
        /// The element type.
        element: ElementType,
        /// The declared shape.
        shape: Option<Vec<Dimension>>,
    },
    /// A list of values of a type.
    Sequence(Box<ValueType>),
    /// A value of a type, or nothing.
    Optional(Box<ValueType>),
    /// A map, a sparse tensor, or no type at all.
    Other(String),
}

impl core::fmt::Display for ValueType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Tensor { element, shape: None } => write!(f, "{element}"),
            Self::Tensor { element, shape: Some(shape) } => {
                write!(f, "{element}[")?;
                for (i, size) in shape.iter().enumerate() {
                    write!(f, "{}{size}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Self::Sequence(of) => write!(f, "sequence of {of}"),
            Self::Optional(of) => write!(f, "optional {of}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// An input or output of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub name: String,
    pub value: ValueId,
    pub declared: Option<ValueType>,
}

/// A graph: the model's own, or one of an attribute.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    /// Names of the values, for messages.
    pub names: Vec<String>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// Values of the graph around it: there, and here.
    pub captures: Vec<(ValueId, ValueId)>,
    /// Initialisers and folded values.
    pub constants: Vec<Constant>,
    /// In an order in which every node comes after those it depends on.
    pub nodes: Vec<Arc<Node>>,
    /// For each value, the last node that uses it. `u32::MAX` for outputs of the graph.
    pub last_use: Vec<u32>,
}

/// A value that is known when the model is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Constant {
    pub value: ValueId,
    pub tensor: Arc<HostTensor>,
    /// The tensor of the model that holds it on the device, if it is large.
    pub weight: Option<u32>,
}
