//! Per-thread buffers that are reused, so that steady frames do not allocate.

use core::cell::RefCell;

use bytemuck::{Pod, cast_slice_mut};

/// Larger buffers, in words, are freed after use.
const KEPT: usize = 1 << 22;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u32>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with a buffer of `n` 32-bit numbers with arbitrary contents. Calls may be nested; each level has its
/// own buffer.
pub(crate) fn with_scratch<T: Pod, R>(n: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < n {
        buffer.resize(n, 0);
    }
    let result = work(cast_slice_mut(&mut buffer[..n]));
    if buffer.len() <= KEPT {
        BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_loans_do_not_overlap_and_come_back() {
        with_scratch(10, |outer: &mut [f32]| {
            outer.fill(1.0);
            with_scratch(20, |inner: &mut [f32]| inner.fill(2.0));
            assert!(outer.iter().all(|&v| v == 1.0));
        });
        let place = |n| with_scratch(n, |s: &mut [u32]| s.as_ptr());
        assert_eq!(place(20), place(10));
    }
}
