//! The twin. Whole transforms are those of `rustfft` and `realfft`; the passes of devices follow their definition.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::cast_slice_mut;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftPlanner};

use super::factors::FINE;
use super::{FftKernel, FftPass, Source};
use crate::ir::{FourierInput, FourierOutput};
use crate::kernel::host::CpuPool;
use crate::kernel::host::memory::Input;
use crate::kernel::host::scratch::with_scratch;

type Complex = rustfft::num_complex::Complex<f32>;

/// A plan of a library, which any number of threads can use.
#[derive(Clone)]
enum Plan {
    Complex(Arc<dyn Fft<f32>>),
    ToSpectrum(Arc<dyn RealToComplex<f32>>),
    FromSpectrum(Arc<dyn ComplexToReal<f32>>),
}

/// What a plan does, and for how many points.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Forward,
    Inverse,
    ToSpectrum,
    FromSpectrum,
}

/// Plans that are kept. A plan has tables of about the size of its transform.
const KEPT: usize = 64;

/// The latest plans, the most recent one last.
static PLANS: Mutex<Vec<(Kind, usize, Plan)>> = Mutex::new(Vec::new());

fn plan(kind: Kind, n: usize) -> Plan {
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = match plans.iter().position(|kept| (kept.0, kept.1) == (kind, n)) {
        Some(at) => plans.remove(at).2,
        None => match kind {
            Kind::Forward => Plan::Complex(FftPlanner::new().plan_fft_forward(n)),
            Kind::Inverse => Plan::Complex(FftPlanner::new().plan_fft_inverse(n)),
            Kind::ToSpectrum => Plan::ToSpectrum(RealFftPlanner::new().plan_fft_forward(n)),
            Kind::FromSpectrum => Plan::FromSpectrum(RealFftPlanner::new().plan_fft_inverse(n)),
        },
    };
    plans.push((kind, n, plan.clone()));
    if plans.len() > KEPT {
        plans.remove(0);
    }
    plan
}

/// The lines of a kernel, and its window.
struct Lines<'a> {
    source: &'a Source,
    x: Cow<'a, [f32]>,
    window: Option<Cow<'a, [f32]>>,
}

impl Lines<'_> {
    /// The numbers that a transform takes.
    fn given(&self, line: usize) -> &[f32] {
        let Source { frames, hop, samples, given, .. } = *self.source;
        let width = self.source.width();
        let at = (line / frames) * samples + (line % frames) * hop;
        &self.x[at * width..(at + given) * width]
    }

    /// Real elements into a buffer of the length of the transform.
    fn real(&self, line: usize, to: &mut [f32]) {
        let from = self.given(line);
        let (to, rest) = to.split_at_mut(from.len());
        match &self.window {
            Some(window) => to.iter_mut().zip(from).zip(&**window).for_each(|((to, x), w)| *to = x * w),
            None => to.copy_from_slice(from),
        }
        rest.fill(0.0);
    }

    /// Half a spectrum into a buffer of its bins. The first and the middle one are real.
    fn half(&self, line: usize, to: &mut [Complex]) {
        let from: &[Complex] = bytemuck::cast_slice(self.given(line));
        for (i, to) in to.iter_mut().enumerate() {
            *to = from.get(i).copied().unwrap_or_default();
            if i == 0 || i * 2 == self.source.period {
                to.im = 0.0;
            }
        }
    }

    /// Elements of any kind into a buffer of the length of the transform.
    fn complex(&self, line: usize, to: &mut [Complex]) {
        match self.source.input {
            FourierInput::Real => {
                let from = self.given(line).iter().map(|&x| Complex::new(x, 0.0));
                to.fill(Complex::default());
                to.iter_mut().zip(from).for_each(|(to, x)| *to = x);
            }
            FourierInput::Complex => {
                let from: &[Complex] = bytemuck::cast_slice(self.given(line));
                let (to, rest) = to.split_at_mut(from.len());
                to.copy_from_slice(from);
                rest.fill(Complex::default());
            }
            FourierInput::Half => {
                let n = self.source.period;
                self.half(line, &mut to[..n / 2 + 1]);
                for k in n / 2 + 1..n {
                    to[k] = to[n - k].conj();
                }
            }
        }
        if self.source.input != FourierInput::Half
            && let Some(window) = &self.window
        {
            to.iter_mut().zip(&**window).for_each(|(to, w)| *to *= w);
        }
    }
}

/// Inputs: lines, a window if there is one, and the table of passes.
pub(super) fn fft(kernel: &FftKernel, inputs: &[Input], out: &mut [f32], pool: &CpuPool) {
    let FftKernel { n, source, sink, .. } = kernel;
    let (n, results) = (*n, sink.results);
    let x = inputs[0].contiguous::<f32>(pool);
    let window = source.window.then(|| inputs[1].contiguous::<f32>(pool));
    let lines = Lines { source, x, window };
    if kernel.table.is_some() {
        let table = inputs[kernel.table_input()].contiguous::<f32>(pool);
        return pass(kernel, &lines, bytemuck::cast_slice(&table), out);
    }
    let inverse = sink.conjugate[0];
    let kind = match (source.input, sink.output) {
        (FourierInput::Real, FourierOutput::Half | FourierOutput::Power) if !inverse => Kind::ToSpectrum,
        (FourierInput::Half, FourierOutput::Real) if inverse => Kind::FromSpectrum,
        _ if inverse => Kind::Inverse,
        _ => Kind::Forward,
    };
    let plan = plan(kind, n);
    let (scale, is_power) = (f32::from_bits(sink.scale), sink.output == FourierOutput::Power);
    let unit = results * sink.width();
    let cost = 5 * n * (n.ilog2() as usize + 1);
    pool.each_unit(out, unit, cost, |first, out| match &plan {
        Plan::ToSpectrum(plan) => {
            let (extra, bins) = (plan.get_scratch_len() * 2, if is_power { results * 2 } else { 0 });
            with_scratch(n + extra + bins, |buffer: &mut [f32]| {
                let (line, buffer) = buffer.split_at_mut(n);
                let (extra, bins) = buffer.split_at_mut(extra);
                for (i, out) in out.chunks_mut(unit).enumerate() {
                    lines.real(first + i, line);
                    let spectrum: &mut [Complex] = cast_slice_mut(if is_power { &mut *bins } else { &mut *out });
                    // Fails only for other lengths.
                    let done = plan.process_with_scratch(line, spectrum, cast_slice_mut(extra));
                    debug_assert!(done.is_ok());
                    if is_power {
                        let bins: &[Complex] = bytemuck::cast_slice(bins);
                        out.iter_mut().zip(bins).for_each(|(out, bin)| *out = bin.norm_sqr());
                    }
                }
            });
        }
        Plan::FromSpectrum(plan) => {
            let (bins, extra) = ((n / 2 + 1) * 2, plan.get_scratch_len() * 2);
            with_scratch(bins + extra, |buffer: &mut [f32]| {
                let (bins, extra) = buffer.split_at_mut(bins);
                for (i, out) in out.chunks_mut(unit).enumerate() {
                    lines.half(first + i, cast_slice_mut(bins));
                    let done = plan.process_with_scratch(cast_slice_mut(bins), out, cast_slice_mut(extra));
                    debug_assert!(done.is_ok());
                    out.iter_mut().for_each(|out| *out *= scale);
                }
            });
        }
        Plan::Complex(plan) => {
            let extra = plan.get_inplace_scratch_len() * 2;
            with_scratch(n * 2 + extra, |buffer: &mut [f32]| {
                let (line, extra) = buffer.split_at_mut(n * 2);
                for (i, out) in out.chunks_mut(unit).enumerate() {
                    let in_place = sink.output == FourierOutput::Complex;
                    let points: &mut [Complex] = cast_slice_mut(if in_place { &mut *out } else { &mut *line });
                    lines.complex(first + i, points);
                    plan.process_with_scratch(points, cast_slice_mut(extra));
                    if inverse {
                        points.iter_mut().for_each(|point| *point *= scale);
                    }
                    if !in_place {
                        keep(sink.output, bytemuck::cast_slice(line), out);
                    }
                }
            });
        }
    });
}

/// What is kept of the points of a transform.
fn keep(output: FourierOutput, points: &[Complex], out: &mut [f32]) {
    match output {
        FourierOutput::Complex | FourierOutput::Half => {
            let out: &mut [Complex] = cast_slice_mut(out);
            out.iter_mut().zip(points).for_each(|(out, point)| *out = *point);
        }
        FourierOutput::Real => out.iter_mut().zip(points).for_each(|(out, point)| *out = point.re),
        FourierOutput::Power => out.iter_mut().zip(points).for_each(|(out, point)| *out = point.norm_sqr()),
    }
}

fn conjugated(value: Complex, yes: bool) -> Complex {
    if yes { value.conj() } else { value }
}

/// One launch of a device, as `fft_parts.wgsl` defines it.
fn pass(kernel: &FftKernel, lines: &Lines, table: &[Complex], out: &mut [f32]) {
    let (source, sink) = (&kernel.source, &kernel.sink);
    let (n, rows) = kernel.points();
    let at = kernel.table.unwrap_or(0);
    let half = |line: usize| {
        let mut half = vec![Complex::default(); source.period / 2 + 1];
        lines.half(line, &mut half);
        half
    };
    let points_of = |line: usize| {
        let mut points = vec![Complex::default(); kernel.n.max(source.period)];
        match (source.packed, source.input) {
            (true, FourierInput::Real) => {
                let mut numbers = vec![0.0; 2 * kernel.n];
                lines.real(line, &mut numbers);
                points.iter_mut().zip(numbers.chunks(2)).for_each(|(to, x)| *to = Complex::new(x[0], x[1]));
            }
            (true, _) => {
                let half = half(line);
                for (j, point) in points[..kernel.n].iter_mut().enumerate() {
                    let (a, b) = (half[j], half[kernel.n - j].conj());
                    let odd = (a - b) * table[at + kernel.n + j].conj();
                    *point = (a + b + Complex::new(-odd.im, odd.re)) * 0.5;
                }
            }
            (false, _) => lines.complex(line, &mut points),
        }
        points.truncate(kernel.n);
        for (j, point) in points.iter_mut().enumerate() {
            *point = conjugated(*point, source.conjugate[0]);
            if let Some(factors) = source.factors {
                let period = if source.samples == kernel.n { kernel.n } else { source.period };
                *point *= if j < period { table[factors + j] } else { Complex::default() };
            }
            *point = conjugated(*point, source.conjugate[1]);
        }
        points
    };
    let Plan::Complex(transform) = plan(Kind::Forward, n) else { return };
    let mut keep_one = |line: usize, k: usize, value: Complex| {
        if k >= sink.results {
            return;
        }
        let mut value = conjugated(value, sink.conjugate[0]);
        if let Some(factors) = sink.factors {
            value *= table[factors + k];
        }
        let value = conjugated(value, sink.conjugate[1]) * f32::from_bits(sink.scale);
        let unit = sink.results * sink.width();
        if sink.packed && sink.output == FourierOutput::Real {
            out[line * unit + 2 * k..][..2].copy_from_slice(&[value.re, value.im]);
        } else {
            keep(sink.output, &[value], &mut out[line * unit + k * sink.width()..][..sink.width()]);
        }
    };
    for row in 0..rows {
        match kernel.pass {
            FftPass::Whole => {
                let mut points = points_of(row);
                transform.process(&mut points);
                let is_spectrum = sink.packed && sink.output != FourierOutput::Real;
                for k in 0..=n {
                    if is_spectrum {
                        let (a, b) = (points[k % n], points[(n - k) % n].conj());
                        let odd = table[at + n + k] * Complex::new(a.im - b.im, b.re - a.re);
                        keep_one(row, k, (a + b + odd) * 0.5);
                    } else if k < n {
                        keep_one(row, k, points[k]);
                    }
                }
            }
            FftPass::Columns { rows, columns } => {
                let (line, column) = (row / columns, row % columns);
                let mut points: Vec<Complex> = points_of(line).into_iter().skip(column).step_by(columns).collect();
                transform.process(&mut points);
                let fine = at + rows + columns;
                for (k, point) in points.into_iter().enumerate() {
                    let turn = column * k;
                    let root = table[fine + turn % FINE] * table[fine + FINE + turn / FINE];
                    keep_one(line, k * columns + column, point * root);
                }
            }
            FftPass::Rows { rows, columns } => {
                let (line, of_line) = (row / rows, row % rows);
                let mut points = points_of(line)[of_line * columns..][..columns].to_vec();
                transform.process(&mut points);
                for (k, point) in points.into_iter().enumerate() {
                    keep_one(line, of_line + k * rows, point);
                }
            }
        }
    }
}
