//! Operators of the domain `com.microsoft` that exporters and onnxruntime's optimiser emit.

mod attention;
mod fused;
mod quantised;

use super::Operator;

/// The domain's name.
const DOMAIN: &str = "com.microsoft";

pub(super) const FAMILIES: [&[Operator]; 3] = [attention::OPERATORS, fused::OPERATORS, quantised::OPERATORS];
