//! Code shared by the CPU twins: threads, typed memory, numbers, SIMD, and fused elementwise work.

mod allocate;
mod call;
pub(crate) mod fused;
pub(crate) mod math;
pub(crate) mod memory;
pub(crate) mod number;
pub(crate) mod packed;
pub(crate) mod rows;
pub(crate) mod scratch;
pub(crate) mod simd;
pub(crate) mod threads;
pub(crate) mod walk;

pub(crate) use allocate::{has_memory_for, zeroed};
pub(crate) use call::{CpuCall, Epilogue, Values};
pub(crate) use packed::HostWords;
pub(crate) use threads::{CpuPool, GRAIN};
