use half::f16;

use super::*;
use crate::ir::{BinaryOp, Class, DType, Layout, Primitive, Shape, UnaryOp};

/// Runs a program with one layout per input and returns the words of a contiguous output.
fn run(program: &Program, shape: &Shape, inputs: &[(Elements, &Layout)], dtype: DType, scalars: &[u32]) -> Vec<u32> {
    let mut words = vec![0u32; dtype.words(shape.elements())];
    let out = Layout::contiguous(shape.clone());
    let inputs: Vec<MapInput> = inputs
        .iter()
        .map(|(elements, layout)| MapInput {
            source: MapSource::Elements(*elements),
            strides: &layout.strides,
            offset: layout.offset as isize,
        })
        .collect();
    let outputs = [MapOutput { memory: 0, strides: &out.strides, offset: 0 }];
    let kernel = MapKernel { shape: shape.clone(), program: program.clone(), dynamic_out: None };
    map(&kernel, &inputs, &outputs, vec![ElementsMut::new(&mut words, dtype)], scalars, &CpuPool::new(3));
    words
}

/// Applies a binary op to two lists of one class, given as bits.
fn binary(op: BinaryOp, class: Class, a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut program = Program::default();
    let (x, y) = (program.push(Expr::Input(0, class)), program.push(Expr::Input(1, class)));
    let reg = program.binary(op, x, y);
    program.outputs.push(reg);
    let layout = Layout::contiguous([a.len()]);
    run(&program, &layout.shape, &[(Elements::U32(a), &layout), (Elements::U32(b), &layout)], DType::U32, &[])
}

#[test]
fn whole_numbers_divide_as_documented() {
    let bits = |v: &[i32]| v.iter().map(|&v| v as u32).collect::<Vec<_>>();
    let (a, b) = (bits(&[7, -7, 7, -7, 5, i32::MIN, -6]), bits(&[3, 3, -3, -3, 0, -1, 3]));
    let of = |op| binary(op, Class::Int, &a, &b).into_iter().map(|v| v as i32).collect::<Vec<_>>();
    assert_eq!(of(BinaryOp::Div), [2, -2, -2, 2, 5, i32::MIN, -2]);
    assert_eq!(of(BinaryOp::Rem), [1, -1, 1, -1, 0, 0, 0]);
    assert_eq!(of(BinaryOp::Mod), [1, 2, -2, -1, 0, 0, 0]);
    let (a, b) = (bits(&[2, -1, -1, 3, 1, 0, 3]), bits(&[10, -3, -2, -1, -9, 0, 40]));
    let pow = binary(BinaryOp::Pow, Class::Int, &a, &b);
    assert_eq!(pow[..6], bits(&[1024, -1, 1, 0, 1, 1]));
    assert_eq!(pow[6], 3u32.wrapping_pow(40));
    assert_eq!(binary(BinaryOp::Div, Class::Uint, &[7, u32::MAX], &[0, 2]), [7, u32::MAX / 2]);
    assert_eq!(binary(BinaryOp::Mod, Class::Uint, &[7, 9], &[0, 2]), [0, 1]);
}

#[test]
fn floats_divide_and_compare_as_documented() {
    let bits = |v: &[f32]| v.iter().map(|&v| v.to_bits()).collect::<Vec<_>>();
    let of = |op, a: &[f32], b: &[f32]| -> Vec<f32> {
        binary(op, Class::Float, &bits(a), &bits(b)).into_iter().map(f32::from_bits).collect()
    };
    assert_eq!(of(BinaryOp::Mod, &[5.5, -5.5, 5.5, -4.0], &[2.0, 2.0, -2.0, 2.0]), [1.5, 0.5, -0.5, 0.0]);
    assert_eq!(of(BinaryOp::Rem, &[5.5, -5.5, 5.5], &[2.0, 2.0, -2.0]), [1.5, -1.5, 1.5]);
    for op in [BinaryOp::Min, BinaryOp::Max] {
        assert!(of(op, &[f32::NAN, 1.0], &[1.0, f32::NAN]).iter().all(|v| v.is_nan()));
    }
    assert_eq!(of(BinaryOp::Max, &[1.0, -2.0], &[3.0, f32::NEG_INFINITY]), [3.0, -2.0]);
    let pow = of(BinaryOp::Pow, &[-2.0, -2.0, 0.0, 4.0], &[3.0, 0.5, 0.0, -0.5]);
    assert_eq!((pow[0], pow[1].is_nan(), pow[2], pow[3]), (-8.0, true, 1.0, 0.5));
    assert_eq!(binary(BinaryOp::Ne, Class::Float, &bits(&[f32::NAN]), &bits(&[f32::NAN])), [1]);
}

#[test]
fn casts_saturate_floats_and_wrap_whole_numbers() {
    let cast = |class, dtype, bits: &[u32]| {
        let mut program = Program::default();
        let x = program.push(Expr::Input(0, class));
        let reg = program.push(Expr::Cast(x, dtype));
        program.outputs.push(reg);
        let layout = Layout::contiguous([bits.len()]);
        run(&program, &layout.shape, &[(Elements::U32(bits), &layout)], dtype.wide(), &[])
    };
    let floats: Vec<u32> = [1e10f32, -1e10, f32::NAN, -2.9, 300.0].iter().map(|v| v.to_bits()).collect();
    let signed = |v: Vec<u32>| v.into_iter().map(|v| v as i32).collect::<Vec<_>>();
    assert_eq!(signed(cast(Class::Float, DType::I32, &floats)), [i32::MAX, i32::MIN, 0, -2, 300]);
    assert_eq!(signed(cast(Class::Float, DType::I8, &floats)), [127, -128, 0, -2, 127]);
    assert_eq!(cast(Class::Float, DType::U8, &floats), [255, 0, 0, 0, 255]);
    assert_eq!(cast(Class::Float, DType::Bool, &floats), [1, 1, 1, 1, 1]);
    assert_eq!(signed(cast(Class::Int, DType::I8, &[200, -129i32 as u32])), [-56, 127]);
    let half = cast(Class::Float, DType::F16, &[1.0001f32.to_bits(), 1e6f32.to_bits()]);
    assert_eq!(half, [1.0f32.to_bits(), f32::INFINITY.to_bits()]);
}

#[test]
fn rounding_and_signs_follow_their_rules() {
    let of = |op, x: &[f32]| -> Vec<f32> {
        let mut program = Program::default();
        let input = program.push(Expr::Input(0, Class::Float));
        let reg = program.push(Expr::Unary(op, input));
        program.outputs.push(reg);
        let layout = Layout::contiguous([x.len()]);
        let words = run(&program, &layout.shape, &[(Elements::F32(x), &layout)], DType::F32, &[]);
        words.into_iter().map(f32::from_bits).collect()
    };
    assert_eq!(of(Primitive::Round, &[0.5, 1.5, 2.5, -0.5, -1.5]), [0.0, 2.0, 2.0, 0.0, -2.0]);
    let sign = of(Primitive::Sign, &[-3.0, 0.0, 9.0, f32::NAN]);
    assert!(sign[..3] == [-1.0, 0.0, 1.0] && sign[3].is_nan());
}

#[test]
fn strided_inputs_and_packed_outputs_meet_at_every_size() {
    for (rows, columns) in [(1, 1), (7, 63), (65, 65), (1, 1757), (300, 400), (2, 70_000)] {
        let n = rows * columns;
        let halves: Vec<f16> = (0..n).map(|i| f16::from_f32((i % 61) as f32)).collect();
        let bytes: Vec<i8> = (0..n).map(|i| (i % 50) as i8 - 25).collect();
        let row: Vec<u8> = (0..columns).map(|i| (i % 3) as u8).collect();
        let shape = Shape::from([rows, columns]);
        let transposed = Layout::contiguous([columns, rows]).permute(&[1, 0]);
        let flipped = Layout::contiguous([rows, columns]).slice(1, columns - 1, columns, -1);
        let spread = Layout::contiguous([columns]).broadcast_to(&shape).expect("fits");
        // (half + byte) · scalar where the row is not 0, else the byte.
        let mut program = Program::default();
        let a = program.push(Expr::Input(0, Class::Float));
        let b = program.push(Expr::Input(1, Class::Int));
        let b = program.push(Expr::Cast(b, DType::F32));
        let c = program.push(Expr::Input(2, Class::Uint));
        let s = program.push(Expr::Scalar(0, Class::Float));
        let sum = program.binary(BinaryOp::Add, a, b);
        let scaled = program.binary(BinaryOp::Mul, sum, s);
        let chosen = program.push(Expr::Select(c, scaled, b));
        let out = program.push(Expr::Cast(chosen, DType::I8));
        program.outputs.push(out);
        let inputs =
            [(Elements::F16(&halves), &transposed), (Elements::I8(&bytes), &flipped), (Elements::U8(&row), &spread)];
        let words = run(&program, &shape, &inputs, DType::I8, &[0.5f32.to_bits()]);
        let got: &[i8] = &bytemuck::cast_slice(&words)[..n];
        for (i, &got) in got.iter().enumerate() {
            let b = f32::from(bytes[flipped.position(i)]);
            let scaled = (halves[transposed.position(i)].to_f32() + b) * 0.5;
            let expected = if row[spread.position(i)] != 0 { scaled } else { b } as i8;
            assert_eq!(got, expected, "{rows} x {columns} at {i}");
        }
    }
}

#[test]
fn positions_and_hashes_are_those_of_the_layout() {
    let mut program = Program::default();
    let x = program.push(Expr::Input(0, Class::Int));
    let seed = program.push(Expr::Scalar(0, Class::Uint));
    let reg = program.unary(UnaryOp::RandomUniform, x, &[seed]);
    program.outputs.push(reg);
    let layout = Layout::contiguous([40, 50]).permute(&[1, 0]);
    let mut words = vec![0u32; 2000];
    let out = Layout::contiguous([50, 40]);
    let kernel = MapKernel { shape: out.shape.clone(), program, dynamic_out: None };
    let inputs = [MapInput { source: MapSource::Iota, strides: &layout.strides, offset: 0 }];
    let outputs = [MapOutput { memory: 0, strides: &out.strides, offset: 0 }];
    let memories = vec![ElementsMut::new(&mut words, DType::F32)];
    map(&kernel, &inputs, &outputs, memories, &[7], &CpuPool::new(2));
    for (i, bits) in words.into_iter().enumerate() {
        let expected = (hash(layout.position(i) as u32, 7) / 256) as f32 / 16_777_216.0;
        assert_eq!(f32::from_bits(bits), expected);
    }
}

#[test]
fn strided_outputs_leave_their_gaps_alone() {
    for (rows, columns) in [(3, 5), (500, 129), (2, 40_000)] {
        let base = Layout::contiguous([rows, 2 * columns]);
        for out in [base.slice(1, columns, columns, 1), base.slice(1, 2 * columns - 1, columns, -2)] {
            let mut program = Program::default();
            let x = program.push(Expr::Input(0, Class::Int));
            let y = program.binary(BinaryOp::Add, x, x);
            let y = program.binary(BinaryOp::Add, y, x);
            program.outputs.push(y);
            let flat = Layout::contiguous([rows, columns]);
            let mut words = vec![0xffff_ffffu32; DType::U8.words(base.elements())];
            let kernel = MapKernel { shape: flat.shape.clone(), program, dynamic_out: None };
            let inputs = [MapInput { source: MapSource::Iota, strides: &flat.strides, offset: 0 }];
            let outputs = [MapOutput { memory: 0, strides: &out.strides, offset: out.offset as isize }];
            let memories = vec![ElementsMut::new(&mut words, DType::U8)];
            map(&kernel, &inputs, &outputs, memories, &[], &CpuPool::new(3));
            let mut expected = vec![0xffu8; words.len() * 4];
            (0..flat.elements()).for_each(|i| expected[out.position(i)] = (i * 3) as u8);
            assert_eq!(bytemuck::cast_slice::<_, u8>(&words), expected);
        }
    }
}
