//! A recording as plain data: nodes in recorded order. It contains no device, entity or world types.
//!
//! Values flow between nodes. Tensors appear only in [`Op::Load`] and [`Op::Store`], so the order of loads and stores
//! of a storage is the order of the nodes. Numbers that can change every frame without changing the work (`x * 0.5`, an
//! epsilon, a position) are *scalars*. They are stored separately from the nodes, so frames that differ only in scalars
//! share one plan.

use core::hash::{Hash, Hasher};
use core::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{DType, Op, Shape};

/// Index of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub u32);

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One recorded op.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub op: Op,
    pub inputs: SmallVec<[NodeId; 4]>,
    /// Shape of the value. For effects, the shape of the value that is stored or read.
    pub shape: Shape,
    pub dtype: DType,
    /// Index of the node's first scalar in [`Graph::scalars`]. [`Op::scalars`] returns how many there are.
    pub scalar: u32,
    /// The public op that recorded the node: `gelu`, `concat`, …. Used for reports only, and ignored when graphs are
    /// compared.
    pub name: &'static str,
    /// Source location in user code that recorded the node. Used for reports only.
    pub site: &'static Location<'static>,
    /// The node of a model's graph that it was recorded for: "node `/conv1/Conv` (Conv)". Used for reports only.
    pub label: Option<Arc<str>>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.op == other.op
            && self.inputs == other.inputs
            && self.shape == other.shape
            && self.dtype == other.dtype
            && self.scalar == other.scalar
    }
}

impl Eq for Node {}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.op, &self.inputs, &self.shape, self.dtype, self.scalar).hash(state);
    }
}

/// Nodes in recorded order, and their scalars.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub nodes: Vec<Node>,
    /// Bits of every scalar. The node that owns a scalar decides whether it is `f32`, `i32` or `u32`.
    pub scalars: Vec<u32>,
}

impl Graph {
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }
}
