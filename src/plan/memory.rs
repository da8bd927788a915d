//! Places scratch values in memory. Values with disjoint lifetimes share words.

use super::Region;

/// A scratch value's size and the steps it is alive for, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub words: usize,
    pub first: usize,
    pub last: usize,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Assigns a region to every value and returns the total number of words. Values are placed largest first, each at the
/// lowest offset that is free for its whole lifetime. On real networks the result is within a few per cent of the
/// largest live set.
pub(super) fn pack(values: &[Lifetime], alignment: usize) -> (Vec<Region>, usize) {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|&i| (core::cmp::Reverse(values[i].words), values[i].first));
    let mut regions = vec![Region { offset: 0, words: 0 }; values.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(values.len());
    let mut total = 0;
    for i in order.into_iter().filter(|&i| values[i].words > 0) {
        let words = values[i].words.next_multiple_of(alignment);
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| values[j].meets(&values[i]))
            .map(|&j| (regions[j].offset, regions[j].offset + regions[j].words.next_multiple_of(alignment)))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + words <= start {
                break;
            }
            offset = offset.max(end);
        }
        regions[i] = Region { offset, words: values[i].words };
        placed.push(i);
        total = total.max(offset + words);
    }
    (regions, total)
}

/// The largest number of words alive at any step, which is a lower bound for every packing.
pub(super) fn largest_live_set(values: &[Lifetime]) -> usize {
    values
        .iter()
        .map(|at| values.iter().filter(|v| v.first <= at.first && at.first <= v.last).map(|v| v.words).sum())
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(words: usize, first: usize, last: usize) -> Lifetime {
        Lifetime { words, first, last }
    }

    #[test]
    fn a_chain_needs_two_values() {
        let chain: Vec<_> = (0..20).map(|i| value(100, i, i + 1)).collect();
        let (regions, total) = pack(&chain, 1);
        assert_eq!(total, 200);
        for (i, a) in chain.iter().enumerate() {
            for (j, b) in chain.iter().enumerate().skip(i + 1) {
                let apart = regions[i].offset + regions[i].words <= regions[j].offset
                    || regions[j].offset + regions[j].words <= regions[i].offset;
                assert!(apart || !a.meets(b), "{i} and {j} overlap");
            }
        }
    }

    #[test]
    fn starts_are_aligned_and_the_live_set_is_the_bound() {
        let values = [value(3, 0, 5), value(70, 1, 2), value(70, 3, 4), value(1, 2, 3)];
        let (regions, total) = pack(&values, 64);
        assert!(regions.iter().all(|r| r.offset % 64 == 0));
        assert_eq!(largest_live_set(&values), 74);
        assert_eq!(total, 128 + 64 + 64);
    }
}
