//! Least-recently-used order of the storages on the device. It decides which storages are evicted. Pure logic: a
//! generic handle stands for a storage.

use core::time::Duration;
use std::collections::BTreeMap;

use bevy::platform::collections::HashMap;

/// The storages on the device, ordered by last use. The cost per frame depends on the storages used in the frame, not
/// on the total number.
#[derive(Debug)]
pub(crate) struct Ledger<H> {
    entries: HashMap<u64, Entry<H>>,
    /// Storages by the tick of their last use.
    order: BTreeMap<u64, u64>,
    clock: u64,
    /// Number of entries at which entries of dropped storages are removed.
    sweep_at: usize,
}

/// A storage on the device.
#[derive(Debug)]
pub(crate) struct Entry<H> {
    pub handle: H,
    /// Tick of the last use.
    pub used: u64,
    /// Time of the last use.
    pub at: Duration,
    /// Whether its content is being copied to the host, after which it is evicted.
    pub leaving: bool,
}

/// Result of [`Ledger::make_room`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Enough,
    /// There is enough room after these storages are evicted, least recently used first.
    Make(Vec<u64>),
    /// There is not enough room even if every evictable storage is evicted. `available` bytes would be freed.
    Never {
        available: u64,
    },
}

impl<H> Default for Ledger<H> {
    fn default() -> Self {
        Self { entries: HashMap::default(), order: BTreeMap::new(), clock: 0, sweep_at: 64 }
    }
}

impl<H> Ledger<H> {
    /// Marks a storage as used. Cancels a pending eviction.
    pub(crate) fn touch(&mut self, id: u64, at: Duration, handle: impl FnOnce() -> H) {
        self.clock += 1;
        let used = self.clock;
        let entry = self.entries.entry(id).or_insert_with(|| Entry { handle: handle(), used: 0, at, leaving: false });
        self.order.remove(&entry.used);
        (entry.used, entry.at, entry.leaving) = (used, at, false);
        self.order.insert(used, id);
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Entry<H>> {
        self.entries.get(&id)
    }

    pub(crate) fn set_leaving(&mut self, id: u64, leaving: bool) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.leaving = leaving;
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Entry<H>> {
        let entry = self.entries.remove(&id)?;
        self.order.remove(&entry.used);
        Some(entry)
    }

    /// All storages, least recently used first.
    pub(crate) fn oldest_first(&self) -> impl Iterator<Item = (u64, &Entry<H>)> {
        self.order.values().filter_map(|id| Some((*id, self.entries.get(id)?)))
    }

    /// Chooses storages to evict so that `wanted` bytes in total fit in `budget`. `bytes` returns how many bytes
    /// evicting a storage frees, or `None` if the storage must stay.
    pub(crate) fn make_room(&self, wanted: u64, budget: u64, bytes: impl Fn(u64, &Entry<H>) -> Option<u64>) -> Room {
        let Some(over) = wanted.checked_sub(budget).filter(|&over| over > 0) else { return Room::Enough };
        let (mut freed, mut leave) = (0, Vec::new());
        for (id, entry) in self.oldest_first() {
            if let Some(bytes) = bytes(id, entry) {
                freed += bytes;
                leave.push(id);
                if freed >= over {
                    return Room::Make(leave);
                }
            }
        }
        Room::Never { available: freed }
    }

    /// Removes entries of dropped storages. Runs only when the number of entries has grown enough, so the cost is
    /// amortised.
    pub(crate) fn sweep(&mut self, alive: impl Fn(&H) -> bool) {
        if self.entries.len() < self.sweep_at {
            return;
        }
        let order = &mut self.order;
        self.entries.retain(|_, entry| {
            let keep = alive(&entry.handle);
            if !keep {
                order.remove(&entry.used);
            }
            keep
        });
        self.sweep_at = (self.entries.len() * 2).max(64);
    }

    /// The handles of all storages.
    pub(crate) fn into_handles(self) -> impl Iterator<Item = H> {
        self.entries.into_values().map(|entry| entry.handle)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        assert_eq!(self.entries.len(), self.order.len());
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(ids: &[u64]) -> Ledger<u64> {
        let mut ledger = Ledger::default();
        for &id in ids {
            ledger.touch(id, Duration::from_secs(id), || 10 * id);
        }
        ledger
    }

    fn order(ledger: &Ledger<u64>) -> Vec<u64> {
        ledger.oldest_first().map(|(id, _)| id).collect()
    }

    #[test]
    fn a_touch_moves_a_storage_to_the_end() {
        let mut ledger = ledger(&[1, 2, 3]);
        ledger.touch(1, Duration::from_secs(9), || unreachable!("it is known"));
        assert_eq!(order(&ledger), [2, 3, 1]);
        assert_eq!(ledger.get(1).map(|e| (e.at, e.handle)), Some((Duration::from_secs(9), 10)));
        ledger.remove(3);
        assert_eq!((order(&ledger), ledger.len()), (vec![2, 1], 2));
    }

    #[test]
    fn the_least_recently_used_leave_until_there_is_room() {
        let ledger = ledger(&[1, 2, 3, 4]);
        let bytes = |_: u64, entry: &Entry<u64>| Some(entry.handle);
        assert_eq!(ledger.make_room(100, 100, bytes), Room::Enough);
        assert_eq!(ledger.make_room(101, 100, bytes), Room::Make(vec![1]));
        assert_eq!(ledger.make_room(125, 100, bytes), Room::Make(vec![1, 2]));
        // Storage 2 cannot be evicted.
        let bytes = |id: u64, entry: &Entry<u64>| (id != 2).then_some(entry.handle);
        assert_eq!(ledger.make_room(125, 100, bytes), Room::Make(vec![1, 3]));
        assert_eq!(ledger.make_room(200, 100, bytes), Room::Never { available: 80 });
    }

    #[test]
    fn a_storage_used_while_it_was_leaving_stays() {
        let mut ledger = ledger(&[1]);
        ledger.set_leaving(1, true);
        assert!(ledger.get(1).is_some_and(|entry| entry.leaving));
        ledger.touch(1, Duration::ZERO, || 0);
        assert!(ledger.get(1).is_some_and(|entry| !entry.leaving));
    }

    #[test]
    fn storages_that_are_gone_do_not_pile_up() {
        let mut ledger = Ledger::default();
        for id in 0..10_000 {
            ledger.touch(id, Duration::ZERO, || id);
            ledger.sweep(|&handle| handle % 100 == 0);
        }
        assert!(ledger.len() < 400, "{}", ledger.len());
        assert!(order(&ledger).contains(&9_900));
    }
}
