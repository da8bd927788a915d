//! The same plan on threads: one twin per kernel.
//!
//! Operands become typed slices first (scratch is split, slots are locked, each once); twins then see only slices and sizes.

mod attention;
mod block_copy;
mod conv;
mod conv_transpose;
mod cumsum;
mod executor;
mod gather;
mod map;
mod math;
mod matmul;
mod memory;
mod number;
mod pool;
mod quant_matmul;
mod quantize;
mod reduce;
mod row_norm;
mod run;
mod scatter;
mod softmax;
mod taps;
mod top_k;
mod walk;

use bevy::tasks::{TaskPool, TaskPoolBuilder, available_parallelism};

pub(crate) use executor::CpuExecutor;

use run::{read_words, run_plan};

/// Threads for tensor work, apart from the engine's, so that no frame waits behind a chunk.
///
/// A plan holds the locks of a step's storages while its chunks run here, so plans that may share storages must not themselves be tasks of
/// this pool: a thread that waits for its chunks could pick up another plan.
#[derive(Debug)]
pub(crate) struct CpuPool(TaskPool);

impl Default for CpuPool {
    fn default() -> Self {
        // The worker that runs plans lends a hand, so one thread less keeps all cores busy.
        Self::new(available_parallelism() - 1)
    }
}

impl CpuPool {
    pub(crate) fn new(threads: usize) -> Self {
        Self(TaskPoolBuilder::new().num_threads(threads.max(1)).thread_name("tensor".into()).build())
    }

    pub(crate) fn threads(&self) -> usize {
        self.0.thread_num().max(1)
    }

    /// Runs `work` on every item and returns when all are done; on this thread alone if there is only one.
    fn each<T: Send>(&self, items: Vec<T>, work: impl Fn(T) + Sync) {
        if items.len() < 2 || self.threads() < 2 {
            return items.into_iter().for_each(work);
        }
        let work = &work;
        self.0.scope(|scope| {
            for item in items {
                scope.spawn(async move { work(item) });
            }
        });
    }

    /// Runs `work` on consecutive parts of `out`, made of whole `unit`s, with the number of the part's first unit. `cost` is the
    /// elementary operations of one unit.
    fn each_unit<T: Send>(&self, out: &mut [T], unit: usize, cost: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        if out.is_empty() || unit == 0 {
            return;
        }
        let units = out.len().div_ceil(unit);
        let parts = (units.saturating_mul(cost.max(1)) / GRAIN).clamp(1, self.threads() * 4).min(units);
        let per = units.div_ceil(parts);
        let items: Vec<_> = out.chunks_mut(per * unit).enumerate().collect();
        self.each(items, |(i, part)| work(i * per, part));
    }
}

/// Elementary operations that make a task worth its start.
const GRAIN: usize = 1 << 15;
