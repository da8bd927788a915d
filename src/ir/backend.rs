//! The two backends.

use bevy::reflect::Reflect;

/// What carries out plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Reflect)]
pub enum Backend {
    /// Bevy's own render device.
    Gpu,
    /// Threads.
    Cpu,
}

impl core::fmt::Display for Backend {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
        })
    }
}
