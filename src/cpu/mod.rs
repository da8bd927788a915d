//! The same plan on threads: one twin per kernel.

mod executor;
use crate::plan::{Operand, Plan};
use crate::tensor::Storage;
pub(crate) use executor::CpuExecutor;
use std::sync::Arc;
pub(crate) struct CpuPool(bevy::tasks::TaskPool);
impl CpuPool {
    pub fn new() -> Self {
        Self(bevy::tasks::TaskPool::new())
    }
}
pub(crate) fn run_plan(
    plan: &Plan,
    slots: &[Arc<Storage>],
    host: &[Arc<[u32]>],
    scalars: &[u32],
    scratch: &mut Vec<u32>,
    pool: &CpuPool,
) -> Vec<(usize, u32)> {
    vec![]
}
pub(crate) fn read_words(plan: &Plan, operand: &Operand, slots: &[Arc<Storage>], scratch: &[u32]) -> Vec<u32> {
    vec![]
}
