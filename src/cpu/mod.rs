//! The CPU backend: runs plans on threads, calling the CPU twin of each step's kernel.
//!
//! Operands are first turned into typed slices: scratch memory is split and every slot is locked once. Twins only see
//! slices and sizes.

mod executor;
mod run;
mod slot;

pub(crate) use executor::{CpuExecutor, rest_cpu};

use run::{Watch, read_words, run_plan, scratch_words};
use slot::words_of;
