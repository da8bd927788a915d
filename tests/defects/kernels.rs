//! Custom kernels: what they need is counted, and their loops end.

use bevy::prelude::*;
use bevy_tensor_compute::error::{KernelError, ReadError, RunError};
use bevy_tensor_compute::prelude::*;

use crate::common::Rig;

/// A kernel of one input and one output of the same shape.
fn kernel(name: &'static str, body: &str) -> CustomKernel {
    let text = format!(
        "var<storage, read> x: array<u32>;
         var<storage, read_write> y: array<u32>;
         @compute @workgroup_size(8)
         fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
             let n = x[min(id.x, arrayLength(&x) - 1u)];
             var sum = 0u;
             {body}
             if (id.x < arrayLength(&y)) {{ y[id.x] = sum; }}
         }}"
    );
    CustomKernel::wgsl(name, text).inputs(["x"]).output("y", OutputShape::like("x"))
}

fn run(rig: &mut Rig, kernel: CustomKernel, x: &[u32]) -> Result<Vec<u32>, ReadError> {
    let kernel = rig.app.register_kernel(kernel).expect("a valid kernel");
    let x = rig.spawn(Tensor::from_slice(x, [x.len()]).unwrap());
    let receiver = rig.record(move |ops| ops.read(ops.custom(&kernel, [x], &())?)).unwrap();
    let answer = rig.wait(&receiver);
    rig.settle();
    answer.map(|data| data.as_slice::<u32>().unwrap().to_vec())
}

/// The kernels whose loops were ended.
fn ended(rig: &Rig) -> Vec<String> {
    let name = |fault: TensorFault| match fault {
        TensorFault::Run(RunError::LoopBound { kernel, .. }) => kernel,
        other => panic!("{other}"),
    };
    rig.faults().into_iter().map(name).collect()
}

// 11
#[test]
fn workgroup_arrays_sized_by_overrides_of_overrides_are_counted() {
    let mut rig = Rig::new(Backend::Gpu);
    let text = |rows: u32| {
        format!(
            "override rows: u32 = {rows}u;
             override words: u32 = rows * 1024u;
             override all: u32 = words * 2u;
             var<workgroup> tile: array<u32, all>;
             var<storage, read_write> y: array<u32>;
             @compute @workgroup_size(1)
             fn main() {{ tile[0] = 3u; y[0] = tile[0]; }}"
        )
    };
    let kernel = |name, rows| CustomKernel::wgsl(name, text(rows)).output("y", OutputShape::fixed([1]));
    match rig.app.register_kernel(kernel("large", 100)) {
        Err(KernelError::Limit { what, requested, .. }) => {
            assert_eq!((what, requested), ("bytes of workgroup memory:", 100 * 1024 * 2 * 4));
        }
        other => panic!("{other:?}"),
    }
    let small = rig.app.register_kernel(kernel("small", 1)).unwrap();
    assert_eq!(rig.compute(move |ops| ops.custom(&small, (), &())).unwrap().to_f32(), [3.0]);
}

// 11
#[test]
fn an_endless_loop_is_ended_and_reported_by_the_name_of_its_kernel() {
    let endless = [
        ("endless loop", "loop { sum += 1u; if (sum == 0u && n == 5u) { break; } }"),
        ("endless while", "while (n < 10u) { sum = sum * 3u + 1u; }"),
        ("endless for", "for (var i = 0u; ; i = i % 7u) { sum += i; if (sum % 2u == 0u) { continue; } sum += 2u; }"),
        ("endless nested", "loop { for (var i = 0u; i < 10u; i++) { sum ^= i; } }"),
        ("endless switch", "loop { switch (sum % 3u) { case 0u: { sum += 1u; continue; } default: { sum += 2u; } } }"),
        ("endless break if", "loop { sum += 1u; continuing { break if n == 77u; } }"),
        ("endless barriers", "loop { workgroupBarrier(); if (workgroupUniformLoad(&turn) == 9u) { break; } }"),
    ];
    for (name, body) in endless {
        let mut rig = Rig::new(Backend::Gpu);
        let kernel = kernel(name, body);
        let kernel = match name {
            // Barriers take long, so its bound is low.
            "endless barriers" => {
                let text = "var<workgroup> turn: u32;
                    var<storage, read> x: array<u32>;
                    var<storage, read_write> y: array<u32>;
                    @compute @workgroup_size(8)
                    fn main(@builtin(local_invocation_index) lane: u32) {
                        loop { workgroupBarrier(); if (workgroupUniformLoad(&turn) == 9u) { break; } }
                        if (lane < arrayLength(&y)) { y[lane] = x[lane]; }
                    }";
                let kernel = CustomKernel::wgsl(name, text).inputs(["x"]).output("y", OutputShape::like("x"));
                kernel.loop_bound(5000)
            }
            _ => kernel,
        };
        let values = run(&mut rig, kernel, &[1, 2, 3, 4]);
        assert!(values.is_ok(), "{name}: {values:?}");
        assert_eq!(ended(&rig), [name]);
        // The device works on.
        let x = rig.spawn(Tensor::from_slice(&[1.0f32], [1]).unwrap());
        assert_eq!(rig.compute(move |ops| ops.add(x, 1.0)).unwrap().to_f32(), [2.0]);
    }
}

// 11
#[test]
fn an_endless_loop_in_many_threads_ends_soon() {
    let mut rig = Rig::new(Backend::Gpu);
    let values =
        run(&mut rig, kernel("everywhere", "loop { sum += n; if (sum == 1u) { sum += 2u; } }"), &vec![2; 100_000]);
    assert_eq!((values.unwrap().len(), ended(&rig)), (100_000, vec!["everywhere".to_owned()]));
}

// 11
#[test]
fn loops_of_a_hundred_thousand_turns_are_right() {
    let mut rig = Rig::new(Backend::Gpu);
    // Wrapping sums of what the same loops do here.
    let plain = |n: u32| (0..n).fold(0u32, |sum, i| sum.wrapping_mul(3).wrapping_add(i));
    let with_continue = |n: u32| {
        let mut sum = 0u32;
        for i in 0..n {
            if i % 7 == 0 {
                continue;
            }
            match i % 4 {
                1 if i % 5 == 0 => continue,
                1 => sum = sum.wrapping_add(5),
                2 => sum ^= i,
                _ => {}
            }
            sum = sum.wrapping_mul(5).wrapping_add(i);
            if sum == 12345 {
                break;
            }
        }
        sum
    };
    let collatz = |n: u32| {
        let (mut sum, mut i) = (0u32, 0u32);
        while i < n {
            sum = if sum % 2 == 0 { sum / 2 + i } else { sum.wrapping_mul(3).wrapping_add(1) };
            i += 1;
        }
        sum
    };
    let nested =
        |n: u32| (0..n / 100).fold(0u32, |sum, j| (0..100).fold(sum, |sum, i| sum.wrapping_mul(3).wrapping_add(i ^ j)));
    type Expected<'a> = &'a dyn Fn(u32) -> u32;
    let cases: [(&'static str, &str, Expected); 4] = [
        ("plain", "for (var i = 0u; i < n; i++) { sum = sum * 3u + i; }", &plain),
        (
            "with continue",
            "for (var i = 0u; i < n; i++) {
                 if (i % 7u == 0u) { continue; }
                 switch (i % 4u) {
                     case 1u: { if (i % 5u == 0u) { continue; } sum += 5u; }
                     case 2u: { sum ^= i; }
                     default: {}
                 }
                 sum = sum * 5u + i;
                 if (sum == 12345u) { break; }
             }",
            &with_continue,
        ),
        (
            "while",
            "var i = 0u;
             while (i < n) {
                 if (sum % 2u == 0u) { sum = sum / 2u + i; } else { sum = sum * 3u + 1u; }
                 i++;
             }",
            &collatz,
        ),
        (
            "nested",
            "for (var j = 0u; j < n / 100u; j++) { for (var i = 0u; i < 100u; i++) { sum = sum * 3u + (i ^ j); } }",
            &nested,
        ),
    ];
    let x = [100_000, 99_999, 65_535, 65_536, 1, 0, 63, 64, 65];
    for (name, body, expected) in cases {
        let values = run(&mut rig, kernel(name, body), &x).unwrap();
        assert_eq!(values, x.map(expected), "{name}: {:?}", rig.faults());
    }
    assert_eq!(rig.faults(), []);
}

// 11
#[test]
fn elementwise_kernels_with_loops_are_bounded_too() {
    let mut rig = Rig::new(Backend::Gpu);
    let function = |name: &'static str, text: &'static str| CustomKernel::elementwise(name, text);
    let count =
        "fn count(n: u32) -> u32 { var sum = 0u; for (var i = 0u; i < n; i++) { sum = sum * 3u + i; } return sum; }";
    let forever = "fn forever(n: u32) -> u32 { var sum = n; loop { sum += 1u; if (n == 77u) { break; } } return sum; }";
    let count = rig.app.register_kernel(function("count", count)).unwrap();
    let forever = rig.app.register_kernel(function("forever", forever)).unwrap();
    let x = [100_000u32, 3, 70_000, 0, 99_999];
    let tensor = rig.spawn(Tensor::from_slice(&x, [5]).unwrap());
    let data = rig.compute(move |ops| ops.add(ops.custom(&count, [tensor], &())?, 1u32)).unwrap();
    let expected = x.map(|n| (0..n).fold(0u32, |sum, i| sum.wrapping_mul(3).wrapping_add(i)).wrapping_add(1));
    assert_eq!(data.as_slice::<u32>().unwrap(), expected);
    assert_eq!(rig.faults(), []);
    rig.compute(move |ops| ops.custom(&forever, [tensor], &())).unwrap();
    rig.settle();
    assert_eq!(ended(&rig), ["forever"]);
}

// 11
#[test]
fn the_bound_of_loops_can_be_set() {
    let mut rig = Rig::new(Backend::Gpu);
    // The check that ends a loop counts as an iteration.
    let body = "for (var i = 0u; i < n; i++) { sum += 1u; }";
    let values = run(&mut rig, kernel("enough", body).loop_bound(1000), &[999, 998]).unwrap();
    assert_eq!((values, rig.faults().len()), (vec![999, 998], 0));
    run(&mut rig, kernel("too few", body).loop_bound(1000), &[1001, 5]).unwrap();
    match &rig.faults()[..] {
        [TensorFault::Run(error @ RunError::LoopBound { turns: 1000, .. })] => {
            assert_eq!(error.to_string(), "kernel too few: a thread was ended after 1000 loop iterations");
        }
        other => panic!("{other:?}"),
    }
}
