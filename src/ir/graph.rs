//! A recording as plain data: nodes in the order they were recorded. It knows no device, no entity and no world.
//!
//! Values flow between nodes. Tensors appear only at the edges, in [`Op::Load`] and [`Op::Store`], so the order of loads and stores on one
//! storage is the order of the list. Numbers that may change from frame to frame without changing the work (`x * 0.5`, an epsilon, a
//! position) are *scalars*: they are stored beside the nodes, so two frames that differ only in them share one plan.

use core::hash::{Hash, Hasher};
use core::panic::Location;

use smallvec::SmallVec;

use super::{DType, Op, Shape};

/// A node's place in its graph.
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
    /// Shape of the value; for effects, of the value stored or read.
    pub shape: Shape,
    pub dtype: DType,
    /// First of the node's numbers in [`Graph::scalars`]; [`Op::scalars`] says how many follow.
    pub scalar: u32,
    /// The public op that recorded the node: `gelu`, `concat`, …. For reports; two frames that differ only here share a plan.
    pub name: &'static str,
    /// Where user code recorded it. For reports.
    pub site: &'static Location<'static>,
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

/// Nodes in recorded order, with the numbers that vary beside them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub nodes: Vec<Node>,
    /// Bits of every scalar: `f32`, `i32` or `u32` by the node that owns it.
    pub scalars: Vec<u32>,
}

impl Graph {
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }
}
