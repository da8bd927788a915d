//! The same plan on threads: every step runs the CPU twin that its kernel names.
//!
//! Operands become typed slices first (scratch is split, slots are locked, each once); twins then see only slices and sizes.

mod executor;
mod run;
mod slot;

pub(crate) use executor::CpuExecutor;

use run::{Watch, read_words, run_plan};
use slot::words_of;
