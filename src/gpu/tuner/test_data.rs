//! The memory that a trial runs on, and the comparison of results.

use std::sync::Arc;

use crate::error::RunError;
use crate::gpu::buffers::{DeviceBuffer, Purpose};
use crate::gpu::device::Gpu;
use crate::ir::{DType, Source};
use crate::kernel::Step;

/// Maximum size of the memory of a trial, in bytes.
const MAX_BYTES: usize = 256 << 20;

/// Replaces one source of the step with test data.
pub(super) struct TestMemory {
    pub source: Source,
    pub dtype: DType,
    /// Whether the step writes it.
    pub written: bool,
    pub words: Vec<u32>,
    pub buffer: Arc<DeviceBuffer>,
}

impl TestMemory {
    /// Allocates and fills the memory of a step.
    pub(super) fn of(step: &Step, gpu: &Gpu) -> Result<Vec<Self>, RunError> {
        let mut all: Vec<Self> = Vec::new();
        let mut bytes = 0;
        let (outputs, reads) = (step.outputs.iter().map(|operand| (operand, true)), step.reads());
        for (operand, written) in outputs.chain(reads.map(|operand| (operand, false))) {
            let words = operand.dtype.words(operand.layout.span().end).next_multiple_of(4).max(4);
            match all.iter_mut().find(|memory| memory.source == operand.source) {
                Some(memory) if memory.words.len() >= words => {}
                Some(memory) => memory.words = noise(operand.dtype, words),
                None => {
                    bytes += words * 4;
                    if bytes > MAX_BYTES {
                        let (requested, available) = (bytes as u64, MAX_BYTES as u64);
                        return Err(RunError::Limit { what: "tuning".to_owned(), requested, available });
                    }
                    let buffer = gpu.allocate(Purpose::Tensor, words)?;
                    let (source, dtype) = (operand.source, operand.dtype);
                    all.push(Self { source, dtype, written, words: noise(dtype, words), buffer });
                }
            }
        }
        for memory in &mut all {
            if memory.buffer.bytes < memory.words.len() as u64 * 4 {
                memory.buffer = gpu.allocate(Purpose::Tensor, memory.words.len())?;
            }
            memory.reset(gpu);
        }
        Ok(all)
    }

    /// Writes the test data to the device again.
    pub(super) fn reset(&self, gpu: &Gpu) {
        gpu.write(&self.buffer.buffer, 0, &self.words);
    }
}

/// Pseudorandom words, the same in every run: numbers between -1 and 1 for float types, arbitrary bits for others.
fn noise(dtype: DType, words: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let unit = |bits: u32| (bits >> 8) as f32 / 8_388_608.0 - 1.0;
    let half = |bits: u32| u32::from(half::f16::from_f32(unit(bits)).to_bits());
    (0..words)
        .map(|_| match dtype {
            DType::F32 => unit(next()).to_bits(),
            DType::F16 => half(next()) | half(next()) << 16,
            _ => next(),
        })
        .collect()
}

/// Whether two results are equal, except for rounding differences from another order of additions.
pub(super) fn agree(memories: impl Iterator<Item = (DType, usize)>, a: &[u32], b: &[u32]) -> bool {
    let near = |a: f32, b: f32, tolerance: f32| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * a.abs().max(1.0)
    };
    let half = |word: u32| half::f16::from_bits(word as u16).to_f32();
    let mut at = 0;
    for (dtype, words) in memories {
        let pairs = a[at..at + words].iter().zip(&b[at..at + words]);
        at += words;
        let same = pairs.into_iter().all(|(&a, &b)| match dtype {
            DType::F32 => near(f32::from_bits(a), f32::from_bits(b), 1e-3),
            DType::F16 => near(half(a), half(b), 1e-2) && near(half(a >> 16), half(b >> 16), 1e-2),
            _ => a == b,
        });
        if !same {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_agree_up_to_rounding_and_not_beyond() {
        let words = |values: [f32; 2]| values.map(f32::to_bits);
        let f32s = || [(DType::F32, 2)].into_iter();
        assert!(agree(f32s(), &words([1.0, f32::NAN]), &words([1.0001, f32::NAN])));
        assert!(!agree(f32s(), &words([1.0, 0.0]), &words([1.01, 0.0])));
        assert!(!agree([(DType::I32, 2)].into_iter(), &[1, 2], &[1, 3]));
        assert!(noise(DType::F32, 1000).iter().all(|&word| f32::from_bits(word).abs() <= 1.0));
    }
}
