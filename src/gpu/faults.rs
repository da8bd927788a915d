//! Fault counters of launches: positions out of range and, in debug mode, NaNs and infinities.

use core::panic::Location;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::buffers::DeviceBuffer;
use crate::error::{RunError, TensorFault};
use crate::figures::StepNodes;

/// When a debug check looks at an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Before the step reads it.
    Before,
    /// After the step has written it.
    After,
}

/// A launch with a fault counter: a kernel that counts positions out of range, or a debug check that counts NaNs and
/// infinities.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub step: usize,
    /// The bound of loops that users wrote, and the kernels that have them.
    pub loops: Option<(u32, Vec<&'static str>)>,
    pub look: Option<Look>,
    pub op: &'static str,
    pub ops: Vec<&'static str>,
    pub site: &'static Location<'static>,
    /// The nodes of models' graphs that the launch computes.
    pub nodes: StepNodes,
}

/// Reports the faults of a batch when the counters have arrived.
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
            // Fails only when the main world is gone.
            let _ = faults.send(TensorFault::Run(error));
        }
        drop(view);
        staging.buffer.unmap();
    });
}

/// One error for every launch with positions out of range, one for every launch with loops that were ended, and one for the first step that made NaNs or infinities from
/// finite operands.
fn errors(watched: &[Watched], words: &[u32], stride: usize) -> Vec<RunError> {
    let counts = || watched.iter().zip(words.chunks(stride));
    let mut errors: Vec<RunError> = counts()
        .filter(|(watched, words)| watched.look.is_none() && words[0] > 0)
        .map(|(watched, words)| RunError::IndexOutOfRange { op: watched.op, count: words[0] }.in_nodes(&watched.nodes))
        .collect();
    let endless =
        counts().filter(|(watched, words)| watched.look.is_none() && words.get(1).is_some_and(|&word| word > 0));
    errors.extend(endless.filter_map(|(watched, _)| {
        let (turns, kernels) = watched.loops.as_ref()?;
        Some(RunError::LoopBound { kernel: kernels.join(" or "), turns: *turns })
    }));
    let sum = |step: usize, look: Look| {
        let same = counts().filter(move |(watched, _)| watched.step == step && watched.look == Some(look));
        same.fold([0u32; 2], |sum, (_, words)| [sum[0].saturating_add(words[0]), sum[1].saturating_add(words[1])])
    };
    let first = watched.iter().filter(|watched| watched.look == Some(Look::After)).find_map(|watched| {
        let ([nans_in, infinities_in], [nans, infinities]) =
            (sum(watched.step, Look::Before), sum(watched.step, Look::After));
        let made = nans > 0 && nans_in == 0 || infinities > 0 && nans_in == 0 && infinities_in == 0;
        made.then(|| {
            let (op, ops, site) = (watched.op, watched.ops.clone(), watched.site);
            RunError::NonFinite { op, ops, site, nans, infinities }.in_nodes(&watched.nodes)
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
        let watched =
            |step, look, op| Watched { step, loops: None, look, op, ops: vec![op], site, nodes: StepNodes::default() };
        let list = [
            watched(0, Some(Look::Before), "log"),
            watched(0, Some(Look::After), "log"),
            watched(1, None, "gather"),
            watched(2, Some(Look::Before), "add"),
            watched(2, Some(Look::After), "add"),
        ];
        // The logarithm of finite numbers gives two NaNs, and the sum passes them on. One position is out of range.
        let words = [0, 0, 2, 0, 1, 0, 2, 0, 2, 0];
        let named = RunError::NonFinite { op: "log", ops: vec!["log"], site, nans: 2, infinities: 0 };
        assert_eq!(errors(&list, &words, 2), [RunError::IndexOutOfRange { op: "gather", count: 1 }, named]);
        // A step whose operand already has a NaN is not blamed.
        assert_eq!(errors(&list, &[2, 0, 2, 0, 0, 0, 2, 0, 2, 0], 2), []);
        assert_eq!(errors(&list, &[0; 10], 2), []);
    }
}
