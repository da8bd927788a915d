use super::*;
use crate::cpu::words_of;
use crate::ir::{
    BinaryOp, Class, DType, Expr, Layout, NodeId, Op, PoolKind, Program, ReduceKind, ScatterReduce, Shape, Window,
};
use crate::kernel::{Kernel, MapKernel, ReduceKernel};
use crate::plan::tests::LIMITS;
use crate::plan::{PlanCache, PlanLimits, Upload};
use crate::record::{Batch, Part};
use crate::tensor::Initial;

fn operand(source: Source, dtype: DType, layout: Layout) -> Operand {
    Operand { source, dtype, layout }
}

fn storage(dtype: DType, words: &[u32]) -> Arc<Storage> {
    let storage = Storage::new(dtype, words.len() * dtype.per_word(), Initial::Zeros);
    **words_of(&storage).write().expect("fresh") = words.to_vec();
    storage
}

fn words(storage: &Storage) -> Vec<u32> {
    words_of(storage).read().expect("whole").clone()
}

/// A step that adds input 1, or the scalar if there is only one input, to input 0.
fn add(inputs: Vec<Operand>, output: Operand, dynamic_out: Option<isize>) -> Step {
    let mut program = Program::default();
    let class = inputs[0].dtype.class();
    let a = program.push(Expr::Input(0, class));
    let b = if inputs.len() > 1 { Expr::Input(1, class) } else { Expr::Scalar(0, class) };
    let b = program.push(b);
    let sum = program.binary(BinaryOp::Add, a, b);
    program.outputs.push(sum);
    let shape = output.layout.shape.clone();
    let kernel = Kernel::Map(MapKernel { shape, program, dynamic_out });
    Step { scalars: SmallVec::from_slice(&[0, 1]), ..Step::new(kernel, inputs, output) }
}

fn plan(steps: Vec<Step>, regions: Vec<Region>) -> Plan {
    Plan {
        uploads: Vec::new(),
        steps,
        reads: Vec::new(),
        scratch_words: regions.iter().map(|r| r.offset + r.words).max().unwrap_or(0),
        regions,
        constants: vec![Arc::from([100, 200, 300, 400])],
        written_slots: vec![0],
        report: Arc::default(),
        nodes: Arc::default(),
    }
}

#[test]
fn values_flow_from_host_through_scratch_to_slots() {
    let four = || Layout::contiguous([4]);
    let scratch = |r| operand(Source::Scratch(r), DType::I32, four());
    let constant = operand(Source::Constant(0), DType::I32, four());
    let reduce = Step::new(
        Kernel::Reduce(ReduceKernel { kind: ReduceKind::Sum, class: Class::Int, outer: 1, n: 4, inner: 1 }),
        [scratch(0)],
        operand(Source::Slot(0), DType::I32, Layout::contiguous([1])),
    );
    // The scratch value lies between two others, so both neighbours are read while it is written.
    let regions = vec![Region { offset: 8, words: 4 }, Region { offset: 0, words: 4 }, Region { offset: 16, words: 4 }];
    let mut plan = plan(
        vec![
            add(vec![constant, scratch(1)], scratch(2), None),
            add(vec![scratch(1), scratch(2)], scratch(0), None),
            reduce,
        ],
        regions,
    );
    plan.uploads.push(Upload { host: 0, to: scratch(1) });
    let slots = [storage(DType::I32, &[0])];
    let mut memory = Vec::new();
    let host: [Arc<[u32]>; 1] = [Arc::from([1, 2, 3, 4])];
    let faults = run_plan(&plan, &slots, &host, &[0, 0], &mut memory, &CpuPool::new(2), &mut Watch::default())
        .expect("no custom kernel");
    assert!(faults.is_empty());
    assert_eq!(words(&slots[0]), [1020]);
    let tail = operand(Source::Scratch(0), DType::I32, Layout::contiguous([4]).slice(0, 1, 3, 1));
    assert_eq!(read_words(&plan, &tail, &slots, &memory).unwrap(), [204, 306, 408]);
}

#[test]
fn a_map_may_write_where_it_reads() {
    let slots = [storage(DType::U8, &[0x0403_0201, 0x0807_0605])];
    let whole = operand(Source::Slot(0), DType::U8, Layout::contiguous([8]));
    let step = add(vec![whole.clone(), whole.clone()], whole.clone(), None);
    run_plan(
        &plan(vec![step], Vec::new()),
        &slots,
        &[],
        &[0, 0],
        &mut Vec::new(),
        &CpuPool::new(1),
        &mut Watch::default(),
    )
    .expect("no custom kernel");
    assert_eq!(words(&slots[0]), [0x0806_0402, 0x100e_0c0a]);
    // Reads elements of the same storage that the step does not write.
    let half = |start| operand(Source::Slot(0), DType::U8, Layout::contiguous([8]).slice(0, start, 3, 1));
    let step = add(vec![half(5)], half(1), None);
    run_plan(
        &plan(vec![step], Vec::new()),
        &slots,
        &[],
        &[1, 0],
        &mut Vec::new(),
        &CpuPool::new(1),
        &mut Watch::default(),
    )
    .expect("no custom kernel");
    assert_eq!(words(&slots[0]), [0x110f_0d02, 0x100e_0c0a]);
}

#[test]
fn a_scalar_moves_a_store() {
    let slots = [storage(DType::F16, &[0; 4]), storage(DType::F16, &[0x3c00_3c00])];
    let from = operand(Source::Slot(1), DType::F16, Layout::contiguous([2]));
    let to = operand(Source::Slot(0), DType::F16, Layout::contiguous([4, 2]).slice(0, 0, 1, 1));
    let to = Operand { layout: Layout::contiguous([2]), ..to };
    let step = add(vec![from], to, Some(2));
    let scalars = [1.0f32.to_bits(), 3];
    run_plan(
        &plan(vec![step], Vec::new()),
        &slots,
        &[],
        &scalars,
        &mut Vec::new(),
        &CpuPool::new(1),
        &mut Watch::default(),
    )
    .expect("no custom kernel");
    assert_eq!(words(&slots[0]), [0, 0, 0, 0x4000_4000]);
}

#[test]
fn odd_halves_are_read_from_the_middle_of_a_word() {
    let slots = [storage(DType::F16, &[0x2222_1111, 0x4444_3333])];
    let middle = operand(Source::Slot(0), DType::F16, Layout::contiguous([4]).slice(0, 1, 3, 1));
    let plan = plan(Vec::new(), Vec::new());
    assert_eq!(read_words(&plan, &middle, &slots, &[]).unwrap(), [0x3333_2222, 0x0000_4444]);
}

/// A pointwise convolution from `[2, 3, 2, 5]` to `[2, 4, 2, 5]` whose epilogue runs either per tile or after the
/// kernel.
#[test]
fn an_epilogue_follows_its_convolution() {
    use crate::ir::{UnaryOp, Window};
    use crate::kernel::{ConvKernel, Fused};
    let window = Window { size: [1; 3], stride: [1; 3], dilation: [1; 3], before: [0; 3], after: [0; 3] };
    let (input, output) = ([1, 2, 5], [1, 2, 5]);
    let floats = |n: usize| (0..n).map(|i| ((i * 5 % 7) as f32 - 3.0).to_bits()).collect::<Vec<_>>();
    let number = |words: &[u32], i: usize| f32::from_bits(words[i]);
    for (batch, groups) in [(1, 1), (2, 1), (2, 3)] {
        let channels_out = if groups == 3 { 3 } else { 4 };
        let kernel = ConvKernel { window, groups, bias: false, batch, channels_in: 3, channels_out, input, output };
        let shape = [batch, channels_out, 2, 5];
        let elements: usize = shape.iter().product();
        let contiguous = || Layout::contiguous(shape);
        // One value for all elements, per element, per column and per channel.
        let others = [
            Layout::contiguous([1, 1, 1, 1]),
            contiguous(),
            Layout::contiguous([1, 1, 1, 5]),
            Layout::contiguous([1, channels_out, 1, 1]),
        ];
        for other in others {
            let slots = [
                storage(DType::F32, &vec![0; elements]),
                storage(DType::F32, &floats(batch * 30)),
                storage(DType::F32, &floats(channels_out * 3 / groups)),
                storage(DType::F32, &floats(other.elements())),
            ];
            let slot = |s, layout| operand(Source::Slot(s), DType::F32, layout);
            let mut program = Program::default();
            let (value, added) =
                (program.push(Expr::Input(0, Class::Float)), program.push(Expr::Input(1, Class::Float)));
            let sum = program.binary(BinaryOp::Add, value, added);
            let result = program.unary(UnaryOp::Abs, sum, &[]);
            program.outputs.push(result);
            let wide = other.broadcast_to(&shape.into()).expect("fits");
            let step = Step {
                epilogue: Some(Fused {
                    map: MapKernel { shape: shape.into(), program, dynamic_out: None },
                    inputs: SmallVec::from_iter([
                        operand(Source::Fused, DType::F32, contiguous()),
                        slot(3, wide.clone()),
                    ]),
                    scalars: SmallVec::new(),
                }),
                ..Step::new(
                    Kernel::Conv(kernel.clone()),
                    [
                        slot(1, Layout::contiguous([batch, 3, 2, 5])),
                        slot(2, Layout::contiguous([channels_out, 3 / groups, 1, 1])),
                    ],
                    slot(0, contiguous()),
                )
            };
            let plan = plan(vec![step], Vec::new());
            let run = run_plan(&plan, &slots, &[], &[], &mut Vec::new(), &CpuPool::new(2), &mut Watch::default());
            run.expect("no custom kernel");
            let [got, x, weight, added] = [0, 1, 2, 3].map(|s: usize| words(&slots[s]));
            for i in 0..elements {
                let (n, c, place) = (i / 10 / channels_out, i / 10 % channels_out, i % 10);
                let depth = 3 / groups;
                let first = c / (channels_out / groups) * depth;
                let sum: f32 = (0..depth)
                    .map(|d| number(&weight, c * depth + d) * number(&x, (n * 3 + first + d) * 10 + place))
                    .sum();
                let expected = (sum + number(&added, wide.position(i))).abs();
                assert_eq!(number(&got, i), expected, "{groups} groups, {wide:?} at {i}");
            }
        }
    }
}

/// Records one op on these inputs, plans it in one launch or in passes, and gives its result and its kernels.
fn run_op(
    op: &Op,
    inputs: &[(DType, &[usize], &[u32])],
    shape: &[usize],
    dtype: DType,
    passes: bool,
) -> (Vec<u32>, usize) {
    let mut part = Part::default();
    let loads: Vec<NodeId> = inputs
        .iter()
        .map(|&(dtype, shape, content)| part.load(&storage(dtype, content), Layout::contiguous(shape)))
        .collect();
    let value = part.push(op.clone(), &loads, Shape::from(shape), dtype, &[]);
    let out = storage(dtype, &vec![0xdead; shape.iter().product()]);
    let slot = part.slot(&out);
    part.store(value, slot, Layout::contiguous(shape));
    let batch = Batch::new([part]);
    let limits = PlanLimits { passes, ..LIMITS };
    let plan = PlanCache::new(limits).plan(&batch.structure, &batch.scalars).1;
    let mut memory = Vec::new();
    run_plan(&plan, &batch.slots, &[], &[], &mut memory, &CpuPool::new(2), &mut Watch::default()).expect("runs");
    (words(&out), plan.steps.len())
}

#[test]
fn kernels_in_passes_give_what_they_give_in_one_launch() {
    let noise = |count: u32, below: u32| -> Vec<u32> {
        (0..count).map(|i| (i.wrapping_mul(2654435761) >> 7) % below).collect()
    };
    let int = DType::I32;
    /// Type, shape and words of an input.
    type Words = (DType, Vec<usize>, Vec<u32>);
    let mut cases: Vec<(Op, Vec<Words>, Vec<usize>)> = Vec::new();
    for exclusive in [false, true] {
        for shape in [vec![1, 70_001, 1], vec![3, 5000, 2]] {
            let count = shape.iter().product::<usize>() as u32;
            let x = (int, shape.clone(), noise(count, 1000));
            cases.push((Op::CumSum { axis: 1, exclusive }, vec![x], shape));
        }
    }
    for (k, largest) in [(100, true), (3000, false)] {
        cases.push((Op::TopK { k, largest }, vec![(int, vec![2, 3000], noise(6000, 500))], vec![2, k]));
    }
    for reduce in
        [ScatterReduce::Replace, ScatterReduce::Add, ScatterReduce::Mul, ScatterReduce::Min, ScatterReduce::Max]
    {
        // More than two sizes of pieces, and more than one digit.
        let (n, updates) = (700, 70_000);
        for below in [700, 2] {
            let index = (int, vec![updates], noise(updates as u32, below));
            let inputs = vec![(int, vec![n], noise(700, 99)), index, (int, vec![updates], noise(updates as u32, 7))];
            cases.push((Op::ScatterElements { axis: 0, reduce }, inputs, vec![n]));
        }
        let index = (int, vec![updates / 2, 2], noise(updates as u32, 20));
        let inputs =
            vec![(int, vec![20, 30, 3], noise(1800, 99)), index, (int, vec![updates / 2, 3], noise(105_000, 7))];
        cases.push((Op::ScatterNd { reduce }, inputs, vec![20, 30, 3]));
    }
    let window =
        |size: [usize; 3]| Window { size, stride: [1; 3], dilation: [1; 3], before: [0, 0, 2], after: [0, 0, 3] };
    for kind in [PoolKind::Max, PoolKind::ArgMax] {
        let input = (int, vec![1, 2, 1, 40, 700], noise(56_000, 10_000));
        cases.push((Op::Pool { kind, window: window([1, 40, 600]) }, vec![input], vec![1, 2, 1, 1, 106]));
    }
    for (op, inputs, shape) in cases {
        let inputs: Vec<_> = inputs.iter().map(|(dtype, shape, content)| (*dtype, &shape[..], &content[..])).collect();
        let (whole, steps) = run_op(&op, &inputs, &shape, int, false);
        let (passes, more) = run_op(&op, &inputs, &shape, int, true);
        assert!(steps == 1 && more > 1, "{op:?}: {steps} and {more} launches");
        assert_eq!(whole.iter().zip(&passes).position(|(a, b)| a != b), None, "{op:?} {shape:?}");
    }
}
