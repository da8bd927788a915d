//! The command line.

use std::path::PathBuf;

use bevy_tensor_compute::support::Backend;

use crate::measure::Effort;

/// What to compare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Ours with the rivals.
    Rivals,
    /// Fused with unfused plans.
    Fusion,
    /// Ours with itself at other sizes.
    Scaling,
}

/// The parsed arguments.
pub struct Arguments {
    pub json: Option<PathBuf>,
    only: Option<String>,
    pub ours: bool,
    pub backends: Vec<Backend>,
    pub effort: Effort,
    pub mode: Mode,
}

impl Arguments {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self {
            json: None,
            only: None,
            ours: false,
            backends: vec![Backend::Gpu, Backend::Cpu],
            effort: Effort::FULL,
            mode: Mode::Rivals,
        };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} requires a value"));
            match argument.as_str() {
                "--json" => parsed.json = Some(value()?.into()),
                "--only" => parsed.only = Some(value()?),
                "--backend" => {
                    parsed.backends = match value()?.as_str() {
                        "gpu" => vec![Backend::Gpu],
                        "cpu" => vec![Backend::Cpu],
                        other => return Err(format!("--backend must be gpu or cpu, not {other}")),
                    }
                }
                "--ours" => parsed.ours = true,
                "--quick" => parsed.effort = Effort::QUICK,
                "--fusion" => parsed.mode = Mode::Fusion,
                "--scaling" => parsed.mode = Mode::Scaling,
                other => return Err(format!("unknown argument {other}; see the top of benches/peers/src/main.rs")),
            }
        }
        Ok(parsed)
    }

    /// Whether work of this name was requested.
    pub fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|pattern| name.contains(pattern))
    }
}
