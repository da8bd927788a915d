//! The words of a storage on the host, and right sides of products packed from them.
//!
//! Weights are multiplied frame after frame, so packing them once pays. Content that changes every frame is never packed here: a layout
//! must come twice between two writes.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::diagnostics::{Count, Counters};
use crate::tensor::Layout;

/// Bytes of panels that all storages of an app may keep together.
const LIMIT: u64 = 1 << 29;
/// Layouts of one storage that are remembered.
const LAYOUTS: usize = 64;

/// Words that forget what was packed from them when they are written.
#[derive(Debug, Default)]
pub(crate) struct HostWords {
    words: Vec<u32>,
    packings: Mutex<Vec<Packing>>,
}

/// What is known about one layout.
#[derive(Debug)]
struct Packing {
    layout: Layout,
    /// None until the layout comes a second time.
    panels: Option<Arc<Panels>>,
}

/// Packed floats, counted while they live.
#[derive(Debug)]
pub(super) struct Panels {
    pub floats: Vec<f32>,
    counters: Arc<Counters>,
}

impl Drop for Panels {
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
        &mut self.words
    }
}

impl HostWords {
    /// The panels of a layout, made by `pack` if it has come before and there is room for `floats` of them.
    pub(super) fn panels(
        &self,
        layout: &Layout,
        floats: usize,
        counters: &Arc<Counters>,
        pack: impl FnOnce(&mut [f32]),
    ) -> Option<Arc<Panels>> {
        let mut packings = self.packings.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(packing) = packings.iter_mut().find(|p| p.layout == *layout) else {
            if packings.len() < LAYOUTS {
                packings.push(Packing { layout: layout.clone(), panels: None });
            }
            return None;
        };
        let bytes = floats as u64 * 4;
        if packing.panels.is_none() && counters.packed_bytes.load(Ordering::Relaxed) + bytes <= LIMIT {
            let mut floats = vec![0.0; floats];
            pack(&mut floats);
            counters.packed_bytes.add(bytes);
            packing.panels = Some(Arc::new(Panels { floats, counters: counters.clone() }));
        }
        packing.panels.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_kept_from_the_second_use_until_a_write() {
        let counters = Arc::new(Counters::default());
        let mut words = HostWords::default();
        words.push(7);
        let layout = Layout::contiguous([1]);
        let other = Layout::contiguous([1, 1]);
        let get = |words: &HostWords, layout, value: f32| {
            words.panels(layout, 1, &counters, |p| p[0] = value).map(|p| p.floats[0])
        };
        assert_eq!(get(&words, &layout, 1.0), None);
        assert_eq!(get(&words, &other, 1.0), None);
        assert_eq!(get(&words, &layout, 2.0), Some(2.0));
        assert_eq!(get(&words, &layout, 3.0), Some(2.0));
        assert_eq!(counters.packed_bytes.load(Ordering::Relaxed), 4);
        words[0] = 8;
        assert_eq!(counters.packed_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(get(&words, &layout, 4.0), None);
        assert_eq!(get(&words, &layout, 4.0), Some(4.0));
        drop(words);
        assert_eq!(counters.packed_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn panels_stop_at_the_limit() {
        let counters = Arc::new(Counters::default());
        counters.packed_bytes.add(LIMIT - 3);
        let words = HostWords::default();
        for _ in 0..3 {
            assert!(words.panels(&Layout::contiguous([1]), 1, &counters, |_| {}).is_none());
        }
    }
}
