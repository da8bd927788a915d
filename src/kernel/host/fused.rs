//! Runs maps, and elementwise work fused to other kernels. A prologue is computed into temporary memory before its twin
//! runs. An epilogue is applied to what the twin wrote, in place where that is allowed. Some twins apply it themselves,
//! piece by piece while the results are in the cache.

use bytemuck::{Pod, cast_slice_mut};
use smallvec::SmallVec;

use crate::ir::{DType, Layout, Operand, Source};
use crate::kernel::host::memory::{Elements, ElementsMut, Input};
use crate::kernel::host::{CpuCall, CpuPool, Epilogue};
use crate::kernel::map::cpu::{Chunk, Code, MapInput, MapOutput, MapSource, map};
use crate::kernel::{Fused, MapKernel, Step};

/// Words of temporary memory that a step needs, and where its twin writes.
pub(crate) struct Temporary {
    /// Size of the input computed by the prologue.
    pub x: usize,
    /// Size of the twin's result, unless an output holds it.
    pub value: usize,
    /// The output that the twin writes to.
    pub target: Option<usize>,
}

impl Temporary {
    pub(crate) fn of(step: &Step) -> Self {
        if step.kernel.as_map().is_some() {
            return Self { x: 0, value: 0, target: None };
        }
        let x = step.prologue.as_ref().map_or(0, |prologue| prologue.map.shape.elements());
        let Some(Fused { map, inputs, .. }) = &step.epilogue else {
            return Self { x, value: 0, target: Some(0) };
        };
        // An output whose previous content is not read holds the values until the epilogue replaces them.
        let free = |output: &Operand| {
            output.layout.is_contiguous() && inputs.iter().all(|input| input.source != output.source)
        };
        let target = step.outputs.iter().position(free);
        let value = if target.is_some() { 0 } else { map.shape.elements() };
        Self { x, value, target }
    }

    pub(crate) fn words(&self) -> usize {
        self.x + self.value
    }
}

/// Where a map's results go: operands, and the memories of their sources, each once.
pub(crate) struct Places<'a> {
    pub outputs: &'a [Operand],
    pub sources: &'a [Source],
    pub memories: Vec<ElementsMut<'a>>,
}

/// The output that has exactly the same elements as an input of elementwise work, which can then be read where it will
/// be written.
pub(crate) fn shared_output(input: &Operand, outputs: &[Operand]) -> Option<usize> {
    outputs.iter().position(|output| output == input)
}

/// Runs a map. `value` is the source of operands without memory ([`Source::Fused`]).
pub(crate) fn run_map<'a>(
    kernel: &MapKernel,
    operands: (&[Operand], &[Input<'a>]),
    value: MapSource<'a>,
    places: Places,
    scalars: &[u32],
    pool: &CpuPool,
) {
    let moved = match (kernel.dynamic_out, scalars.last()) {
        (Some(stride), Some(&steps)) => steps as isize * stride,
        _ => 0,
    };
    // The layout of a moving output does not contain its actual position.
    let still = kernel.dynamic_out.is_none();
    let inputs: Vec<MapInput> = operands
        .0
        .iter()
        .zip(operands.1)
        .map(|(operand, input)| MapInput {
            source: match shared_output(operand, places.outputs) {
                _ if operand.source == Source::Iota => MapSource::Iota,
                _ if operand.source == Source::Fused => value,
                Some(output) if still => MapSource::InPlace(output),
                _ => MapSource::Elements(input.elements),
            },
            strides: &input.layout.strides,
            offset: input.layout.offset as isize,
        })
        .collect();
    let outputs: Vec<MapOutput> = places
        .outputs
        .iter()
        .map(|output| MapOutput {
            memory: places.sources.iter().position(|s| *s == output.source).unwrap_or(0),
            strides: &output.layout.strides,
            offset: output.layout.offset as isize + moved,
        })
        .collect();
    map(kernel, &inputs, &outputs, places.memories, scalars, pool);
}

/// Computes input 0 of a kernel into `out`.
pub(crate) fn run_prologue(prologue: &Fused, inputs: &[Input], out: &mut [u32], scalars: &[u32], pool: &CpuPool) {
    let Fused { map, inputs: operands, .. } = prologue;
    let Some(&result) = map.program.outputs.first() else { return };
    let dtype = map.program.class(result).dtype();
    let output = Operand { source: Source::Fused, dtype, layout: Layout::contiguous(map.shape.clone()) };
    let places = Places { outputs: &[output], sources: &[Source::Fused], memories: vec![ElementsMut::new(out, dtype)] };
    // A prologue does not read a kernel's value.
    let none = MapSource::Elements(Elements::new(&[], dtype));
    run_map(map, (operands, inputs), none, places, scalars, pool);
}

/// Applies the epilogue to what the kernel's twin wrote, unless the twin has already done so.
pub(crate) fn run_epilogue(call: CpuCall) {
    let CpuCall { places, value, target, epilogue, pool, .. } = call;
    let Some(Epilogue { fused, inputs, scalars }) = epilogue else { return };
    let value = match target {
        Some(target) => MapSource::InPlace(target),
        None => MapSource::Elements(Elements::U32(value)),
    };
    run_map(&fused.map, (&fused.inputs, inputs), value, places, &scalars, pool);
}

/// An epilogue that can be computed for any range of the kernel's results. Seen as rows of some length, every operand
/// is the kernel's value, has the same layout, or is broadcast along rows or columns.
pub(crate) struct Finish<'a> {
    code: Code<'a>,
    operands: SmallVec<[Along<'a>; 4]>,
    /// Number of elements of a row.
    row: usize,
    dtype: DType,
    scalars: SmallVec<[u32; 4]>,
}

/// How an operand moves along with the results.
struct Along<'a> {
    source: MapSource<'a>,
    offset: isize,
    /// Strides between rows and between elements.
    strides: [isize; 2],
}

impl<'a> Finish<'a> {
    /// Creates it for a step that writes the only output of the epilogue.
    pub(crate) fn new(
        epilogue: &'a Fused,
        inputs: &[Input<'a>],
        output: &Operand,
        scalars: SmallVec<[u32; 4]>,
    ) -> Option<Self> {
        let MapKernel { shape, program, dynamic_out: None } = &epilogue.map else { return None };
        // Axes, merged where all operands allow it.
        let mut axes: SmallVec<[(usize, SmallVec<[isize; 4]>); 4]> = SmallVec::new();
        for (axis, &n) in shape.iter().enumerate().filter(|(_, n)| **n != 1) {
            let strides: SmallVec<[isize; 4]> = inputs.iter().map(|input| input.layout.strides[axis]).collect();
            match axes.last_mut() {
                Some((outer, steps)) if steps.iter().zip(&strides).all(|(&step, &s)| step == s * n as isize) => {
                    (*outer, *steps) = (*outer * n, strides);
                }
                _ => axes.push((n, strides)),
            }
        }
        let (row, steps) = match &axes[..] {
            [] => (1, None),
            [(n, columns)] => (*n, Some((None, columns))),
            [(_, rows), (n, columns)] => (*n, Some((Some(rows), columns))),
            _ => return None,
        };
        let along = |(i, (operand, input)): (usize, (&Operand, &Input<'a>))| {
            let source = match operand.source {
                Source::Fused => MapSource::InPlace(0),
                Source::Iota => MapSource::Iota,
                _ => MapSource::Elements(input.elements),
            };
            let strides = steps.map_or([0; 2], |(rows, columns)| [rows.map_or(0, |rows| rows[i]), columns[i]]);
            Along { source, offset: input.layout.offset as isize, strides }
        };
        let operands: SmallVec<[Along; 4]> = epilogue.inputs.iter().zip(inputs).enumerate().map(along).collect();
        let code = Code::new(program, &operands.iter().map(Along::input).collect::<SmallVec<[MapInput; 4]>>());
        Some(Self { code, operands, row, dtype: output.dtype, scalars })
    }

    /// Replaces a range of the kernel's results that begins at element `start`.
    pub(crate) fn apply(&self, mut start: usize, piece: &mut [impl Pod]) {
        let mut rest: &mut [u32] = cast_slice_mut(piece);
        let inputs: SmallVec<[MapInput; 4]> = self.operands.iter().map(Along::input).collect();
        while !rest.is_empty() {
            // Whole rows, or part of a row.
            let (row, column) = (start / self.row, start % self.row);
            let rows = if column == 0 { (rest.len() / self.row).max(1) } else { 1 };
            let columns = (self.row - column).min(rest.len());
            let (words, after) = rest.split_at_mut(rows * columns);
            let place =
                |along: &Along| along.offset + row as isize * along.strides[0] + column as isize * along.strides[1];
            let chunk = Chunk {
                axis: 0,
                shape: SmallVec::from_slice(&[rows, columns]),
                input_offsets: self.operands.iter().map(place).collect(),
                output_offsets: SmallVec::from_elem(0, 1),
                memories: vec![ElementsMut::new(words, self.dtype)],
            };
            let output = MapOutput { memory: 0, strides: &[columns as isize, 1], offset: 0 };
            self.code.run(chunk, &inputs, &[output], &self.scalars);
            (start, rest) = (start + rows * columns, after);
        }
    }
}

impl Along<'_> {
    fn input(&self) -> MapInput<'_> {
        MapInput { source: self.source, strides: &self.strides, offset: self.offset }
    }
}
