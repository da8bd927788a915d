//! Maps ONNX operators to calls of the public ops, one file per family.

pub mod bounds;
pub mod call;
pub mod case;
pub mod cases;
pub mod compare;
pub mod control;
pub mod pins;
pub mod run;

mod attention;
mod einsum;
mod elementwise;
mod generate;
mod indexing;
mod norm;
mod plain;
mod quantise;
mod recurrent;
mod reduce;
mod resample;
mod shapes;
mod signal;
mod windows;

use call::{Call, Outputs, unsupported};

/// Records the operator of a case.
pub fn apply<'a>(call: &Call<'a>) -> Outputs<'a> {
    let families = [
        elementwise::apply,
        reduce::apply,
        norm::apply,
        windows::apply,
        resample::apply,
        shapes::apply,
        indexing::apply,
        generate::apply,
        attention::apply,
        quantise::apply,
        recurrent::apply,
        signal::apply,
        einsum::apply,
        plain::apply,
    ];
    for family in families {
        if let Some(outputs) = family(call) {
            return outputs;
        }
    }
    match call.case.op.as_str() {
        "MelWeightMatrix" => unsupported("the filters of ONNX begin and end at whole bins; the crate's are librosa's"),
        other => unsupported(format!("{other} is not among the crate's features")),
    }
}
