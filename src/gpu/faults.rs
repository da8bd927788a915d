//! What launches counted: positions out of range, and, in debug mode, numbers that are not finite.

use core::panic::Location;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::buffers::DeviceBuffer;
use crate::error::{RunError, TensorFault};

/// When an operand was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Before the step that reads it.
    Before,
    /// After the step that wrote it.
    After,
}

/// A launch that counts: its step's own positions, or, as a [`Look`], NaNs and infinities.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub step: usize,
    pub look: Option<Look>,
    pub op: &'static str,
    pub ops: Vec<&'static str>,
    pub site: &'static Location<'static>,
}

/// Reports what launches counted, when the counters have arrived.
pub(crate) fn watch_faults(
    staging: Arc<DeviceBuffer>,
    stride: usize,
    watched: Vec<Watched>,
    faults: Sender<TensorFault>,
) {
    let bytes = (stride * watched.len()) as u64 * 4;
    let buffer = staging.buffer.clone();
    buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| {
        if result.is_err() {
            return;
        }
        let view = staging.buffer.slice(..bytes).get_mapped_range();
        let words: &[u32] = bytemuck::cast_slice(&view);
        for error in errors(&watched, words, stride) {
            // The main world may have ended.
            let _ = faults.send(TensorFault::Run(error));
        }
        drop(view);
        staging.buffer.unmap();
    });
}

/// Every launch with positions out of range, and the first step that made a number that is not finite of numbers that were.
fn errors(watched: &[Watched], words: &[u32], stride: usize) -> Vec<RunError> {
    let counts = || watched.iter().zip(words.chunks(stride));
    let mut errors: Vec<RunError> = counts()
        .filter(|(watched, words)| watched.look.is_none() && words[0] > 0)
        .map(|(watched, words)| RunError::IndexOutOfRange { op: watched.op, count: words[0] })
        .collect();
    let sum = |step: usize, look: Look| {
        let same = counts().filter(move |(watched, _)| watched.step == step && watched.look == Some(look));
        same.fold([0u32; 2], |sum, (_, words)| [sum[0].saturating_add(words[0]), sum[1].saturating_add(words[1])])
    };
    let first = watched.iter().filter(|watched| watched.look == Some(Look::After)).find_map(|watched| {
        let ([nans_in, infinities_in], [nans, infinities]) =
            (sum(watched.step, Look::Before), sum(watched.step, Look::After));
        let made = nans > 0 && nans_in == 0 || infinities > 0 && nans_in == 0 && infinities_in == 0;
        made.then(|| RunError::NonFinite {
            op: watched.op,
            ops: watched.ops.clone(),
            site: watched.site,
            nans,
            infinities,
        })
    });
    errors.extend(first);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_that_made_the_first_nan_is_named_and_not_those_that_passed_it_on() {
        let site = Location::caller();
        let watched = |step, look, op| Watched { step, look, op, ops: vec![op], site };
        let list = [
            watched(0, Some(Look::Before), "log"),
            watched(0, Some(Look::After), "log"),
            watched(1, None, "gather"),
            watched(2, Some(Look::Before), "add"),
            watched(2, Some(Look::After), "add"),
        ];
        // The logarithm of a finite number gave two NaNs, the sum passed them on; one position was out of range.
        let words = [0, 0, 2, 0, 1, 0, 2, 0, 2, 0];
        let named = RunError::NonFinite { op: "log", ops: vec!["log"], site, nans: 2, infinities: 0 };
        assert_eq!(errors(&list, &words, 2), [RunError::IndexOutOfRange { op: "gather", count: 1 }, named]);
        // An operand that came with a NaN is nobody's fault here.
        assert_eq!(errors(&list, &[2, 0, 2, 0, 0, 0, 2, 0, 2, 0], 2), []);
        assert_eq!(errors(&list, &[0; 10], 2), []);
    }
}
