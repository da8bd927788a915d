//! Collects facts about every node before kernels are chosen: who uses it, when, and whether it can be computed inside
//! its users.

use crate::ir::{Graph, NodeId, Op, OpKind};
use smallvec::SmallVec;

/// Where a node's value is consumed: inside the map at `at`, or from memory by a kernel there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Root {
    at: usize,
    map: bool,
}

/// Per-node facts about one graph.
#[derive(Debug)]
pub(super) struct Analysis {
    /// Whether anything outside the graph depends on the node.
    pub live: Vec<bool>,
    /// Whether the elementwise node is computed inside its users instead of being written to memory.
    pub inlined: Vec<bool>,
    /// Whether a load must be copied right away because its storage changes before the last use.
    pub snapshot: Vec<bool>,
    /// The store into whose storage the node can be computed directly.
    pub redirect: Vec<Option<NodeId>>,
    /// Positions of the live loads and stores of every storage, in order.
    accesses: Vec<Vec<Access>>,
    last_use: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Access {
    at: usize,
    store: bool,
}

impl Analysis {
    pub(super) fn new(graph: &Graph, fuse: bool) -> Self {
        let n = graph.nodes.len();
        let live = live_nodes(graph);
        let mut users: Vec<SmallVec<[usize; 4]>> = vec![SmallVec::new(); n];
        let mut accesses: Vec<Vec<Access>> = Vec::new();
        for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| live[*at]) {
            for input in &node.inputs {
                if !users[input.index()].contains(&at) {
                    users[input.index()].push(at);
                }
            }
            if let Op::Load { slot, .. } | Op::Store { slot, .. } = node.op {
                let slot = slot as usize;
                if accesses.len() <= slot {
                    accesses.resize_with(slot + 1, Vec::new);
                }
                accesses[slot].push(Access { at, store: matches!(node.op, Op::Store { .. }) });
            }
        }
        let mut analysis = Self {
            live,
            inlined: vec![false; n],
            snapshot: vec![false; n],
            redirect: vec![None; n],
            accesses,
            last_use: vec![0; n],
        };
        let deadlines = analysis.deadlines(graph);
        analysis.choose_roots(graph, &users, &deadlines, fuse);
        analysis.choose_redirects(graph, &users);
        analysis
    }

    /// The last position at which each node can still be computed from the values its loads saw.
    fn deadlines(&self, graph: &Graph) -> Vec<usize> {
        let mut deadlines = vec![usize::MAX; graph.nodes.len()];
        for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| self.live[*at]) {
            let of_inputs = || node.inputs.iter().map(|i| deadlines[i.index()]).min().unwrap_or(usize::MAX);
            deadlines[at] = match node.op.kind() {
                OpKind::Elementwise | OpKind::View => of_inputs(),
                OpKind::Source => match node.op {
                    Op::Load { slot, .. } => self.next_store(slot, at),
                    _ => usize::MAX,
                },
                OpKind::Kernel | OpKind::Assembly | OpKind::Effect => usize::MAX,
            };
        }
        deadlines
    }

    /// Position of the first store to a storage after `at`, or `usize::MAX`.
    fn next_store(&self, slot: u32, at: usize) -> usize {
        self.accesses[slot as usize].iter().find(|a| a.store && a.at > at).map_or(usize::MAX, |a| a.at)
    }

    /// Whether a storage is accessed before `at`.
    pub(super) fn touched_before(&self, slot: u32, at: usize) -> bool {
        self.accesses[slot as usize].first().is_some_and(|a| a.at < at)
    }

    /// Whether a storage is written after `at`.
    pub(super) fn stored_after(&self, slot: u32, at: usize) -> bool {
        self.next_store(slot, at) != usize::MAX
    }

    /// Walks from the last node to the first. A node whose users all end up in one map is computed inside that map.
    fn choose_roots(&mut self, graph: &Graph, users: &[SmallVec<[usize; 4]>], deadlines: &[usize], fuse: bool) {
        let mut roots: Vec<SmallVec<[Root; 2]>> = vec![SmallVec::new(); graph.nodes.len()];
        for (at, node) in graph.nodes.iter().enumerate().rev().filter(|(at, _)| self.live[*at]) {
            let mut set: SmallVec<[Root; 2]> = SmallVec::new();
            for &user in &users[at] {
                let op = &graph.nodes[user].op;
                let through = matches!(op, Op::View(_)) || (op.is_elementwise() && self.inlined[user]);
                if through {
                    for &root in &roots[user] {
                        if !set.contains(&root) {
                            set.push(root);
                        }
                    }
                } else {
                    let map = match op.kind() {
                        OpKind::Elementwise | OpKind::Effect | OpKind::Assembly => true,
                        OpKind::Source | OpKind::View | OpKind::Kernel => false,
                    };
                    let root = Root { at: user, map };
                    if !set.contains(&root) {
                        set.push(root);
                    }
                }
            }
            let last = set.iter().map(|r| r.at).max().unwrap_or(at);
            self.last_use[at] = last;
            let in_time = deadlines[at] >= last;
            if node.op.is_elementwise() {
                // Recomputing a leaf or a cast is cheaper than storing it. Anything else is computed once.
                let cheap = matches!(node.op, Op::Scalar | Op::Iota | Op::Cast);
                let leaf = node.inputs.is_empty();
                let fusable = set.iter().all(|r| r.map) && in_time && (set.len() <= 1 || cheap);
                self.inlined[at] = leaf || (fuse && fusable);
            } else if matches!(node.op, Op::Load { .. }) {
                self.snapshot[at] = !in_time;
            }
            roots[at] = set;
        }
    }

    /// Lets nodes that are stored as a whole be computed directly into the storage, if that has no visible effect.
    fn choose_redirects(&mut self, graph: &Graph, users: &[SmallVec<[usize; 4]>]) {
        for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| self.live[*at]) {
            let computes = match node.op.kind() {
                OpKind::Source | OpKind::View | OpKind::Effect => false,
                OpKind::Elementwise => !self.inlined[at],
                // Kernels produce 32-bit values or blocks. Narrower results are packed by a map.
                OpKind::Kernel => node.dtype == node.dtype.wide() || node.dtype.is_quantized(),
                OpKind::Assembly => true,
            };
            if !computes {
                continue;
            }
            self.redirect[at] =
                users[at].iter().copied().find(|&user| self.can_redirect(graph, at, user)).map(|u| NodeId(u as u32));
        }
    }

    fn can_redirect(&self, graph: &Graph, at: usize, store: usize) -> bool {
        let Op::Store { slot, layout, at: None } = &graph.nodes[store].op else { return false };
        if !layout.is_contiguous() || graph.nodes[store].dtype != graph.nodes[at].dtype {
            return false;
        }
        // All readers of the previous content must have run before this node, no other store may come in between, and
        // all uses of the value must come before the storage changes again.
        let early_enough = self.accesses[*slot as usize]
            .iter()
            .filter(|a| a.at < store)
            .all(|a| if a.store { a.at < at } else { self.last_use[a.at] <= at });
        early_enough && self.last_use[at] <= self.next_store(*slot, store)
    }
}

/// Nodes that a side effect depends on.
fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate().rev() {
        if node.op.is_effect() {
            live[at] = true;
        }
        if live[at] {
            for input in &node.inputs {
                live[input.index()] = true;
            }
        }
    }
    live
}
