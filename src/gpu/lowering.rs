//! Lowers the steps of a plan to kernel launches for this device.

use core::ops::Range;
use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::device::Gpu;
use super::faults::Look;
use crate::error::RunError;
use crate::ir::Source;
use crate::kernel::{Caps, Kernel, Launch, Step, bucket, lower, non_finite};
use crate::pipelines::TuningTable;
use crate::plan::{Plan, shift, sources, window};

/// A launch of a plan.
pub(crate) struct PlannedLaunch {
    pub launch: Launch,
    /// Index of its step in the plan.
    pub step: usize,
    /// Set if the launch is a debug check of an operand. `None` for the step's own kernel.
    pub look: Option<Look>,
    /// The variant of the kernel. Empty if the kernel has only one.
    pub variant: Arc<str>,
    pub windows: Windows,
}

/// For each source that is larger than a binding: the range of words that is bound.
pub(super) type Windows = SmallVec<[(Source, Range<usize>); 1]>;

/// Lowers all steps, in order. With `debug`, launches that count NaNs and infinities are added around each step.
pub(super) fn lower_plan(
    plan: &Plan,
    elements: &[usize],
    gpu: &Gpu,
    caps: &Caps,
    table: &TuningTable,
    debug: bool,
) -> Result<Vec<PlannedLaunch>, RunError> {
    let mut launches = Vec::new();
    let none: Arc<str> = "".into();
    for (i, step) in plan.steps.iter().enumerate() {
        let variant = if table.choices.is_empty() { None } else { table.get(&bucket(step)) };
        let caps = &Caps { variant, ..*caps };
        let (step, windows) = fit_bindings(step, plan, i, elements, gpu)?;
        let Some(launch) = lower(&step, caps) else { continue };
        let mut push = |launch: Launch, look: Option<Look>| {
            let variant = launch.variant.map_or(none.clone(), |variant| variant.to_string().into());
            launches.push(PlannedLaunch { launch, step: i, look, variant, windows: windows.clone() });
        };
        if debug {
            let read = step.reads().filter_map(|operand| non_finite(operand, false, caps));
            read.for_each(|launch| push(launch, Some(Look::Before)));
        }
        push(launch, None);
        if debug {
            let written = step.outputs.iter().filter_map(|operand| non_finite(operand, true, caps));
            written.for_each(|launch| push(launch, Some(Look::After)));
        }
    }
    Ok(launches)
}

/// Restricts a step to the words it touches of each source that is larger than a binding. An error if those do not fit
/// in a binding either.
fn fit_bindings<'a>(
    step: &'a Step,
    plan: &Plan,
    at: usize,
    elements: &[usize],
    gpu: &Gpu,
) -> Result<(Cow<'a, Step>, Windows), RunError> {
    let limit = gpu.binding_words();
    let (mut step, mut windows) = (Cow::Borrowed(step), Windows::new());
    if let Kernel::Custom(_) = step.kernel {
        // Each operand of a custom kernel has its own binding, of exactly its elements.
        return Ok((step, windows));
    }
    for source in sources(&step) {
        let total = source_words(source, &step, plan, elements);
        if total <= limit {
            continue;
        }
        // The position of the output may be known only at run time.
        let moves = step.kernel.as_map().is_some_and(|map| map.dynamic_out.is_some());
        let words = if moves && step.outputs[0].source == source {
            0..total
        } else {
            window(&step, source, gpu.binding_alignment())
        };
        if words.len() > limit {
            let what = format!("memory bound by one launch of \"{}\"", plan.report.steps[at].op);
            let (requested, available) = (words.len() as u64 * 4, limit as u64 * 4);
            return Err(RunError::Limit { what, requested, available });
        }
        shift(step.to_mut(), source, words.start);
        windows.push((source, words));
    }
    Ok((step, windows))
}

/// Size of a source that a step uses, in words.
fn source_words(source: Source, step: &Step, plan: &Plan, elements: &[usize]) -> usize {
    match source {
        Source::Slot(slot) => {
            let operand = step.reads().chain(&step.outputs).find(|operand| operand.source == source);
            operand.map_or(0, |operand| operand.dtype.words(elements[slot as usize]))
        }
        Source::Scratch(value) => plan.regions[value as usize].words,
        Source::Constant(constant) => plan.constants[constant as usize].len(),
        Source::Iota | Source::Fused => 0,
    }
}
