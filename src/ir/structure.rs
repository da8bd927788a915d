//! All that decides a plan: frames with equal structures share one.

use super::{Graph, Node, NodeId, Op};

/// All that decides a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Structure {
    pub parts: Vec<PartStructure>,
    /// Elements of every storage.
    pub slot_elements: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartStructure {
    pub nodes: Vec<Node>,
    /// The batch's number for each storage of the part.
    pub slots: Vec<u32>,
    /// Host data, requests and scalars of the parts before it.
    pub host: u32,
    pub requests: u32,
    pub scalars: u32,
}

impl Structure {
    /// One graph of all parts, with numbers of the batch.
    pub(crate) fn graph(&self, scalars: &[u32]) -> Graph {
        let mut graph = Graph { nodes: Vec::new(), scalars: scalars.to_vec() };
        for part in &self.parts {
            let base = graph.nodes.len() as u32;
            graph.nodes.extend(part.nodes.iter().cloned().map(|mut node| {
                for input in &mut node.inputs {
                    *input = NodeId(input.0 + base);
                }
                node.scalar += part.scalars;
                match &mut node.op {
                    Op::Load { slot, .. } | Op::Store { slot, .. } => *slot = part.slots[*slot as usize],
                    Op::Host { index } => *index += part.host,
                    Op::Read { request } => *request += part.requests,
                    _ => {}
                }
                node
            }));
        }
        graph
    }
}
