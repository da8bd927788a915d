//! Decides when scratch memory is larger than the work of late needs.

/// How much of a scratch buffer was used lately. Time is counted in windows of several frames, so that work that comes
/// back every few frames does not allocate again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScratchUse {
    /// Frames of the current window so far.
    frames: u64,
    /// Highest use in the current window, in bytes.
    now: u64,
    /// Highest use in the window before.
    before: u64,
}

impl ScratchUse {
    /// Records that work needs `bytes`.
    pub(crate) fn used(&mut self, bytes: u64) {
        self.now = self.now.max(bytes);
    }

    /// Ends a frame. Returns whether a buffer of `bytes` should be freed: a window has ended, and neither it nor the one
    /// before used half of the buffer.
    pub(crate) fn end_frame(&mut self, window: u64, bytes: u64) -> bool {
        self.frames += 1;
        if self.frames < window.max(1) {
            return false;
        }
        let peak = self.now.max(self.before);
        *self = Self { frames: 0, now: 0, before: self.now };
        bytes > 0 && bytes / 2 >= peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_freed_after_two_windows_with_little_use() {
        let mut usage = ScratchUse::default();
        usage.used(1000);
        let freed: Vec<u64> = (1..=40)
            .filter(|_| {
                usage.used(100);
                usage.end_frame(10, 1000)
            })
            .collect();
        assert_eq!(freed, [30, 40], "the window of the peak and the one behind it keep the buffer");
    }

    #[test]
    fn memory_that_is_used_every_other_window_stays() {
        let mut usage = ScratchUse::default();
        for frame in 0..200 {
            if frame % 20 == 0 {
                usage.used(1000);
            }
            assert!(!usage.end_frame(10, 1024), "frame {frame}");
        }
    }
}
