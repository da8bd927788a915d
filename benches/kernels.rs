//! Every family of ops at three sizes on both backends, in GB/s and GFLOP/s. Run with `cargo bench --bench kernels [--
//! FILTER] [--json FILE]`.

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::Instant;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use common::{BACKENDS, Rig};

type Record = Arc<dyn for<'a> Fn(&'a TensorCommands, &[Entity]) -> OpResult<TensorValue<'a>> + Send + Sync>;

/// One op at one size.
struct Work {
    name: String,
    inputs: Vec<Tensor>,
    record: Record,
    /// Floating-point operations of one run.
    flops: f64,
}

struct Row {
    name: String,
    backend: Backend,
    ms: f64,
    gigabytes: f64,
    gigaflops: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let json = arguments.iter().position(|a| a == "--json").and_then(|i| arguments.get(i + 1));
    let filter = arguments.iter().find(|a| !a.starts_with("--") && Some(*a) != json);
    let mut rows = Vec::new();
    println!("{:<34} {:>7} {:>10} {:>9} {:>9}", "work", "backend", "ms", "GB/s", "GFLOP/s");
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for work in all_work().into_iter().filter(|w| filter.is_none_or(|f| w.name.contains(f.as_str()))) {
            let row = measure(&mut rig, work);
            println!(
                "{:<34} {:>7} {:>10.3} {:>9.2} {:>9.2}",
                row.name,
                row.backend.to_string(),
                row.ms,
                row.gigabytes,
                row.gigaflops
            );
            rows.push(row);
        }
    }
    if let Some(file) = json {
        let list: Vec<serde_json::Value> = rows
            .iter()
            .map(|r| {
                serde_json::json!({ "work": r.name, "backend": r.backend.to_string(), "ms": r.ms, "gb_s": r.gigabytes, "gflop_s": r.gigaflops })
            })
            .collect();
        if let Err(error) = std::fs::write(file, serde_json::to_string_pretty(&list).unwrap_or_default()) {
            eprintln!("{file}: {error}");
        }
    }
}

/// Median time of one run, measured in batches of several.
fn measure(rig: &mut Rig, work: Work) -> Row {
    const REPEATS: usize = 4;
    let bytes_in: usize = work.inputs.iter().map(Tensor::storage_bytes).sum();
    let inputs: Vec<Entity> = work.inputs.into_iter().map(|tensor| rig.spawn(tensor)).collect();
    let (record, entities) = (work.record.clone(), inputs.clone());
    let first = rig.compute(move |ops| record(ops, &entities)).expect("the work records");
    let bytes = bytes_in + first.bytes().len();
    let out = rig.spawn(Tensor::zeros(first.shape(), first.dtype()).expect("it was made before"));
    let corner = rig.spawn(Tensor::zeros([1], DType::F32).expect("small"));
    let mut times = Vec::new();
    for _ in 0..9 {
        let (record, entities) = (work.record.clone(), inputs.clone());
        let start = Instant::now();
        let receiver = rig
            .record(move |ops| {
                for _ in 0..REPEATS {
                    let value = record(ops, &entities)?;
                    ops.store(value, out)?;
                }
                ops.read(corner)
            })
            .expect("the work records");
        rig.wait(&receiver).expect("the work runs");
        times.push(start.elapsed().as_secs_f64() * 1e3 / REPEATS as f64);
    }
    for entity in inputs.into_iter().chain([out, corner]) {
        rig.app.world_mut().despawn(entity);
    }
    times.sort_by(f64::total_cmp);
    let ms = times[times.len() / 2];
    Row {
        name: work.name,
        backend: rig.backend,
        ms,
        gigabytes: bytes as f64 / ms / 1e6,
        gigaflops: work.flops / ms / 1e6,
    }
}

fn random(shape: &[usize]) -> Tensor {
    Tensor::random_uniform(shape, -1.0, 1.0, 7, DType::F32).expect("a sensible size")
}

fn all_work() -> Vec<Work> {
    let mut list = Vec::new();
    let mut add = |name: String, inputs: Vec<Tensor>, flops: f64, record: Record| {
        list.push(Work { name, inputs, record, flops });
    };
    for n in [64, 256, 512] {
        let flops = 2.0 * (n * n * n) as f64;
        add(
            format!("matmul {n}³"),
            vec![random(&[n, n]), random(&[n, n])],
            flops,
            Arc::new(|o, x| o.matmul(x[0], x[1])),
        );
    }
    for n in [256, 1024, 2048] {
        let flops = 2.0 * (n * n) as f64;
        add(
            format!("matvec 1×{n}×{n}"),
            vec![random(&[1, n]), random(&[n, n])],
            flops,
            Arc::new(|o, x| o.matmul(x[0], x[1])),
        );
    }
    for n in [1 << 12, 1 << 16, 1 << 20] {
        let size = n as f64;
        add(format!("add {n}"), vec![random(&[n]), random(&[n])], size, Arc::new(|o, x| o.add(x[0], x[1])));
        add(format!("gelu {n}"), vec![random(&[n])], 10.0 * size, Arc::new(|o, x| o.gelu(x[0])));
        add(
            format!("mul+add+sigmoid {n}"),
            vec![random(&[n]), random(&[n])],
            5.0 * size,
            Arc::new(|o, x| {
                let product = o.mul(x[0], x[1])?;
                let sum = o.add(product, x[1])?;
                o.sigmoid(sum)
            }),
        );
        add(format!("sum all {n}"), vec![random(&[n])], size, Arc::new(|o, x| o.sum(x[0], Axes::ALL)));
        add(format!("cumsum {n}"), vec![random(&[n])], size, Arc::new(|o, x| o.cumsum(x[0], 0)));
    }
    for n in [64, 256, 1024] {
        let size = (n * n) as f64;
        let square = || vec![random(&[n, n])];
        add(format!("sum rows {n}²"), square(), size, Arc::new(|o, x| o.sum(x[0], 1)));
        add(format!("sum columns {n}²"), square(), size, Arc::new(|o, x| o.sum(x[0], 0)));
        add(format!("argmax rows {n}²"), square(), size, Arc::new(|o, x| o.argmax(x[0], 1)));
        add(format!("softmax {n}²"), square(), 5.0 * size, Arc::new(|o, x| o.softmax(x[0], -1)));
        add(
            format!("layer_norm {n}²"),
            square(),
            8.0 * size,
            Arc::new(|o, x| o.layer_norm(x[0], None, None, -1, 1e-5)),
        );
        add(
            format!("transpose {n}²"),
            square(),
            0.0,
            Arc::new(|o, x| {
                let turned = o.transpose(x[0])?;
                o.copy(turned)
            }),
        );
        add(format!("concat {n}²"), square(), 0.0, Arc::new(|o, x| o.concat([x[0], x[0]], 0)));
        add(format!("top_k 8 of {n}²"), square(), size, Arc::new(|o, x| Ok(o.top_k(x[0], 8, -1)?.1)));
        add(
            format!("pairwise_cosine {n}×64"),
            vec![random(&[n, 64])],
            128.0 * size,
            Arc::new(|o, x| o.pairwise_cosine(x[0], x[0])),
        );
        let ids = Tensor::arange(0.0, 1.0, n, DType::I32).expect("small");
        add(format!("embedding {n}×{n}"), vec![random(&[n, n]), ids], 0.0, Arc::new(|o, x| o.embedding(x[0], x[1])));
    }
    for n in [14, 28, 56] {
        let same = ConvSettings { padding: Padding::Same, ..default() };
        let flops = 2.0 * (64 * 64 * 9 * n * n) as f64;
        let (x, w) = (random(&[1, 64, n, n]), random(&[64, 64, 3, 3]));
        add(
            format!("conv2d 64→64 3×3 {n}²"),
            vec![x.clone(), w],
            flops,
            Arc::new(move |o, x| o.conv2d(x[0], x[1], None, same)),
        );
        let depthwise = ConvSettings { groups: 64, ..same };
        add(
            format!("depthwise 64 3×3 {n}²"),
            vec![x.clone(), random(&[64, 1, 3, 3])],
            flops / 64.0,
            Arc::new(move |o, x| o.conv2d(x[0], x[1], None, depthwise)),
        );
        let pool = PoolSettings { size: [2, 2], ..default() };
        add(
            format!("max_pool2d 2×2 {n}²"),
            vec![x.clone()],
            (64 * n * n) as f64,
            Arc::new(move |o, x| o.max_pool2d(x[0], pool)),
        );
        add(
            format!("resize2d_bilinear {n}² → 2×"),
            vec![x],
            (64 * n * n * 8) as f64,
            Arc::new(move |o, x| o.resize2d_bilinear(x[0], [2 * n, 2 * n])),
        );
    }
    for n in [64, 128, 512] {
        let flops = 4.0 * (12 * n * n * 64) as f64;
        let head = || random(&[1, 12, n, 64]);
        add(
            format!("attention 12×{n}×64"),
            vec![head(), head(), head()],
            flops,
            Arc::new(|o, x| o.attention(x[0], x[1], x[2], AttentionSettings::default())),
        );
        add(
            format!("rope 12×{n}×64"),
            vec![head()],
            (12 * n * 64 * 6) as f64,
            Arc::new(|o, x| o.rope(x[0], RopeSettings { position: 3, ..default() })),
        );
    }
    list
}
