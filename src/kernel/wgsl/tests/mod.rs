//! Tests of the WGSL texts, one file per family of kernels.
//!
//! `catalogue` lists every text and `texts` checks them. `forms` and `fused` check that all variants of a kernel agree.
//! The others compare kernels on the device with plain host loops at awkward sizes. `device` runs single steps, and
//! `loops` runs a step in every variant.

mod attention;
mod catalogue;
mod device;
mod forms;
mod fused;
mod gather_scatter;
mod lines;
mod loops;
mod map;
mod matmul;
mod quant;
mod rows;
mod texts;
mod windows;
