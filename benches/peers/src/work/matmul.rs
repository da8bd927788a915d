//! Matrix products.

use super::Compute;
use crate::array::Array;
use crate::cpu_rivals::GemmSize;
use crate::ort::OnnxGraph;

pub fn all() -> Vec<Compute> {
    let mut list: Vec<Compute> =
        [64, 128, 256, 512, 1024].into_iter().map(|n| matrix(format!("matmul {n}"), n, n, n)).collect();
    list.push(matrix("matvec 1×1024×1024", 1, 1024, 1024));
    list.push(matrix("matmul 32×768×3072", 32, 768, 3072));
    // The products of the encoder: projections, and the two of the feed-forward part.
    for tokens in [16, 128] {
        for (k, n) in [(384, 384), (384, 1536), (1536, 384)] {
            list.push(matrix(format!("matmul {tokens}×{k}×{n}"), tokens, k, n));
        }
    }
    list.push(batched(12, 128, 64, 128));
    list
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
