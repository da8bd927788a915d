//! The eviction policy for idle tensors, independent of the budget.

use core::time::Duration;

use bevy::prelude::*;

/// Whether to prefer speed or low memory use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Reflect)]
pub enum PriorityMode {
    /// Tensors are evicted only to stay within the budget.
    Speed,
    /// Idle tensors are evicted while tensors take more than [`MemoryPolicy::threshold`] bytes of the device.
    #[default]
    Balanced,
    /// All idle tensors are evicted.
    Memory,
}

/// When idle tensors are evicted to the host. Their next use restores them bit for bit. Tensors with
/// [`Pinned`](crate::memory::Pinned) are never evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Reflect)]
pub struct MemoryPolicy {
    /// Whether to prefer speed or low memory use.
    pub mode: PriorityMode,
    /// With [`PriorityMode::Balanced`], nothing is evicted while tensors take at most this many bytes of the device.
    pub threshold: u64,
    /// How long a tensor must be unused to be evicted.
    pub idle: Duration,
    /// Only tensors larger than this are evicted. In bytes.
    pub min_bytes: u64,
    /// How often the policy is applied. [`TensorMemory::optimize`](crate::memory::TensorMemory::optimize) applies it at
    /// once.
    pub interval: Duration,
}

impl Default for MemoryPolicy {
    fn default() -> Self {
        Self {
            mode: PriorityMode::Balanced,
            threshold: 512 << 20,
            idle: Duration::from_secs(300),
            min_bytes: 1 << 20,
            interval: Duration::from_secs(30),
        }
    }
}

impl MemoryPolicy {
    /// A preset. 0: speed. 1: the balanced default. 2: balanced, with half the threshold and an idle time of one
    /// minute. 3 and higher: lowest memory use.
    pub fn level(level: u8) -> Self {
        let balanced = Self::default();
        match level {
            0 => Self { mode: PriorityMode::Speed, ..balanced },
            1 => balanced,
            2 => Self { threshold: 256 << 20, idle: Duration::from_secs(60), ..balanced },
            _ => Self {
                mode: PriorityMode::Memory,
                idle: Duration::from_secs(10),
                min_bytes: 64 << 10,
                interval: Duration::from_secs(5),
                ..balanced
            },
        }
    }
}

/// A storage that can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub id: u64,
    pub bytes: u64,
    pub last_used: Duration,
}

/// Chooses storages to evict, largest first. `candidates` must be ordered by last use, oldest first.
pub(crate) fn choose(
    policy: &MemoryPolicy,
    device_bytes: u64,
    now: Duration,
    candidates: impl Iterator<Item = Candidate>,
) -> Vec<u64> {
    let mut over = match policy.mode {
        PriorityMode::Speed => return Vec::new(),
        PriorityMode::Balanced => device_bytes.saturating_sub(policy.threshold),
        PriorityMode::Memory => u64::MAX,
    };
    if over == 0 {
        return Vec::new();
    }
    let mut idle: Vec<Candidate> = candidates
        .take_while(|candidate| now.saturating_sub(candidate.last_used) > policy.idle)
        .filter(|candidate| candidate.bytes > policy.min_bytes)
        .collect();
    idle.sort_by_key(|candidate| core::cmp::Reverse(candidate.bytes));
    let mut leave = Vec::new();
    for candidate in idle {
        if over == 0 {
            break;
        }
        over = over.saturating_sub(candidate.bytes);
        leave.push(candidate.id);
    }
    leave
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn candidates() -> [Candidate; 5] {
        let candidate =
            |id, mib, last_used| Candidate { id, bytes: mib * MIB, last_used: Duration::from_secs(last_used) };
        [candidate(1, 2, 0), candidate(2, 300, 10), candidate(3, 1, 20), candidate(4, 400, 30), candidate(5, 500, 100)]
    }

    fn leave(policy: MemoryPolicy, device_mib: u64, now: u64) -> Vec<u64> {
        choose(&policy, device_mib * MIB, Duration::from_secs(now), candidates().into_iter())
    }

    #[test]
    fn speed_never_moves_anything() {
        assert_eq!(leave(MemoryPolicy::level(0), 10_000, 100_000), [0; 0]);
    }

    #[test]
    fn balanced_moves_the_largest_idle_until_the_threshold_is_kept() {
        let policy = MemoryPolicy::default();
        assert_eq!(leave(policy, 512, 1000), [0; 0], "at the threshold");
        assert_eq!(leave(policy, 513, 1000), [5], "the largest is enough");
        assert_eq!(leave(policy, 1203, 1000), [5, 4], "500 are not enough");
        // A tensor that was used exactly 300 s ago is not idle yet, and 1 MiB does not exceed `min_bytes`.
        assert_eq!(leave(policy, 1203, 330), [2, 1]);
    }

    #[test]
    fn memory_moves_all_that_are_idle() {
        let policy = MemoryPolicy { mode: PriorityMode::Memory, ..MemoryPolicy::default() };
        assert_eq!(leave(policy, 1203, 1000), [5, 4, 2, 1]);
        assert_eq!(leave(policy, 1, 400), [4, 2, 1], "whatever the device holds");
        let policy = MemoryPolicy { idle: Duration::from_secs(1), min_bytes: 0, ..policy };
        assert_eq!(leave(policy, 1, 60), [4, 2, 1, 3]);
    }
}
