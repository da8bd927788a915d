//! The words of a storage on the host, and matrices packed from them.
//!
//! Weights are used in every frame, so packing them once pays. Content that changes every frame is not cached: content
//! written by an op is packed only on its second use with the same layout between two writes. The initial content of a
//! storage is packed on first use.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::figures::{Count, Counters};
use crate::ir::Layout;

/// Maximum number of packed bytes cached by all storages of an app.
const LIMIT: u64 = 1 << 29;
/// Maximum number of layouts remembered per storage.
const LAYOUTS: usize = 64;

/// Words whose packed copies are dropped when they are written.
#[derive(Debug, Default)]
pub(crate) struct HostWords {
    words: Vec<u32>,
    /// Whether they are still the initial content of the storage.
    initial: bool,
    packings: Mutex<Vec<Packing>>,
}

/// How floats are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As the right-hand side of a product.
    Panels,
    /// As 32-bit numbers in row-major order.
    Rows,
}

/// State of one layout.
#[derive(Debug)]
struct Packing {
    layout: Layout,
    form: Form,
    /// `None` until the layout is used a second time.
    packed: Option<Arc<Packed>>,
}

/// Packed floats. They are counted while they exist.
#[derive(Debug)]
pub(crate) struct Packed {
    pub floats: Vec<f32>,
    counters: Arc<Counters>,
}

impl Drop for Packed {
    fn drop(&mut self) {
        self.counters.packed_bytes.sub(self.floats.len() as u64 * 4);
    }
}

impl Deref for HostWords {
    type Target = Vec<u32>;

    fn deref(&self) -> &Vec<u32> {
        &self.words
    }
}

impl DerefMut for HostWords {
    fn deref_mut(&mut self) -> &mut Vec<u32> {
        self.packings.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.initial = false;
        &mut self.words
    }
}

impl HostWords {
    pub(crate) const fn new() -> Self {
        Self { words: Vec::new(), initial: false, packings: Mutex::new(Vec::new()) }
    }

    /// Sets the initial content of a storage.
    pub(crate) fn begin(&mut self, words: Vec<u32>) {
        **self = words;
        self.initial = true;
    }

    /// The floats of a layout, packed by `pack`, if this pays and there is room for `floats` of them.
    pub(crate) fn packed(
        &self,
        layout: &Layout,
        form: Form,
        floats: usize,
        counters: &Arc<Counters>,
        pack: impl FnOnce(&mut [f32]),
    ) -> Option<Arc<Packed>> {
        let mut packings = self.packings.lock().unwrap_or_else(PoisonError::into_inner);
        let known = packings.iter().position(|p| p.form == form && p.layout == *layout);
        let fresh = known.is_none() && packings.len() < LAYOUTS;
        if fresh {
            packings.push(Packing { layout: layout.clone(), form, packed: None });
        }
        let packing = match known {
            Some(known) => &mut packings[known],
            None if fresh && self.initial => packings.last_mut()?,
            None => return None,
        };
        let bytes = floats as u64 * 4;
        if packing.packed.is_none() && counters.packed_bytes.load(Ordering::Relaxed) + bytes <= LIMIT {
            let mut floats = vec![0.0; floats];
            pack(&mut floats);
            counters.packed_bytes.add(bytes);
            packing.packed = Some(Arc::new(Packed { floats, counters: counters.clone() }));
        }
        packing.packed.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_floats_are_kept_from_the_second_use_until_a_write() {
        let counters = Arc::new(Counters::default());
        let mut words = HostWords::default();
        words.push(7);
        let layout = Layout::contiguous([1]);
        let other = Layout::contiguous([1, 1]);
        let get = |words: &HostWords, layout, value: f32| {
            words.packed(layout, Form::Panels, 1, &counters, |p| p[0] = value).map(|p| p.floats[0])
        };
        assert_eq!(get(&words, &layout, 1.0), None);
        assert_eq!(get(&words, &other, 1.0), None);
        assert_eq!(get(&words, &layout, 2.0), Some(2.0));
        assert_eq!(get(&words, &layout, 3.0), Some(2.0));
        assert!(words.packed(&layout, Form::Rows, 1, &counters, |_| {}).is_none(), "not the panels");
        assert_eq!(counters.packed_bytes.load(Ordering::Relaxed), 4);
        words[0] = 8;
        assert_eq!(counters.packed_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(get(&words, &layout, 4.0), None);
        assert_eq!(get(&words, &layout, 4.0), Some(4.0));
        words.begin(vec![9]);
        assert_eq!(get(&words, &layout, 5.0), Some(5.0), "at once");
        words[0] = 10;
        assert_eq!(get(&words, &layout, 6.0), None);
        drop(words);
        assert_eq!(counters.packed_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn packed_floats_stop_at_the_limit() {
        let counters = Arc::new(Counters::default());
        counters.packed_bytes.add(LIMIT - 3);
        let words = HostWords::default();
        for _ in 0..3 {
            assert!(words.packed(&Layout::contiguous([1]), Form::Panels, 1, &counters, |_| {}).is_none());
        }
    }
}
