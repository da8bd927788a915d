//! Recordings that run together.

use std::sync::Arc;

use bevy::ecs::entity::Entity;
use bevy::platform::collections::HashMap;

use super::Part;
use crate::ir::{PartStructure, Structure};
use crate::readback::ReadRequest;
use crate::schedule::Ticket;
use crate::tensor::Storage;

/// Recordings that run together, in order, with everything they refer to.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub structure: Structure,
    pub slots: Vec<Arc<Storage>>,
    pub scalars: Vec<u32>,
    pub host: Vec<Arc<[u32]>>,
    pub requests: Vec<ReadRequest>,
    /// Storages whose content arrives from the other backend, and the number of moves that have to be done.
    awaited: Vec<(Arc<Storage>, u64)>,
    /// Count the recordings as in flight until the work has finished.
    pub tickets: Vec<Arc<Ticket>>,
}

impl Batch {
    pub(crate) fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        let mut batch = Batch::default();
        let mut number: HashMap<u64, u32> = HashMap::default();
        for part in parts {
            let awaited = part.slots.iter().zip(&part.moves).filter(|(storage, moves)| !storage.has_moved(**moves));
            batch.tickets.extend(part.ticket);
            batch.awaited.extend(awaited.map(|(storage, moves)| (storage.clone(), *moves)));
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

    /// As few batches as there can be: one for each frame, unless work has to wait for content that earlier work sends
    /// to the other backend. Frames stay apart, so that their plans are the same however many wait.
    pub(crate) fn split(parts: impl IntoIterator<Item = Part>) -> Vec<Self> {
        let mut groups: Vec<Vec<Part>> = Vec::new();
        for part in parts {
            match groups.last_mut() {
                Some(group) if !part.awaits_content() && group[0].frame == part.frame => group.push(part),
                _ => groups.push(vec![part]),
            }
        }
        groups.into_iter().map(Self::new).filter(|batch| !batch.is_empty()).collect()
    }

    /// Gives up sending content to the other backend, because the device is gone.
    pub(crate) fn abandon_crossings(&mut self) {
        self.requests.iter_mut().filter(|request| request.destination().is_some()).for_each(ReadRequest::abandon);
    }

    /// Whether all content that comes from the other backend is there.
    pub(crate) fn has_content(&self) -> bool {
        self.awaited.iter().all(|(storage, moves)| storage.has_moved(*moves))
    }

    /// The model that each storage belongs to.
    pub(crate) fn owners(&self) -> Vec<Option<Entity>> {
        self.slots.iter().map(|storage| storage.model()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.structure.parts.iter().all(|part| part.nodes.is_empty())
    }
}
