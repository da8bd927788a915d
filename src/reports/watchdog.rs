//! The watchdog: reports recorded work that does not move on, for example because a device does not answer. It never
//! waits, and cancels nothing.

use core::time::Duration;

use bevy::platform::time::Instant;
use bevy::prelude::*;

use crate::error::{Stall, StallStage, TensorFault};
use crate::figures::TensorDiagnostics;
use crate::mailbox::Outbox;
use crate::support::TensorSupport;

/// When recorded work counts as stalled. Changes take effect in the next frame.
///
/// A stall is reported once, as [`TensorFault::Stalled`], and listed by [`TensorDiagnostics::stalls`] until something
/// happens again. The work itself is not cancelled.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[reflect(Resource, Default, Debug, PartialEq, Clone)]
pub struct WatchdogSettings {
    /// How long a hardware GPU may leave submitted work unfinished, or recorded work may wait for it. `None` disables
    /// the watchdog for the GPU.
    pub gpu: Option<Duration>,
    /// The same for the CPU backend and for software adapters, where a batch legitimately takes longer.
    pub cpu: Option<Duration>,
}

impl Default for WatchdogSettings {
    fn default() -> Self {
        Self { gpu: Some(Duration::from_secs(10)), cpu: Some(Duration::from_secs(60)) }
    }
}

/// For tests: the time since the start of the app, instead of the machine's clock.
#[doc(hidden)]
#[derive(Resource, Clone, Copy, Debug, Default)]
pub struct WatchdogClock(pub Duration);

/// One long frame counts as at most this part of the allowed time: while the app itself stands still, nothing can be
/// answered.
const FRAME_PART: u32 = 4;

/// What is known about one stage.
#[derive(Clone, Copy, Default)]
struct Watched {
    /// Pieces of work that had ended at the last look.
    ended: u64,
    /// Since when nothing has ended although work waits.
    waited: Duration,
}

impl Watched {
    /// Looks at a stage. Returns a stall if nothing has moved for longer than `patience`.
    fn look(&mut self, stage: StallStage, state: (u64, u64), frame: Duration, patience: Duration) -> Option<Stall> {
        let (pending, ended) = state;
        if pending == 0 || core::mem::replace(&mut self.ended, ended) != ended {
            self.waited = Duration::ZERO;
            return None;
        }
        self.waited += frame.min(patience / FRAME_PART);
        (self.waited >= patience).then_some(Stall { stage, waited: self.waited, pending })
    }
}

/// The state between two frames.
#[derive(Default)]
pub(crate) struct Watch {
    stages: [Watched; 4],
    last: Option<Duration>,
    start: Option<Instant>,
    /// Whether a stall of each backend has been reported.
    reported: [bool; 2],
}

/// The stages of each backend. The first one that stalls is the cause of what happens at the others.
const BACKENDS: [&[StallStage]; 2] =
    [&[StallStage::Device, StallStage::Renderer, StallStage::Queue], &[StallStage::Cpu]];

/// Looks at all stages once per frame.
pub(crate) fn watch(
    settings: Res<WatchdogSettings>,
    diagnostics: Res<TensorDiagnostics>,
    outbox: Res<Outbox>,
    support: Option<Res<TensorSupport>>,
    clock: Option<Res<WatchdogClock>>,
    mut watch: Local<Watch>,
    mut commands: Commands,
) {
    let start = *watch.start.get_or_insert_with(Instant::now);
    let now = clock.map_or_else(|| start.elapsed(), |clock| clock.0);
    let frame = watch.last.replace(now).map_or(Duration::ZERO, |last| now.saturating_sub(last));
    let software = support.and_then(|support| support.adapter.as_ref().map(|adapter| adapter.software));
    let gpu = if software == Some(true) { settings.cpu } else { settings.gpu };
    let mut stalls = Vec::new();
    for ((backend, stages), patience) in BACKENDS.iter().enumerate().zip([gpu, settings.cpu]) {
        let mut first = None;
        for &stage in *stages {
            let (mut pending, ended) = diagnostics.progress(stage).state();
            if stage == StallStage::Renderer {
                // Extraction empties the mailbox after every update, unless there is no extraction.
                pending += outbox.recordings();
            }
            let patience = patience.unwrap_or(Duration::MAX);
            let stall = watch.stages[stage as usize].look(stage, (pending, ended), frame, patience);
            first = first.or(stall);
        }
        if let Some(stall) = first
            && !watch.reported[backend]
        {
            commands.trigger(TensorFault::Stalled(stall));
        }
        watch.reported[backend] = first.is_some();
        stalls.extend(first);
    }
    if !stalls.is_empty() || !diagnostics.stalls().is_empty() {
        diagnostics.set_stalls(stalls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_a_stage_with_work_that_does_not_move_stalls() {
        let mut watched = Watched::default();
        let mut look = |pending, ended| {
            watched.look(StallStage::Device, (pending, ended), SECOND, SECOND * 10).map(|stall| stall.waited.as_secs())
        };
        // Without work, and with work that moves, time does not count.
        assert!((0..20).all(|_| look(0, 0).is_none()));
        assert!((1..20).all(|ended| look(5, ended).is_none()));
        assert!((0..9).all(|_| look(5, 19).is_none()));
        assert_eq!((look(5, 19), look(6, 19)), (Some(10), Some(11)));
        assert_eq!((look(6, 20), look(6, 20)), (None, None));
    }

    #[test]
    fn a_frame_in_which_the_app_stood_still_is_no_stall() {
        let mut watched = Watched { ended: 3, waited: Duration::ZERO };
        let mut look = || watched.look(StallStage::Cpu, (1, 3), SECOND * 3600, SECOND * 10);
        assert_eq!((look(), look(), look()), (None, None, None));
        assert_eq!(look().map(|stall| stall.waited), Some(SECOND * 10));
    }
}
