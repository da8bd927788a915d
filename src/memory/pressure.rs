//! Telling the app, before it hurts, that the budget is nearly spent.

use bevy::prelude::*;

/// How much of the budget is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Reflect)]
pub enum PressureLevel {
    /// Below the first mark.
    #[default]
    Normal,
    /// From the first mark on, 80 % unless set otherwise.
    High,
    /// From the second mark on, 90 % unless set otherwise.
    Critical,
}

/// The bytes in use on the device have risen past a mark of the budget. Comes once for each rise: it comes again after they have fallen
/// below the mark. Idle memory of the pool does not count.
#[derive(Event, Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPressure {
    /// The mark that was passed.
    pub level: PressureLevel,
    /// Bytes of tensors, scratch memory and plans on the device.
    pub used: u64,
    /// The budget.
    pub budget: u64,
}

/// Remembers the level, so that a rise is told once.
#[derive(Debug, Default)]
pub(crate) struct Gauge(PressureLevel);

impl Gauge {
    /// What to tell, if anything; `marks` in per cent.
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
