//! The texts: where points come from and go to, and one of two bodies.

use super::factors::{FINE, WHOLE, radices};
use super::{FftKernel, FftPass};
use crate::ir::{FourierInput, FourierOutput};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, Step, Variant, Variants};

/// More points are always transformed in workgroup memory, if there is any.
const FEW: usize = 8;
/// Transforms of up to this many points may be sums.
const SUMS: usize = 32;

/// Threads of a workgroup.
fn lanes(caps: &Caps) -> u32 {
    // Software adapters switch between the subgroups of a workgroup at each barrier.
    if caps.software { 32 } else { 128 }
}

pub(super) fn forms(kernel: &FftKernel, caps: &Caps) -> Variants {
    let (n, _) = kernel.points();
    let room = caps.invocations >= lanes(caps) && caps.workgroup_memory as usize >= 2 * WHOLE * 8;
    Variants::from_slice(match n {
        _ if !room => &[Variant::Sums],
        _ if n <= FEW => &[Variant::Sums, Variant::Stockham],
        _ if n <= SUMS => &[Variant::Stockham, Variant::Sums],
        _ => &[Variant::Stockham],
    })
}

pub(super) fn lower(step: &Step, kernel: &FftKernel, variant: Variant, caps: &Caps) -> Launch {
    let (source, sink) = (&kernel.source, &kernel.sink);
    let (n, rows) = kernel.points();
    let mut builder = Builder::new(step);
    builder.variant(variant);
    let kind = match (source.input, source.packed) {
        (FourierInput::Real, false) => 0,
        (FourierInput::Complex, _) => 1,
        (FourierInput::Half, false) => 2,
        (FourierInput::Real, true) => 3,
        (FourierInput::Half, true) => 4,
    };
    builder.constant("SOURCE", kind).constant("SOURCE_FACTORS", u32::from(source.factors.is_some()));
    let kind = match (sink.output, sink.packed) {
        (FourierOutput::Complex | FourierOutput::Half, false) => 0,
        (FourierOutput::Real, false) => 1,
        (FourierOutput::Power, false) => 2,
        (FourierOutput::Complex | FourierOutput::Half, true) => 3,
        (FourierOutput::Real, true) => 4,
        (FourierOutput::Power, true) => 5,
    };
    builder.constant("SINK", kind).constant("SINK_FACTORS", u32::from(sink.factors.is_some()));
    let table = kernel.table.unwrap_or(0);
    // The roots of the points, the rows and columns of matrices, and how often a row gives a result.
    let (pass, roots, shape, results) = match kernel.pass {
        FftPass::Whole if source.packed && sink.output != FourierOutput::Real => (0, table, [1, 1], n + 1),
        FftPass::Whole => (0, table, [1, 1], n.min(if sink.packed { n } else { sink.results })),
        FftPass::Columns { rows, columns } => (1, table, [rows, columns], rows),
        FftPass::Rows { rows, columns } => (2, table + rows, [rows, columns], columns),
    };
    builder.constant("PASS", pass);
    let sign = |conjugate: bool| if conjugate { -1.0 } else { 1.0 };
    let params = &mut builder.params;
    params.size("n", n).size("rows", rows).size("roots", roots).size("emits", results).size("results", sink.results);
    params.size("matrix_rows", shape[0]).size("matrix_columns", shape[1]);
    params.size("fine", table + shape[0] + shape[1]).size("coarse", table + shape[0] + shape[1] + FINE);
    // The roots of the length of packed lines follow those of its half.
    params.size("post", table + n).size("period", source.period);
    params.size("frames", source.frames).size("hop", source.hop).size("samples", source.samples);
    params.size("given", source.given);
    params.size("source_factors", source.factors.unwrap_or(0)).size("sink_factors", sink.factors.unwrap_or(0));
    params.float("source_sign_0", sign(source.conjugate[0])).float("source_sign_1", sign(source.conjugate[1]));
    params.float("sink_sign_0", sign(sink.conjugate[0])).float("sink_sign_1", sign(sink.conjugate[1]));
    params.float("scale", f32::from_bits(sink.scale));
    let window = if source.window { "load_window(params.window_offset + j)" } else { "1.0" };
    builder.code(&format!("fn window_at(j: u32) -> f32 {{ return {window}; }}"));
    let parts = include_str!("../../../assets/kernels/fft_parts.wgsl");
    if variant == Variant::Sums {
        let text = [parts, "\n", include_str!("../../../assets/kernels/fft_sums.wgsl")].concat();
        return builder.finish_threads(&text, rows * results, caps);
    }
    let radices = radices(n);
    let word = |first: usize| {
        let stages = radices.iter().skip(first).take(4).enumerate();
        stages.map(|(i, radix)| radix << (8 * i)).sum::<usize>()
    };
    builder.params.size("stages", radices.len()).size("radices_0", word(0)).size("radices_1", word(4));
    // Several short transforms share a workgroup.
    let group = (WHOLE / n).clamp(1, rows);
    builder.params.size("group", group);
    builder.constant("POINTS", WHOLE as u32);
    let text = [parts, "\n", include_str!("../../../assets/kernels/fft.wgsl")].concat();
    builder.finish_workgroups(&text, lanes(caps), rows.div_ceil(group), caps)
}
