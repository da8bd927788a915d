//! Memory pressure events.

use bevy::prelude::*;

/// How much of the budget is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Reflect)]
pub enum PressureLevel {
    /// Below the first threshold.
    #[default]
    Normal,
    /// At or above the first threshold. 80 % by default.
    High,
    /// At or above the second threshold. 90 % by default.
    Critical,
}

/// Triggered when the bytes in use on the device rise to a threshold of the budget
/// ([`MemorySettings::pressure`](crate::memory::MemorySettings::pressure)). It is triggered once per rise, and again
/// only after the use has fallen below the threshold. Idle buffers do not count. Never triggered without a budget.
#[derive(Event, Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPressure {
    /// The threshold that was reached.
    pub level: PressureLevel,
    /// Bytes of tensors, scratch memory and plans on the device.
    pub used: u64,
    /// The budget.
    pub budget: u64,
}

/// Remembers the level, so that each rise triggers one event.
#[derive(Debug, Default)]
pub(crate) struct Gauge(PressureLevel);

impl Gauge {
    /// Returns an event if the level rose. `marks` are the thresholds in percent.
    pub(crate) fn update(&mut self, used: u64, budget: Option<u64>, marks: [u8; 2]) -> Option<MemoryPressure> {
        let budget = budget?;
        let at = |mark: u8| u128::from(used) * 100 >= u128::from(budget) * u128::from(mark);
        let level = match marks {
            [_, critical] if at(critical) => PressureLevel::Critical,
            [high, _] if at(high) => PressureLevel::High,
            _ => PressureLevel::Normal,
        };
        let rise = level > self.0;
        self.0 = level;
        rise.then_some(MemoryPressure { level, used, budget })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rise_is_told_once() {
        let mut gauge = Gauge::default();
        let mut told = |used| gauge.update(used, Some(1000), [80, 90]).map(|pressure| pressure.level);
        let levels = [0, 799, 800, 850, 899, 900, 1000, 850, 950, 100, 950].map(&mut told);
        use PressureLevel::{Critical, High};
        let expected =
            [None, None, Some(High), None, None, Some(Critical), None, None, Some(Critical), None, Some(Critical)];
        assert_eq!(levels, expected);
        assert_eq!(gauge.update(5, None, [80, 90]), None);
    }
}
