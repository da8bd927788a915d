//! All variants of a kernel give the same result as the default, with and without runtime checks.

use smallvec::smallvec;

use super::super::lower;
use super::device::{assert_close, caps, floats, noise, operand, run_step_with, step, words};
use crate::ir::{Class, DType, Expr, InnerOp, Primitive, Program, ReduceKind, Reg, Shape, Source, Window};
use crate::kernel::{
    Caps, ConvKernel, Kernel, MapKernel, MatMulKernel, ReduceKernel, SoftmaxKernel, Step, Variant, variants,
};

/// Runs all variants of any device that the test device can emulate.
fn check(step: &Step, inputs: &[Vec<f32>], out: usize) {
    let slots = inputs.len() as u32;
    let mut buffers: Vec<(Source, Vec<u32>)> =
        (0u32..).zip(inputs).map(|(slot, values)| (Source::Slot(slot), words(values))).collect();
    buffers.push((Source::Slot(slots), vec![0x7f80_0001; out]));
    let result = |caps: &Caps| floats(&run_step_with(step, &buffers, &[], caps).0[slots as usize].1);
    let expected = result(&caps());
    let mut seen = 0;
    for software in [true, false] {
        let device = Caps { software, ..caps() };
        for variant in variants(step, &device) {
            let forced = Caps { variant: Some(variant), ..device };
            // Tuned choices are stored by name.
            assert_eq!(Variant::named(&variant.to_string()), Some(variant));
            assert_eq!(lower(step, &forced).and_then(|launch| launch.variant), Some(variant));
            let got = result(&forced);
            assert_close(&got, &expected, 1e-4, &format!("{variant} of {:?}", step.kernel));
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen} forms of {:?}", step.kernel);
}

fn f32s(slot: u32, shape: &[usize]) -> crate::ir::Operand {
    operand(slot, DType::F32, shape, 0)
}

#[test]
fn forms_of_products_agree() {
    for (m, n, k) in [(67, 130, 35), (1, 70, 65), (130, 3, 20), (70, 100, 600)] {
        let inner = InnerOp::Product;
        let kernel = MatMulKernel { inner, class: Class::Float, batch: smallvec![], m, n, k };
        let operands = vec![f32s(0, &[m, k]), f32s(1, &[k, n])];
        let step = step(Kernel::MatMul(kernel), operands, vec![f32s(2, &[m, n])], &[]);
        check(&step, &[noise(m * k, 1), noise(k * n, 2)], m * n);
    }
}

#[test]
fn forms_of_reductions_agree() {
    for (outer, n, inner) in [(5, 1757, 1), (2, 67, 260), (3, 200, 5)] {
        let kernel = ReduceKernel { kind: ReduceKind::Sum, class: Class::Float, outer, n, inner };
        let input = vec![f32s(0, &[outer, n, inner])];
        let step = step(Kernel::Reduce(kernel), input, vec![f32s(1, &[outer, inner])], &[]);
        check(&step, &[noise(outer * n * inner, 3)], outer * inner);
    }
}

#[test]
fn forms_of_softmax_agree() {
    for (outer, n, inner) in [(5, 1757, 1), (70, 63, 1), (3, 65, 4)] {
        let shape = [outer, n, inner];
        let kernel = SoftmaxKernel { log: false, outer, n, inner };
        let step = step(Kernel::Softmax(kernel), vec![f32s(0, &shape)], vec![f32s(1, &shape)], &[]);
        check(&step, &[noise(outer * n * inner, 4)], outer * n * inner);
    }
}

#[test]
fn forms_of_convolutions_agree() {
    let window = Window { size: [1, 3, 3], stride: [1; 3], dilation: [1; 3], before: [0, 1, 1], after: [0, 1, 1] };
    let (input, output) = ([1, 9, 11], [1, 9, 11]);
    let kernel =
        ConvKernel { window, groups: 1, bias: false, batch: 1, channels_in: 5, channels_out: 18, input, output };
    let operands = vec![f32s(0, &[1, 5, 1, 9, 11]), f32s(1, &[18, 5, 1, 3, 3])];
    let step = step(Kernel::Conv(kernel), operands, vec![f32s(2, &[1, 18, 1, 9, 11])], &[]);
    check(&step, &[noise(5 * 99, 5), noise(18 * 45, 6)], 18 * 99);
}

#[test]
fn forms_of_maps_agree() {
    for count in [1756, 1757] {
        let program = Program {
            exprs: vec![Expr::Input(0, Class::Float), Expr::Unary(Primitive::Tanh, Reg(0))],
            functions: Vec::new(),
            outputs: vec![Reg(1)],
        };
        let kernel = MapKernel { shape: Shape::from([count]), program, dynamic_out: None };
        let step = step(Kernel::Map(kernel), vec![f32s(0, &[count])], vec![f32s(1, &[count])], &[]);
        check(&step, &[noise(count, 7)], count);
    }
}

#[test]
fn halves_read_as_such_are_those_taken_out_of_words() {
    let (m, n, k) = (68, 72, 36);
    let inner = InnerOp::Product;
    let kernel = MatMulKernel { inner, class: Class::Float, batch: smallvec![], m, n, k };
    let operands = vec![operand(0, DType::F16, &[m, k], 0), operand(1, DType::F16, &[k, n], 0)];
    let step = step(Kernel::MatMul(kernel), operands, vec![f32s(2, &[m, n])], &[]);
    let halves = |values: Vec<f32>| -> Vec<u32> {
        let bits = |value: &f32| u32::from(half::f16::from_f32(*value).to_bits());
        values.chunks_exact(2).map(|pair| bits(&pair[0]) | bits(&pair[1]) << 16).collect()
    };
    let buffers = [
        (Source::Slot(0), halves(noise(m * k, 8))),
        (Source::Slot(1), halves(noise(k * n, 9))),
        (Source::Slot(2), vec![0; m * n]),
    ];
    let run = |halves: bool| {
        let caps = Caps { software: false, halves, ..caps() };
        let text = lower(&step, &caps).map(|launch| launch.wgsl).unwrap_or_default();
        assert_eq!(text.contains("enable f16"), halves, "{text}");
        run_step_with(&step, &buffers, &[], &caps).0[2].1.clone()
    };
    assert!(caps().halves, "the test device has 16-bit floats");
    assert_eq!(run(true), run(false));
}
