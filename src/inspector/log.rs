//! The log of the inspector: failures, evicted or lost tensors, and slow frames.

use core::time::Duration;
use std::collections::VecDeque;

use bevy::prelude::*;

use crate::error::TensorFault;
use crate::memory::{MemoryAdvice, MemoryPressure, TensorLost};

/// Maximum number of entries.
const KEPT: usize = 500;

/// The kind of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogKind {
    /// Work failed, or a tensor was lost.
    Fault,
    /// Tensors were evicted, or memory is short.
    Memory,
    /// A lost device was replaced.
    Recovery,
    /// A frame was slow.
    SlowFrame,
    /// The result of an action in the inspector.
    Note,
}

impl LogKind {
    /// All kinds.
    pub const ALL: [LogKind; 5] = [Self::Fault, Self::Memory, Self::Recovery, Self::SlowFrame, Self::Note];

    /// A short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Memory => "memory",
            Self::Recovery => "recovery",
            Self::SlowFrame => "slow frame",
            Self::Note => "note",
        }
    }
}

/// A log entry. Consecutive equal entries are combined.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEntry {
    /// Time of the last occurrence, in the app's real time.
    pub time: Duration,
    /// Its kind.
    pub kind: LogKind,
    /// The message.
    pub text: String,
    /// Number of consecutive occurrences.
    pub times: u32,
}

/// The log entries, oldest first. Failures are recorded by observers, also while the inspector is closed.
#[derive(Resource, Clone, Debug, Default)]
pub struct InspectorLog {
    entries: VecDeque<LogEntry>,
    pub(super) advice: Option<MemoryAdvice>,
}

impl InspectorLog {
    /// Adds an entry. If it equals the last one, only the count is increased.
    pub fn push(&mut self, time: Duration, kind: LogKind, text: impl Into<String>) {
        let text = text.into();
        match self.entries.back_mut() {
            Some(last) if last.kind == kind && last.text == text => (last.time, last.times) = (time, last.times + 1),
            _ => {
                if self.entries.len() == KEPT {
                    self.entries.pop_front();
                }
                self.entries.push_back(LogEntry { time, kind, text, times: 1 });
            }
        }
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> &VecDeque<LogEntry> {
        &self.entries
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

fn now(time: Option<Res<Time<Real>>>) -> Duration {
    time.map_or(Duration::ZERO, |time| time.elapsed())
}

pub(super) fn plugin(app: &mut App) {
    app.init_resource::<InspectorLog>()
        .add_observer(|fault: On<TensorFault>, mut log: ResMut<InspectorLog>, time: Option<Res<Time<Real>>>| {
            log.push(now(time), LogKind::Fault, fault.to_string());
        })
        .add_observer(|lost: On<TensorLost>, mut log: ResMut<InspectorLog>, time: Option<Res<Time<Real>>>| {
            // The event bubbles. Only the first one is logged.
            if lost.entity == lost.tensor {
                let name = lost.name.as_ref().map_or_else(|| lost.tensor.to_string(), |name| name.to_string());
                let text = format!("the content of {name} was lost with the device ({} bytes)", lost.bytes);
                log.push(now(time), LogKind::Fault, text);
            }
        })
        .add_observer(|event: On<MemoryPressure>, mut log: ResMut<InspectorLog>, time: Option<Res<Time<Real>>>| {
            let per_cent = event.used * 100 / event.budget.max(1);
            log.push(now(time), LogKind::Memory, format!("{per_cent} % of the budget is in use"));
        })
        .add_observer(|advice: On<MemoryAdvice>, mut log: ResMut<InspectorLog>| {
            log.advice = Some(advice.event().clone());
        });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_again_is_counted_and_old_entries_go() {
        let mut log = InspectorLog::default();
        for i in 0..3 {
            log.push(Duration::from_secs(i), LogKind::Note, "a");
        }
        assert_eq!((log.entries.len(), log.entries[0].times, log.entries[0].time.as_secs()), (1, 3, 2));
        for i in 0..KEPT {
            log.push(Duration::ZERO, LogKind::Fault, format!("{i}"));
        }
        assert_eq!((log.entries.len(), log.entries[0].text.as_str()), (KEPT, "0"));
    }
}
