//! Matrix products.

use bevy_tensor_compute::tensor::DType;

use super::Compute;
use crate::array::Array;
use crate::cpu_rivals::GemmSize;
use crate::ort::OnnxGraph;

pub fn all() -> Vec<Compute> {
    let mut list: Vec<Compute> =
        [64, 128, 256, 512, 1024].into_iter().map(|n| matrix(format!("matmul {n}"), n, n, n)).collect();
    list.push(matrix("matvec 1×1024×1024", 1, 1024, 1024));
    list.push(matrix("matmul 32×768×3072", 32, 768, 3072));
    // The products of the encoder: projections and both feed-forward layers.
    for tokens in [16, 128] {
        for (k, n) in [(384, 384), (384, 1536), (1536, 384)] {
            list.push(matrix(format!("matmul {tokens}×{k}×{n}"), tokens, k, n));
        }
    }
    list.push(batched(12, 128, 64, 128));
    for (name, dtype) in [("q8", DType::Q8_0), ("q4", DType::Q4_0)] {
        for n in [64, 128, 256, 512, 1024] {
            list.push(quantized(format!("{name} matmul {n}"), dtype, n, n, n));
        }
        list.push(quantized(format!("{name} matvec 1×1024×1024"), dtype, 1, 1024, 1024));
        for (m, k, n) in [(32, 768, 3072), (16, 384, 1536), (128, 384, 1536)] {
            list.push(quantized(format!("{name} matmul {m}×{k}×{n}"), dtype, m, k, n));
        }
    }
    list
}

/// `[m, k] · [n, k]ᵀ` with a quantised right-hand side. Rivals get the same numbers as floats.
fn quantized(name: String, dtype: DType, m: usize, k: usize, n: usize) -> Compute {
    let inputs = vec![Array::uniform(1, 1.0, &[m, k]), Array::quantized(2, 1.0, &[n, k], dtype)];
    Compute::new(name, inputs, |ops, x| ops.matmul_nt(x[0], x[1]))
        .burn(|x| x[0].two().matmul(x[1].two().transpose()).into())
        .candle(|x| x[0].matmul(&x[1].t()?))
        .tolerance(1e-3, 1e-3)
        .flops(2 * m * k * n)
}

/// `[m, k] · [k, n]`.
fn matrix(name: impl Into<String>, m: usize, k: usize, n: usize) -> Compute {
    let inputs = vec![Array::uniform(1, 1.0, &[m, k]), Array::uniform(2, 1.0, &[k, n])];
    finish(Compute::new(name, inputs, |ops, x| ops.matmul(x[0], x[1])), GemmSize { batch: 1, m, k, n })
        .burn(|x| x[0].two().matmul(x[1].two()).into())
}

/// `[batch, m, k] · [batch, k, n]`.
fn batched(batch: usize, m: usize, k: usize, n: usize) -> Compute {
    let inputs = vec![Array::uniform(1, 1.0, &[batch, m, k]), Array::uniform(2, 1.0, &[batch, k, n])];
    let name = format!("batched matmul {batch}×{m}×{k}×{n}");
    finish(Compute::new(name, inputs, |ops, x| ops.matmul(x[0], x[1])), GemmSize { batch, m, k, n })
        .burn(|x| x[0].three().matmul(x[1].three()).into())
}

/// What all products have in common.
fn finish(work: Compute, size: GemmSize) -> Compute {
    let GemmSize { batch, m, k, n } = size;
    work.gemm(size)
        .candle(|x| x[0].matmul(&x[1]))
        .onnx(OnnxGraph::of("MatMul", &["x0", "x1"]))
        .tolerance(1e-4, 1e-4)
        .flops(2 * batch * m * k * n)
}
