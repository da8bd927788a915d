//! Batches, and plans by their structure: a frame like an earlier one is looked up, not planned.

use core::hash::BuildHasher;
use std::sync::Arc;

use bevy::platform::collections::HashMap;
use bevy::platform::hash::FixedHasher;

use super::{Plan, PlanLimits, lower};
use crate::ir::{Graph, Node, NodeId, Op};
use crate::readback::ReadRequest;
use crate::record::Part;
use crate::tensor::Storage;

/// The recordings that run together, in order, with what they refer to gathered up.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    structure: Structure,
    pub slots: Vec<Arc<Storage>>,
    pub scalars: Vec<u32>,
    pub host: Vec<Arc<[u32]>>,
    pub requests: Vec<ReadRequest>,
}

/// All that decides a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Structure {
    parts: Vec<PartStructure>,
    /// Elements of every storage.
    slot_elements: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PartStructure {
    nodes: Vec<Node>,
    /// The batch's number for each storage of the part.
    slots: Vec<u32>,
    host: u32,
    requests: u32,
    scalars: u32,
}

impl Batch {
    pub(crate) fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        let mut batch = Batch::default();
        let mut number: HashMap<u64, u32> = HashMap::default();
        for part in parts {
            let slots = part
                .slots
                .into_iter()
                .map(|storage| {
                    *number.entry(storage.id()).or_insert_with(|| {
                        batch.structure.slot_elements.push(storage.elements());
                        batch.slots.push(storage);
                        batch.slots.len() as u32 - 1
                    })
                })
                .collect();
            batch.structure.parts.push(PartStructure {
                nodes: part.graph.nodes,
                slots,
                host: batch.host.len() as u32,
                requests: batch.requests.len() as u32,
                scalars: batch.scalars.len() as u32,
            });
            batch.scalars.extend(part.graph.scalars);
            batch.host.extend(part.host);
            batch.requests.extend(part.requests);
        }
        batch
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.structure.parts.iter().all(|part| part.nodes.is_empty())
    }

    /// One graph of all parts, with numbers of the batch.
    fn graph(&self) -> Graph {
        let mut graph = Graph { nodes: Vec::new(), scalars: self.scalars.clone() };
        for part in &self.structure.parts {
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

/// Plans by structure, the least recently used dropped beyond a number.
#[derive(Debug)]
pub(crate) struct PlanCache {
    limits: PlanLimits,
    plans: HashMap<u64, Vec<Entry>>,
    count: usize,
    clock: u64,
    dropped: Vec<u64>,
    pub built: u64,
    pub hits: u64,
}

#[derive(Debug)]
struct Entry {
    structure: Structure,
    plan: Arc<Plan>,
    id: u64,
    used: u64,
}

/// Plans kept. A game has a handful of different frames; this bounds one that never repeats itself.
const KEPT: usize = 128;

impl PlanCache {
    pub(crate) fn new(limits: PlanLimits) -> Self {
        Self { limits, plans: HashMap::default(), count: 0, clock: 0, dropped: Vec::new(), built: 0, hits: 0 }
    }

    /// The plan of a batch, with a number that names it for as long as it is cached.
    pub(crate) fn plan(&mut self, batch: &Batch) -> (u64, Arc<Plan>) {
        self.clock += 1;
        let key = FixedHasher.hash_one(&batch.structure);
        let entries = self.plans.entry(key).or_default();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.structure == batch.structure) {
            entry.used = self.clock;
            self.hits += 1;
            return (entry.id, entry.plan.clone());
        }
        self.built += 1;
        let plan = Arc::new(lower::plan(&batch.graph(), &batch.structure.slot_elements, self.limits));
        let id = self.built;
        entries.push(Entry { structure: batch.structure.clone(), plan: plan.clone(), id, used: self.clock });
        self.count += 1;
        if self.count > KEPT {
            self.drop_oldest();
        }
        (id, plan)
    }

    /// Numbers of plans dropped since the last call, so that what hangs on them can go too.
    pub(crate) fn take_dropped(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.dropped)
    }

    fn drop_oldest(&mut self) {
        let oldest = self.plans.iter().flat_map(|(key, entries)| entries.iter().map(|entry| (entry.used, *key))).min();
        if let Some((used, key)) = oldest
            && let Some(entries) = self.plans.get_mut(&key)
        {
            self.dropped.extend(entries.iter().filter(|entry| entry.used == used).map(|entry| entry.id));
            entries.retain(|entry| entry.used != used);
            if entries.is_empty() {
                self.plans.remove(&key);
            }
            self.count -= 1;
        }
    }
}
