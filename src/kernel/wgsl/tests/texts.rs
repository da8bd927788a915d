//! Every text parses, validates and only has barriers in uniform control flow.

use super::super::{grid, lower};
use super::device::{operand, step};
use crate::ir::{Class, DType, InnerOp, Operand, ReduceKind, Source};
use crate::kernel::{Access, Caps, Kernel, Launch, MatMulKernel, ReduceKernel, SoftmaxKernel, Step, uniformity};

/// Fails if the text of a launch is invalid.
pub(super) fn check(launch: &Launch) {
    check_text(launch.name, &launch.wgsl);
}

/// Fails if the text is not valid.
pub(super) fn check_text(name: &str, wgsl: &str) {
    let module =
        naga::front::wgsl::parse_str(wgsl).unwrap_or_else(|e| panic!("{name}: {}\n{wgsl}", e.emit_to_string(wgsl)));
    use naga::valid::Capabilities;
    // Packing f16 is core WebGPU. Naga makes it a capability only because of old OpenGL versions.
    let capabilities = Capabilities::default()
        | Capabilities::SUBGROUP
        | Capabilities::SHADER_INT64
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    validator
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    validator.validate(&module).unwrap_or_else(|e| panic!("{name}: {}\n{wgsl}", e.emit_to_string(wgsl)));
    for entry in &module.entry_points {
        uniformity::check(&module, entry).unwrap_or_else(|e| panic!("{name}: {e}\n{wgsl}"));
    }
}

/// Devices from capable to minimal.
fn devices() -> Vec<Caps> {
    let rich = Caps {
        subgroup: Some(32),
        software: false,
        wide: false,
        halves: true,
        invocations: 1024,
        workgroup_memory: 32768,
        workgroups: 65535,
        variant: None,
    };
    vec![
        rich,
        Caps { subgroup: None, ..rich },
        Caps { subgroup: Some(8), software: true, wide: true, ..rich },
        Caps { subgroup: None, software: true, ..rich },
        Caps { subgroup: None, invocations: 64, workgroup_memory: 1024, ..rich },
    ]
}

/// Checks the launches of `step` on every device.
fn check_all(step: &Step) {
    for caps in devices() {
        let launch = lower(step, &caps).expect("there is work");
        assert_eq!(launch.params.len() % 4, 0);
        assert!(launch.workgroups.iter().all(|&n| n > 0 && n <= caps.workgroups), "{:?}", launch.workgroups);
        check(&launch);
    }
}

#[test]
fn texts_of_row_kernels_and_products_are_valid_for_every_dtype() {
    for dtype in DType::ALL {
        let class = dtype.class();
        let wide = class.dtype();
        for [outer, n, inner] in [[3, 10, 1], [3, 100, 2], [2000, 100, 1]] {
            let x = operand(0, dtype, &[outer, n, inner], 4);
            let kinds = [
                (ReduceKind::Sum, wide),
                (ReduceKind::Max, wide),
                (ReduceKind::Prod, wide),
                (ReduceKind::SumSquares, wide),
                (ReduceKind::ArgMax { last: true }, DType::I32),
                (ReduceKind::ArgMin { last: false }, DType::I32),
            ];
            for (kind, result) in kinds {
                let kernel = Kernel::Reduce(ReduceKernel { kind, class, outer, n, inner });
                check_all(&step(kernel, vec![x.clone()], vec![operand(1, result, &[outer, inner], 0)], &[]));
            }
            if dtype.is_float() {
                for log in [false, true] {
                    let kernel = Kernel::Softmax(SoftmaxKernel { log, outer, n, inner });
                    check_all(&step(kernel, vec![x.clone()], vec![operand(1, wide, &[outer, n, inner], 0)], &[]));
                }
            }
        }
        for (m, k, n) in [(1, 9, 100), (100, 9, 3), (40, 9, 40)] {
            let kernel = MatMulKernel { inner: InnerOp::Product, class, batch: [2, 3].as_slice().into(), m, n, k };
            let (a, b) = (operand(0, dtype, &[2, 3, m, k], 1), operand(1, dtype, &[2, 3, k, n], 0));
            check_all(&step(Kernel::MatMul(kernel), vec![a, b], vec![operand(2, wide, &[2, 3, m, n], 0)], &[]));
        }
    }
}

#[test]
fn a_source_that_occurs_twice_is_bound_once_and_scratch_is_writable() {
    let kernel =
        MatMulKernel { inner: InnerOp::Product, class: Class::Float, batch: [].as_slice().into(), m: 8, n: 8, k: 8 };
    let mut operands = vec![operand(0, DType::F32, &[8, 8], 0), operand(0, DType::F16, &[8, 8], 0)];
    let output = Operand { source: Source::Scratch(4), ..operand(0, DType::F32, &[8, 8], 0) };
    let twice = step(Kernel::MatMul(kernel.clone()), operands.clone(), vec![output.clone()], &[]);
    let launch = lower(&twice, &devices()[0]).expect("there is work");
    let bound: Vec<_> = launch.bindings.iter().map(|b| (b.source, b.access)).collect();
    assert_eq!(bound, [(Source::Slot(0), Access::Read), (Source::Scratch(4), Access::ReadWrite)]);
    check_all(&twice);
    operands[1].source = Source::Scratch(1);
    let launch = lower(&step(Kernel::MatMul(kernel), operands, vec![output], &[]), &devices()[0]);
    assert_eq!(launch.expect("there is work").bindings[1].access, Access::ReadWrite);
}

#[test]
fn shapes_share_a_text_and_grids_fold() {
    let caps = devices()[0];
    let text = |n: usize| {
        let kernel = ReduceKernel { kind: ReduceKind::Sum, class: Class::Float, outer: n, n: 100 + n, inner: 1 };
        let (x, y) = (operand(0, DType::F32, &[n, 100 + n], n), operand(1, DType::F32, &[n], 0));
        lower(&step(Kernel::Reduce(kernel), vec![x], vec![y], &[]), &caps).expect("there is work").wgsl
    };
    assert_eq!(text(3), text(77));
    for n in [1, 65535, 65536, 1_000_000, 16_777_216] {
        let [x, y, z] = grid(n, &caps);
        assert!(x <= 65535 && y <= 65535 && z == 1 && (x as usize * y as usize) >= n, "{n}: {x} {y}");
    }
}
