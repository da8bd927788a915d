//! Memory that was used and may be used again: kept by size class, the longest idle dropped first. Pure; what is kept is a parameter.

use std::collections::{BTreeMap, VecDeque};

/// Classes per doubling of size; a buffer is at most 1/16 larger than asked for.
const PER_DOUBLING: u64 = 16;

/// The smallest class, and the smallest step between two.
const SMALLEST: u64 = 256;

/// The size to make a buffer of, so that requests of about the same size can share it.
pub(crate) fn size_class(bytes: u64) -> u64 {
    let step = (bytes.next_power_of_two() / (2 * PER_DOUBLING)).max(SMALLEST);
    bytes.max(1).next_multiple_of(step)
}

/// Idle items by kind and size.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    /// By age: the number an item got when it was put in.
    idle: BTreeMap<u64, Idle<T>>,
    /// Ages of the items of each kind and size, oldest first.
    classes: BTreeMap<(u8, u64), VecDeque<u64>>,
    next: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Idle<T> {
    item: T,
    class: (u8, u64),
    /// The frame it was put in.
    since: u64,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { idle: BTreeMap::new(), classes: BTreeMap::new(), next: 0, bytes: 0 }
    }
}

impl<T> Pool<T> {
    /// Bytes of all idle items.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many idle items there are of each kind and size.
    pub(crate) fn counts(&self) -> impl Iterator<Item = ((u8, u64), usize)> {
        self.classes.iter().map(|(&class, ages)| (class, ages.len()))
    }

    /// An idle item of a kind with at least `bytes` and at most `slack` more; the smallest that fits, and of those the one used last.
    pub(crate) fn take(&mut self, kind: u8, bytes: u64, slack: u64) -> Option<T> {
        let (&class, _) = self.classes.range((kind, bytes)..=(kind, bytes.saturating_add(slack))).next()?;
        let ages = self.classes.get_mut(&class)?;
        let age = ages.pop_back()?;
        if ages.is_empty() {
            self.classes.remove(&class);
        }
        self.bytes -= class.1;
        self.idle.remove(&age).map(|idle| idle.item)
    }

    /// Keeps an item for later.
    pub(crate) fn put(&mut self, kind: u8, bytes: u64, item: T, frame: u64) {
        let (age, class) = (self.next, (kind, bytes));
        self.next += 1;
        self.bytes += bytes;
        self.idle.insert(age, Idle { item, class, since: frame });
        self.classes.entry(class).or_default().push_back(age);
    }

    /// Takes out what has been idle since before `frame`.
    pub(crate) fn trim_before(&mut self, frame: u64) -> Vec<T> {
        self.trim_while(|pool, oldest| oldest.since < frame && pool.bytes > 0)
    }

    /// Takes out the longest idle until at most `bytes` are left.
    pub(crate) fn trim_to(&mut self, bytes: u64) -> Vec<T> {
        self.trim_while(|pool, _| pool.bytes > bytes)
    }

    fn trim_while(&mut self, more: impl Fn(&Self, &Idle<T>) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        while let Some((&age, oldest)) = self.idle.first_key_value()
            && more(self, oldest)
        {
            let class = oldest.class;
            if let Some(ages) = self.classes.get_mut(&class) {
                // The oldest of all is the oldest of its class.
                ages.pop_front();
                if ages.is_empty() {
                    self.classes.remove(&class);
                }
            }
            self.bytes -= class.1;
            out.extend(self.idle.remove(&age).map(|idle| idle.item));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_little_and_are_few() {
        let mut classes = Vec::new();
        for bytes in (1..200_000).step_by(7) {
            let class = size_class(bytes);
            assert!(class >= bytes && class.is_multiple_of(SMALLEST));
            assert!(class - bytes < SMALLEST || (class - bytes) * 16 <= bytes, "{bytes} became {class}");
            classes.push(class);
        }
        assert!(classes.is_sorted());
        classes.dedup();
        assert!(classes.len() < 150, "{}", classes.len());
        assert_eq!((size_class(1 << 20), size_class(0)), (1 << 20, SMALLEST));
    }

    #[test]
    fn what_was_put_in_is_found_by_kind_and_size() {
        let mut pool = Pool::default();
        pool.put(0, 1024, "a", 0);
        pool.put(0, 1024, "b", 0);
        pool.put(1, 2048, "c", 0);
        assert_eq!(pool.take(0, 2048, 0), None);
        assert_eq!(pool.take(0, 900, 100), None);
        assert_eq!(pool.take(0, 900, 200), Some("b"), "the one used last");
        assert_eq!(pool.take(0, 1024, 0), Some("a"));
        assert_eq!((pool.take(0, 1, u64::MAX), pool.bytes()), (None, 2048));
        assert_eq!(pool.take(1, 2048, 0), Some("c"));
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn the_longest_idle_goes_first() {
        let mut pool = Pool::default();
        for frame in 0..6 {
            pool.put(0, 100 + frame % 2, frame, frame);
        }
        assert_eq!(pool.trim_before(2), [0, 1]);
        assert_eq!(pool.trim_to(202), [2, 3]);
        assert_eq!(pool.take(0, 101, 0), Some(5));
        assert_eq!((pool.trim_to(0), pool.bytes()), (vec![4], 0));
        assert_eq!(pool.trim_before(u64::MAX), [0; 0]);
    }
}
