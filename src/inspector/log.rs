//! What happened that a person would want to know: failures, tensors that moved or were lost, frames that took long.

use core::time::Duration;
use std::collections::VecDeque;

use bevy::prelude::*;

use crate::error::TensorFault;
use crate::memory::{MemoryAdvice, MemoryPressure, TensorLost};

/// Entries kept.
const KEPT: usize = 500;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogKind {
    /// Work failed, or a tensor was lost.
    Fault,
    /// Tensors left the device, or are about to.
    Memory,
    /// A new device took over.
    Recovery,
    /// A frame took long.
    SlowFrame,
    /// Something the inspector was asked to do.
    Note,
}

impl LogKind {
    /// All of them.
    pub const ALL: [LogKind; 5] = [Self::Fault, Self::Memory, Self::Recovery, Self::SlowFrame, Self::Note];

    /// In a word.
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

/// Something that happened, perhaps several times in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEntry {
    /// When it happened last, in the app's real time.
    pub time: Duration,
    /// What kind of thing.
    pub kind: LogKind,
    /// What, in a sentence.
    pub text: String,
    /// How often in a row.
    pub times: u32,
}

/// What happened, oldest first. Failures are kept also while the inspector is closed: that takes no system, only observers.
#[derive(Resource, Clone, Debug, Default)]
pub struct InspectorLog {
    entries: VecDeque<LogEntry>,
    pub(super) advice: Option<MemoryAdvice>,
}

impl InspectorLog {
    /// Adds an entry; the same again is counted.
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
            // It bubbles; once is enough.
            if lost.entity == lost.tensor {
                let name = lost.name.as_ref().map_or_else(|| lost.tensor.to_string(), |name| name.to_string());
                let text = format!("{name} was lost with its device ({} bytes)", lost.bytes);
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
