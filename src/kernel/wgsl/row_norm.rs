//! Normalisation of rows: layer norm, RMS norm, unit length.

use super::Builder;
use super::reduce::finish_rows;
use super::scalar::Library;
use crate::kernel::{Caps, Launch, RowNormKernel};
use crate::plan::Step;
use crate::record::NormKind;
use crate::tensor::Class;

/// The launch of a normalisation.
pub(super) fn lower(step: &Step, kernel: &RowNormKernel, caps: &Caps) -> Option<Launch> {
    if kernel.rows == 0 || kernel.n == 0 {
        return None;
    }
    let mut builder = Builder::new(step, "row_norm");
    builder.params.size("rows", kernel.rows).size("n", kernel.n);
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
    let mut library = Library::default();
    library.need("min_max");
    builder.code(&library.text());
    for (name, given, without) in [("weight", kernel.weight, "1.0"), ("bias", kernel.bias, "0.0")] {
        let value = if given { format!("load_{name}(params.{name}_offset + p)") } else { without.to_owned() };
        builder.code(&format!("fn {name}_at(p: u32) -> f32 {{ return {value}; }}"));
    }
    let body = include_str!("../../../assets/kernels/row_norm.wgsl");
    Some(finish_rows(builder, body, [kernel.rows, kernel.n, 1], caps))
}
