//! Recordings that run together.

use std::sync::Arc;

use bevy::ecs::entity::Entity;
use bevy::platform::collections::HashMap;

use super::Part;
use crate::ir::{PartStructure, Structure};
use crate::readback::ReadRequest;
use crate::tensor::Storage;

/// The recordings that run together, in order, with what they refer to gathered up.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub structure: Structure,
    pub slots: Vec<Arc<Storage>>,
    pub scalars: Vec<u32>,
    pub host: Vec<Arc<[u32]>>,
    pub requests: Vec<ReadRequest>,
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

    /// The model that each storage belongs to.
    pub(crate) fn owners(&self) -> Vec<Option<Entity>> {
        self.slots.iter().map(|storage| storage.model()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.structure.parts.iter().all(|part| part.nodes.is_empty())
    }
}
