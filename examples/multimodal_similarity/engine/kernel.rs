//! A second implementation of the scores: a custom kernel, compared with the built-in cosine.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

/// The cosine of a query with every row minus the popularity of the row, one thread per row.
const WGSL: &str = "
var<storage, read> query: array<f32>;
var<storage, read> points: array<f32>;
var<storage, read> popularity: array<f32>;
var<storage, read_write> scores: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= arrayLength(&popularity)) { return; }
    let width = arrayLength(&query);
    // Their product, and the squares of both.
    var sums = vec3<f32>();
    for (var i = 0u; i < width; i++) {
        let q = query[i];
        let p = points[id.x * width + i];
        sums += vec3(q * p, q * q, p * p);
    }
    scores[id.x] = sums.x * inverseSqrt(max(sums.y * sums.z, 1e-12)) - popularity[id.x];
}";

/// The kernel.
#[derive(Resource, Clone)]
pub struct ScoreKernel(pub TensorKernel);

pub fn register(mut kernels: ResMut<TensorKernels>, mut commands: Commands) -> Result {
    let kernel = CustomKernel::wgsl("similarity", WGSL)
        .inputs(["query", "points", "popularity"])
        .output("scores", OutputShape::like("popularity"))
        .cpu(|call| {
            let (query, points, popularity) = (call.input::<f32>(0)?, call.input::<f32>(1)?, call.input::<f32>(2)?);
            let rows = points.chunks(query.len()).zip(popularity);
            for (score, (point, popularity)) in call.output::<f32>(0)?.iter_mut().zip(rows) {
                let sums =
                    query.iter().zip(point).fold(Vec3::ZERO, |sums, (&q, &p)| sums + Vec3::new(q * p, q * q, p * p));
                *score = sums.x / (sums.y * sums.z).max(1e-12).sqrt() - popularity;
            }
            Ok(())
        });
    commands.insert_resource(ScoreKernel(kernels.register(kernel)?));
    Ok(())
}
