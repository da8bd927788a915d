//! Caches plans by the structure of a batch, so that repeated frames are not planned again.

use core::hash::BuildHasher;
use std::sync::Arc;

use bevy::platform::collections::HashMap;
use bevy::platform::hash::FixedHasher;

use super::{Plan, PlanLimits, lower};
use crate::ir::Structure;

/// Plans by structure. The least recently used plan is evicted when the cache is full.
#[derive(Debug)]
pub(crate) struct PlanCache {
    limits: PlanLimits,
    chains: bool,
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
    /// Whether it was planned with chains.
    chains: bool,
    plan: Arc<Plan>,
    id: u64,
    used: u64,
}

/// Maximum number of cached plans. Apps have few different frames; the bound is for those that never repeat one.
const KEPT: usize = 128;

impl PlanCache {
    pub(crate) fn new(limits: PlanLimits) -> Self {
        let plans = HashMap::default();
        Self { limits, chains: true, plans, count: 0, clock: 0, dropped: Vec::new(), built: 0, hits: 0 }
    }

    /// Whether small steps may share a launch as a chain. In debug mode they do not, so that a NaN is found between them.
    pub(crate) fn set_chains(&mut self, chains: bool) {
        self.chains = chains;
    }

    /// Returns the plan of a structure and an id that stays valid while the plan is cached.
    pub(crate) fn plan(&mut self, structure: &Structure, scalars: &[u32]) -> (u64, Arc<Plan>) {
        self.clock += 1;
        let chains = self.chains;
        let key = FixedHasher.hash_one(structure);
        let entries = self.plans.entry(key).or_default();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.chains == chains && entry.structure == *structure) {
            entry.used = self.clock;
            self.hits += 1;
            return (entry.id, entry.plan.clone());
        }
        self.built += 1;
        let limits = PlanLimits { chain: if chains { self.limits.chain } else { 0 }, ..self.limits };
        let plan = Arc::new(lower::plan(&structure.graph(scalars), &structure.slot_elements, limits));
        let id = self.built;
        entries.push(Entry { structure: structure.clone(), chains, plan: plan.clone(), id, used: self.clock });
        self.count += 1;
        if self.count > KEPT {
            self.drop_oldest();
        }
        (id, plan)
    }

    /// The plan of one recording.
    #[cfg(test)]
    pub(crate) fn plan_part(&mut self, part: crate::record::Part) -> Arc<Plan> {
        let batch = crate::record::Batch::new([part]);
        self.plan(&batch.structure, &batch.scalars).1
    }

    /// Ids of the plans evicted since the last call, so that callers can drop data tied to them.
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
