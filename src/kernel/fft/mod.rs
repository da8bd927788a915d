//! Fourier transforms of lines: of any length, of real and complex numbers, of overlapping frames with a window.
//!
//! On devices a workgroup transforms up to 1,024 points in its memory. Longer lengths are a matrix whose columns and rows
//! are transformed one after the other. Lengths with a large prime factor are a convolution by longer transforms. All
//! sizes are parameters and all roots are in a table, so that lengths share their pipelines.

mod cpu;
mod factors;
mod wgsl;

use bytemuck::cast_slice_mut;

pub(crate) use self::factors::{LONGEST, is_possible, table};
use self::factors::{Way, way};
use crate::error::RunError;
use crate::ir::{DType, Fourier, FourierInput, FourierOutput, Node, Shape};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part, Pass, PassInput, PassInputs, by_rows};
use crate::kernel::{Caps, Launch, Step, Variant, Variants};

/// One launch of Fourier transforms.
///
/// Inputs: the lines, a window if the source has one, and on devices a table of roots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FftKernel {
    /// Number of transforms.
    pub lines: usize,
    /// Points of each.
    pub n: usize,
    source: Source,
    sink: Sink,
    pass: FftPass,
    /// Where the table of this transform begins in the input, in pairs. `None` for the twin, which needs none.
    table: Option<usize>,
}

/// Which part of the transforms a launch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FftPass {
    Whole,
    /// The columns of the lines as matrices, each result times its root.
    Columns {
        rows: usize,
        columns: usize,
    },
    /// The rows of the same matrices. The results are in the order of columns.
    Rows {
        rows: usize,
        columns: usize,
    },
}

/// How the elements of a line are found. A pair counts as one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source {
    input: FourierInput,
    /// Two real elements, or their half of a spectrum, are one point.
    packed: bool,
    frames: usize,
    hop: usize,
    /// Elements from one line to the next.
    samples: usize,
    /// Elements of each transform. Zeros follow.
    given: usize,
    /// The length after which half a spectrum repeats, mirrored.
    period: usize,
    window: bool,
    /// Whether elements are conjugated before and after they are multiplied.
    conjugate: [bool; 2],
    /// Where the factors of the elements are in the table.
    factors: Option<usize>,
}

/// What becomes of the results of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sink {
    output: FourierOutput,
    packed: bool,
    /// How many results are kept.
    results: usize,
    conjugate: [bool; 2],
    factors: Option<usize>,
    /// The bits of the factor of all results.
    scale: u32,
}

impl Source {
    /// Complex lines of `n` points.
    fn plain(n: usize) -> Self {
        Self {
            input: FourierInput::Complex,
            packed: false,
            frames: 1,
            hop: 0,
            samples: n,
            given: n,
            period: n,
            window: false,
            conjugate: [false; 2],
            factors: None,
        }
    }

    /// Numbers of each element.
    fn width(&self) -> usize {
        if self.input == FourierInput::Real { 1 } else { 2 }
    }
}

impl Sink {
    fn plain(n: usize) -> Self {
        let output = FourierOutput::Complex;
        Self { output, packed: false, results: n, conjugate: [false; 2], factors: None, scale: 1f32.to_bits() }
    }

    /// Numbers of each result.
    fn width(&self) -> usize {
        match self.output {
            FourierOutput::Complex | FourierOutput::Half => 2,
            FourierOutput::Real | FourierOutput::Power => 1,
        }
    }
}

/// Whether two real elements are transformed as one complex number, which a workgroup does.
pub(crate) fn is_packed(transform: &Fourier) -> bool {
    let Fourier { n, input, output, inverse, .. } = *transform;
    let is_real = match (input, output) {
        (FourierInput::Real, FourierOutput::Half | FourierOutput::Power) => !inverse,
        (FourierInput::Half, FourierOutput::Real) => inverse,
        _ => false,
    };
    is_real && n.is_multiple_of(2) && n > 0 && way(n / 2) == Some(Way::Whole)
}

impl FftKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, transform: &Fourier) -> Self {
        let &Fourier { n, input, inverse, frames, hop, frame, window, output } = transform;
        let shape = &inputs[0].layout.shape;
        let has_table = inputs.len() > 1 + usize::from(window);
        let packed = has_table && is_packed(transform);
        let points = if packed { n / 2 } else { n };
        let scale = if inverse { 1.0 / points as f32 } else { 1.0 };
        let conjugate = [inverse, false];
        let (samples, given) = (shape[1], frame.min(n));
        Self {
            lines: shape[0] * frames,
            n: points,
            source: Source {
                input,
                packed,
                frames,
                hop,
                samples,
                given,
                period: n,
                window,
                conjugate: if packed { [false, inverse] } else { conjugate },
                factors: None,
            },
            sink: Sink {
                output,
                packed,
                results: transform.results(),
                conjugate,
                factors: None,
                scale: scale.to_bits(),
            },
            pass: FftPass::Whole,
            table: has_table.then_some(0),
        }
    }

    /// Points of each transform of this launch, and the number of them.
    fn points(&self) -> (usize, usize) {
        match self.pass {
            FftPass::Whole => (self.n, self.lines),
            FftPass::Columns { rows, columns } => (rows, self.lines * columns),
            FftPass::Rows { rows, columns } => (columns, self.lines * rows),
        }
    }

    /// The input that is the table.
    fn table_input(&self) -> usize {
        1 + usize::from(self.source.window)
    }
}

impl KernelSpec for FftKernel {
    fn name(&self) -> &'static str {
        "fft"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[(self.source.window, "window"), (self.table.is_some(), "w")])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        let Source { frames, hop, given, .. } = self.source;
        let each = if frames > 1 { given.div_ceil(hop.max(1)).max(1) } else { 1 };
        Fusing::both(each, self.lines)
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        let (n, lines) = self.points();
        5 * lines * n * (n.ilog2() as usize + 1)
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let Source { frames, samples, .. } = self.source;
        let of_input = samples * self.source.width();
        let of_output = frames * self.sink.results * self.sink.width();
        by_rows(step, self.lines / frames, of_input, of_output, |batch| Self { lines: batch * frames, ..self.clone() })
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        let at = self.table?;
        if self.pass != FftPass::Whole || self.source.packed {
            return None;
        }
        let (lines, n) = (self.lines, self.n);
        let (first, length, last) = match way(n)? {
            Way::Whole => return None,
            Way::Matrix { rows, columns } => {
                let (one, two) = (FftPass::Columns { rows, columns }, FftPass::Rows { rows, columns });
                let first = Self { sink: Sink::plain(n), pass: one, ..self.clone() };
                (first, n, Self { source: Source::plain(n), pass: two, ..self.clone() })
            }
            Way::Convolution { length } => {
                let table = Some(at + n + length);
                let first = Source { factors: Some(at), ..self.source };
                let first = Self { n: length, source: first, sink: Sink::plain(length), table, ..self.clone() };
                // The product of the spectra is transformed back, which is a transform between two conjugations.
                let source = Source { conjugate: [false, true], factors: Some(at + n), ..Source::plain(length) };
                let sink = Sink { conjugate: [true, self.sink.conjugate[0]], factors: Some(at), ..self.sink };
                (first, length, Self { n: length, source, sink, table, ..self.clone() })
            }
        };
        let all: PassInputs = (0..=self.table_input()).map(PassInput::Input).collect();
        let shape = Shape::from([lines, length, 2]);
        Some(Levels {
            passes: vec![Pass { kernel: first.into(), inputs: all, shape, dtype: DType::F32 }],
            last: last.into(),
            inputs: PassInputs::from_slice(&[PassInput::Result(0), PassInput::Input(self.table_input())]),
            start: None,
            device_only: true,
        })
    }

    fn sizes(&self) -> Sizes {
        let (n, lines) = self.points();
        Sizes::from_slice(&[("lines", lines), ("n", n)])
    }

    fn forms(&self, caps: &Caps) -> Variants {
        wgsl::forms(self, caps)
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        let variant = crate::kernel::choose(&self.forms(caps), caps).unwrap_or(Variant::Sums);
        Some(wgsl::lower(step, self, variant, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        cpu::fft(self, inputs, cast_slice_mut(out), pool);
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Layout;
    use crate::kernel::host::CpuPool;
    use crate::kernel::host::memory::{Elements, Input};
    use crate::kernel::{Kernel, PassInput};

    fn kernel(n: usize, input: FourierInput, output: FourierOutput, inverse: bool, table: bool) -> FftKernel {
        let transform = Fourier { n, input, output, inverse, frames: 1, hop: 0, frame: n, window: false };
        let packed = table && is_packed(&transform);
        let points = if packed { n / 2 } else { n };
        let given = if input == FourierInput::Half { n / 2 + 1 } else { n };
        let conjugate = if packed { [false, inverse] } else { [inverse, false] };
        let scale = if inverse { 1.0 / points as f32 } else { 1.0 };
        FftKernel {
            lines: 2,
            n: points,
            source: Source { input, packed, samples: given, given, period: n, conjugate, ..Source::plain(n) },
            sink: Sink {
                output,
                packed,
                results: transform.results(),
                conjugate: [inverse, false],
                scale: scale.to_bits(),
                factors: None,
            },
            pass: FftPass::Whole,
            table: table.then_some(0),
        }
    }

    /// Runs a kernel in all its launches.
    fn run(kernel: &FftKernel, x: &[f32], table: &[f32]) -> Vec<f32> {
        if let Some(Levels { passes, last, inputs, .. }) = kernel.levels() {
            let (Kernel::Fft(first), Kernel::Fft(last)) = (&passes[0].kernel, &last) else { panic!("other kernels") };
            assert_eq!(inputs[0], PassInput::Result(0));
            return run(last, &run(first, x, table), table);
        }
        let input = |values| Input { elements: Elements::F32(values), layout: Layout::contiguous([values.len()]) };
        let results = if kernel.sink.packed && kernel.sink.output == FourierOutput::Real {
            kernel.n * 2
        } else {
            kernel.sink.results
        };
        let mut out = vec![0.0; kernel.lines * results * kernel.sink.width()];
        cpu::fft(kernel, &[input(x), input(table)], &mut out, &CpuPool::new(1));
        out
    }

    #[test]
    fn the_launches_of_a_device_are_the_whole_transform() {
        for n in [1, 2, 6, 61, 400, 1024, 1009, 1500, 2048, 2500, 3001] {
            for (input, output, inverse) in [
                (FourierInput::Complex, FourierOutput::Complex, false),
                (FourierInput::Complex, FourierOutput::Complex, true),
                (FourierInput::Real, FourierOutput::Half, false),
                (FourierInput::Real, FourierOutput::Power, false),
                (FourierInput::Half, FourierOutput::Real, true),
            ] {
                let (whole, parts) =
                    (kernel(n, input, output, inverse, false), kernel(n, input, output, inverse, true));
                let count = 2 * whole.source.samples * whole.source.width();
                let x: Vec<f32> = (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
                let words = table(n, parts.source.packed);
                let (expected, got) = (run(&whole, &x, &[]), run(&parts, &x, bytemuck::cast_slice(&words)));
                assert_eq!(expected.len(), got.len());
                let size = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
                let off = expected.iter().zip(&got).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt() / size;
                assert!(off < 1e-5, "{n} points, {input:?} to {output:?}: {off:e}");
            }
        }
    }
}
