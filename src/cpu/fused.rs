//! Maps, and elementwise work fused to other kernels: a prologue is computed into temporary memory before its twin runs, an epilogue over what
//! the twin wrote, in place where that is allowed.

use super::CpuPool;
use super::map::{self, MapInput, MapOutput, MapSource};
use super::memory::{Elements, ElementsMut, Input};
use crate::kernel::{Kernel, MapKernel};
use crate::plan::{Fused, Operand, Source, Step};
use crate::tensor::Layout;

/// What a step keeps in temporary memory, in words, and where its twin writes.
pub(super) struct Temporary {
    /// The input that the prologue computes.
    pub x: usize,
    /// The twin's result, unless an output takes it.
    pub value: usize,
    /// The output that the twin writes into.
    pub target: Option<usize>,
}

impl Temporary {
    pub(super) fn of(step: &Step) -> Self {
        if let Kernel::Map(_) = step.kernel {
            return Self { x: 0, value: 0, target: None };
        }
        let x = step.prologue.as_ref().map_or(0, |prologue| prologue.map.shape.elements());
        let Some(Fused { map, inputs, .. }) = &step.epilogue else {
            return Self { x, value: 0, target: Some(0) };
        };
        // An output whose old content nobody reads holds the values until the epilogue replaces them.
        let free = |output: &Operand| {
            output.layout.is_contiguous() && inputs.iter().all(|input| input.source != output.source)
        };
        let target = step.outputs.iter().position(free);
        let value = if target.is_some() { 0 } else { map.shape.elements() };
        Self { x, value, target }
    }

    pub(super) fn words(&self) -> usize {
        self.x + self.value
    }
}

/// Where a map's results go: operands, and the memories of their sources, each once.
pub(super) struct Places<'a> {
    pub outputs: &'a [Operand],
    pub sources: &'a [Source],
    pub memories: Vec<ElementsMut<'a>>,
}

/// The output whose every element an input of elementwise work shares, so that it can be read where it will be written.
pub(super) fn shared_output(input: &Operand, outputs: &[Operand]) -> Option<usize> {
    outputs.iter().position(|output| output == input)
}

/// Runs a map. `value` is what stands for operands without memory of their own ([`Source::Fused`]).
pub(super) fn run_map<'a>(
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
    // An output that moves is not where its layout says.
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
    map::map(kernel, &inputs, &outputs, places.memories, scalars, pool);
}

/// Computes what a kernel reads as its input 0 into `out`.
pub(super) fn run_prologue(prologue: &Fused, inputs: &[Input], out: &mut [u32], scalars: &[u32], pool: &CpuPool) {
    let Fused { map, inputs: operands, .. } = prologue;
    let Some(&result) = map.program.outputs.first() else { return };
    let dtype = map.program.class(result).dtype();
    let output = Operand { source: Source::Fused, dtype, layout: Layout::contiguous(map.shape.clone()) };
    let places = Places { outputs: &[output], sources: &[Source::Fused], memories: vec![ElementsMut::new(out, dtype)] };
    // A prologue has no value of a kernel to begin with.
    let none = MapSource::Elements(Elements::new(&[], dtype));
    run_map(map, (operands, inputs), none, places, scalars, pool);
}
