//! Custom kernels: any text is registered or refused. Some of those that are registered are compiled and run on the GPU.

use std::collections::HashSet;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use super::{Answer, Target, hash};
use crate::common::Rig;

/// Kernels run on the device per process: compiling costs a thousand times as much as validating.
const RUNS: usize = 2000;

pub const TARGET: Target = Target {
    name: "wgsl",
    corpus: "wgsl",
    weight: 12,
    longest: 4096,
    words: &[
        "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {",
        "var<storage, read> x: array<f32>;",
        "var<storage, read_write> y: array<f32>;",
        "var<workgroup> t: array<f32, 64>;",
        "var<private> p: vec4<f32>;",
        "override n: u32 = 4;",
        "override m: u32 = n * 2;",
        "const c = 3;",
        "struct S { a: f32, b: vec3<u32> }",
        "for (var i = 0u; i < 9u; i++) {",
        "loop { break; }",
        "while (true) {",
        "if (id.x > 3u) {",
        "} else {",
        "}",
        "switch id.x { case 0u: { } default: { } }",
        "return;",
        "let a = 1.0;",
        "var b: i32 = -2147483648;",
        "y[id.x] = x[id.x];",
        "workgroupBarrier();",
        "storageBarrier();",
        "arrayLength(&x)",
        "fn f(a: f32) -> f32 { return a; }",
        "fn main(a: f32, b: f32) -> f32 { return a + b; }",
        "u64(1)",
        "i64(-1)",
        "f64(1.0)",
        "1li",
        "countLeadingZeros(",
        "countOneBits(u64(x))",
        "extractBits(",
        "bitcast<vec2<f32>>(",
        "atomicAdd(&",
        "atomic<u32>",
        "array<array<f32, 4>, 4>",
        "array<f32, 4294967295>",
        "mat4x4<f32>",
        "vec2<bool>",
        "ptr<function, f32>",
        "select(",
        "pow(",
        "modf(",
        "frexp(",
        "ldexp(",
        "pack4x8snorm(",
        "textureLoad(",
        "subgroupAdd(",
        "enable f16;",
        "diagnostic(off, derivative_uniformity);",
        "#import tensor::indexing",
        "#import",
        "#define A",
        "#ifdef A",
        "#endif",
        "0x1p-200",
        "1e400",
        "<<",
        ">>",
        "%",
        "-",
        "&",
        "(",
        ")",
        "[",
        "]",
        ";",
    ],
    guards: true,
    make: || {
        let mut rig = Rig::new(Backend::Gpu);
        let x = rig.spawn(Tensor::from_slice(&[0.5f32, -1.0, 2.0, 3.0, 0.0, 7.0, 8.0, -9.0], [8]).expect("eight"));
        let mut seen = HashSet::new();
        Box::new(move |bytes| {
            // The first byte says what kind of kernel the text is.
            let Some((first, text)) = bytes.split_first() else { return Answer::refused("empty") };
            let Ok(text) = std::str::from_utf8(text) else { return Answer::refused("no text") };
            let inputs = usize::from(first / 2 % 2) + 1;
            let kernel = if first % 2 == 0 {
                CustomKernel::elementwise("fuzzed", text.to_owned())
            } else {
                let names = ["x", "z"].into_iter().take(inputs);
                CustomKernel::wgsl("fuzzed", text.to_owned()).inputs(names).output("y", OutputShape::like("x"))
            };
            let registered = rig.app.world_mut().resource_mut::<TensorKernels>().register(kernel);
            let kernel = match registered {
                Ok(kernel) => kernel,
                Err(error) => return Answer::refused(error),
            };
            // The same text with other spaces is not worth a run.
            let words: Vec<&str> = text.split_whitespace().collect();
            let kind = hash((first % 4, &words));
            if seen.len() < RUNS && seen.insert(kind) {
                run(&mut rig, &kernel, x, inputs);
            }
            Answer::accepted((first % 4, text.len() / 16, words.len() / 4))
        })
    },
};

/// Runs a kernel on the device and waits for its answer, of whichever kind.
fn run(rig: &mut Rig, kernel: &TensorKernel, x: Entity, inputs: usize) {
    let kernel = kernel.clone();
    let receiver = rig.record(move |ops| {
        let y = match inputs {
            1 => ops.custom(&kernel, [x], &())?,
            _ => ops.custom(&kernel, [x, x], &())?,
        };
        ops.read(y)
    });
    if let Ok(receiver) = receiver {
        let _ = rig.wait(&receiver);
    }
    rig.app.world_mut().resource_mut::<crate::common::Faults>().0.clear();
}
