//! The two backends.

use bevy::reflect::Reflect;

/// Where tensor work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Reflect)]
pub enum Backend {
    /// Bevy's render device.
    Gpu,
    /// CPU threads.
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
