//! Normalisation of rows: layer norm, RMS norm, unit length.

use super::Builder;
use super::rows::Rows;
use crate::ir::{Class, NormKind};
use crate::kernel::{Caps, Launch, RowNormKernel, Step, Variants, choose};

fn rows(kernel: &RowNormKernel) -> Rows {
    Rows { rows: kernel.rows, n: kernel.n, inner: 1, fields: &["count", "mean", "squares"] }
}

/// Who may work on a normalisation on this device, the default first.
pub(in crate::kernel) fn variants(kernel: &RowNormKernel, caps: &Caps) -> Variants {
    rows(kernel).variants(caps)
}

/// The launch of a normalisation.
pub(super) fn lower(step: &Step, kernel: &RowNormKernel, caps: &Caps) -> Option<Launch> {
    if kernel.rows == 0 || kernel.n == 0 {
        return None;
    }
    let rows = rows(kernel);
    // Every row has the same weights, so only where they begin matters.
    let begins = |input: usize| step.inputs.get(input).is_some_and(|o| o.layout.offset.is_multiple_of(4));
    let quads = [
        ("x", rows.aligned(&step.inputs[0])),
        ("weight", begins(1)),
        ("bias", begins(1 + usize::from(kernel.weight))),
        ("y", rows.aligned(&step.outputs[0])),
    ];
    let mut builder = Builder::with_quads(step, "row_norm", &quads, caps);
    builder.alias("T", "f32");
    match step.scalars.first() {
        Some(&epsilon) => builder.params.scalar("epsilon", Class::Float, epsilon),
        None => builder.params.float("epsilon", 0.0),
    };
    let kind = match kernel.kind {
        NormKind::Layer => 0,
        NormKind::Rms => 1,
        NormKind::L2 => 2,
    };
    builder.constant("KIND", kind);
    builder.need("min_max");
    for (name, given, without) in [("weight", kernel.weight, "1.0"), ("bias", kernel.bias, "0.0")] {
        let (one, four) = match given {
            true => {
                (format!("load_{name}(params.{name}_offset + p)"), format!("load_{name}4(params.{name}_offset + p)"))
            }
            false => (without.to_owned(), format!("vec4<f32>({without})")),
        };
        builder.code(&format!("fn {name}_at(p: u32) -> f32 {{ return {one}; }}"));
        builder.code(&format!("fn {name}4_at(p: u32) -> vec4<f32> {{ return {four}; }}"));
    }
    rows.loads(&mut builder);
    rows.stores(&mut builder);
    let variant = choose(&rows.variants(caps), caps)?;
    Some(rows.finish(builder, variant, include_str!("../../../assets/kernels/row_norm.wgsl"), caps))
}
