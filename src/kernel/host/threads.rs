//! Threads for tensor work. They are separate from the engine's, so that no frame waits for a chunk.

use core::any::Any;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{ThreadId, current};
use std::time::Instant;

use bevy::tasks::{TaskPool, TaskPoolBuilder, available_parallelism};

use crate::figures::Counters;

/// Minimum number of elementary operations for which a task pays.
pub(crate) const GRAIN: usize = 1 << 15;

/// How long threads spin for the next work before they sleep. Waking one takes about as long as a small step.
const LINGER: Duration = Duration::from_micros(50);

/// Number of spin hints between two reads of a shared counter.
const PAUSES: usize = 32;

/// The threads that share the work of a step.
///
/// A plan holds the locks of a step's storages while its chunks run here. Plans that may share storages must therefore
/// not be tasks of this pool themselves: a thread that waits for its chunks could pick up another plan.
#[derive(Debug)]
pub(crate) struct CpuPool {
    /// `None` if the caller is the only thread.
    tasks: Option<TaskPool>,
    /// Number of times work was distributed.
    posts: Arc<AtomicUsize>,
    counters: Arc<Counters>,
}

impl Default for CpuPool {
    fn default() -> Self {
        Self::new(available_parallelism())
    }
}

impl CpuPool {
    /// Creates a pool with this number of threads, including the caller, which takes part in the work.
    pub(crate) fn new(threads: usize) -> Self {
        let build = |n| TaskPoolBuilder::new().num_threads(n).thread_name("tensor".into()).build();
        Self { tasks: (threads > 1).then(|| build(threads - 1)), posts: Arc::default(), counters: Arc::default() }
    }

    /// Counts cached memory in `counters`.
    pub(crate) fn with_counters(self, counters: Arc<Counters>) -> Self {
        Self { counters, ..self }
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn threads(&self) -> usize {
        1 + self.tasks.as_ref().map_or(0, TaskPool::thread_num)
    }

    /// Runs `work` on every item and returns when all are done. A single item runs on the calling thread. Threads take
    /// the next item when they finish one, so a late thread costs little.
    pub(crate) fn each<T: Send>(&self, items: impl IntoIterator<Item = T, IntoIter: Send>, work: impl Fn(T) + Sync) {
        let items = items.into_iter();
        let most = items.size_hint().1.unwrap_or(usize::MAX);
        let Some(tasks) = self.tasks.as_ref().filter(|_| most > 1) else {
            return items.for_each(work);
        };
        let post = self.posts.fetch_add(1, Ordering::Release) + 1;
        let queue = Mutex::new(items);
        let run = || {
            loop {
                // A separate statement, so that the lock is released before the work begins.
                let item = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(item) = item else { break };
                work(item);
            }
        };
        let caller = current().id();
        let (started, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut own: Result<(), Box<dyn Any + Send>> = Ok(());
        tasks.scope(|scope| {
            for _ in 0..tasks.thread_num().min(most - 1) {
                scope.spawn(async {
                    started.fetch_add(1, Ordering::Relaxed);
                    let _ended = CountOnDrop(&ended);
                    run();
                    tasks.spawn(linger(caller, post, self.posts.clone())).detach();
                });
            }
            // A panic must not leave the scope while other threads still use what it borrows.
            own = catch_unwind(AssertUnwindSafe(run));
            // All items have been taken. The scope would sleep until the other threads are done; a short spin avoids
            // waking up again. A task that has not started is not waited for: the scope runs it here, and it finds
            // nothing to do.
            let wait = Instant::now();
            while started.load(Ordering::Relaxed) > ended.load(Ordering::Acquire) && wait.elapsed() < LINGER * 2 {
                pause();
            }
        });
        if let Err(payload) = own {
            resume_unwind(payload);
        }
    }

    /// Runs `work` on consecutive parts of `out` that consist of whole `unit`s, and passes the index of each part's
    /// first unit. `cost` is the number of elementary operations of one unit.
    pub(crate) fn each_unit<T: Send>(
        &self,
        out: &mut [T],
        unit: usize,
        cost: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        if out.is_empty() || unit == 0 {
            return;
        }
        let units = out.len().div_ceil(unit);
        let per = units.div_ceil(self.parts(units.saturating_mul(cost.max(1))).min(units));
        self.each(out.chunks_mut(per * unit).enumerate(), |(i, part)| work(i * per, part));
    }

    /// The number of tasks to split the given number of elementary operations into.
    pub(crate) fn parts(&self, operations: usize) -> usize {
        match self.threads() {
            1 => 1,
            // Several per thread, because threads do not all start at the same time.
            threads => (operations / GRAIN).clamp(1, threads * 4),
        }
    }
}

/// Keeps a thread of the pool awake until the next work is distributed, or for a short time. It returns at once on the
/// calling thread, which may pick up this task while it waits for the others.
async fn linger(caller: ThreadId, post: usize, posts: Arc<AtomicUsize>) {
    let start = Instant::now();
    while current().id() != caller && posts.load(Ordering::Acquire) == post && start.elapsed() < LINGER {
        pause();
    }
}

fn pause() {
    (0..PAUSES).for_each(|_| core::hint::spin_loop());
}

/// Counts the end of a task, even if it panics.
struct CountOnDrop<'a>(&'a AtomicUsize);

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        for threads in [1, 2, 5] {
            let pool = CpuPool::new(threads);
            assert_eq!(pool.threads(), threads);
            for n in [0, 1, 2, 3, 100] {
                let mut seen = vec![0; n];
                pool.each(seen.iter_mut(), |s| *s += 1);
                assert!(seen.iter().all(|&s| s == 1));
            }
            let mut seen = vec![0; 70_001];
            pool.each_unit(&mut seen, 7, 100, |first, part| {
                part.iter_mut().enumerate().for_each(|(i, s)| *s += first * 7 + i);
            });
            assert!(seen.iter().enumerate().all(|(i, &s)| i == s));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = CpuPool::new(3);
        for bad in [0, 7] {
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.each(0..8, |i| assert_ne!(i, bad))));
            assert!(outcome.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.each(0..8, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 28);
    }
}
