//! The same plan on threads: one twin per kernel.
//!
//! Operands become typed slices first (scratch is split, slots are locked, each once); twins then see only slices and sizes.

mod attention;
mod block_copy;
mod conv;
mod conv_transpose;
mod cumsum;
mod depthwise;
mod executor;
mod fused;
mod gather;
mod gemm;
mod map;
mod math;
mod matmul;
mod matvec;
mod memory;
mod number;
mod packed;
mod pool;
mod quant_matmul;
mod quantize;
mod reduce;
mod row_norm;
mod run;
mod scatter;
mod scratch;
mod simd;
mod slot;
mod softmax;
mod taps;
mod threads;
mod top_k;
mod walk;

pub(crate) use executor::CpuExecutor;
pub(crate) use packed::HostWords;
pub(crate) use threads::CpuPool;

use run::{Watch, read_words, run_plan};
use slot::words_of;
use threads::GRAIN;
