//! A case as seen by the operator mappings: its operands, its attributes and the ops to call.

use bevy::prelude::Entity;
use bevy_tensor_compute::prelude::*;

use super::case::{Case, Host, device_type, onnx_type};

/// Why a case produced no values.
#[derive(Debug)]
pub enum Stop {
    Unsupported(String),
    Failed(String),
}

impl From<OpError> for Stop {
    fn from(error: OpError) -> Self {
        Stop::Failed(error.to_string())
    }
}

pub fn unsupported<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Unsupported(reason.into()))
}

/// The outputs in operator order. `None` for outputs that are not requested.
pub type Outputs<'a> = Result<Vec<Option<TensorValue<'a>>>, Stop>;

pub fn one(value: OpResult<TensorValue<'_>>) -> Outputs<'_> {
    Ok(vec![Some(value?)])
}

/// One case being recorded.
pub struct Call<'a> {
    pub ops: &'a TensorCommands<'a, 'a>,
    pub case: &'a Case,
    pub tensors: Vec<Option<Result<Entity, String>>>,
}

impl<'a> Call<'a> {
    /// A required operand.
    pub fn x(&self, i: usize) -> Result<TensorOperand<'a>, Stop> {
        self.maybe(i)?.ok_or_else(|| Stop::Failed(format!("input {i} is missing")))
    }

    /// An optional operand.
    pub fn maybe(&self, i: usize) -> Result<Option<TensorOperand<'a>>, Stop> {
        match self.tensors.get(i) {
            None | Some(None) => Ok(None),
            Some(Some(Ok(entity))) => Ok(Some((*entity).into())),
            Some(Some(Err(reason))) => unsupported(reason.clone()),
        }
    }

    /// Number of inputs of the node.
    pub fn count(&self) -> usize {
        self.case.inputs.len()
    }

    pub fn has(&self, i: usize) -> bool {
        self.host(i).is_some()
    }

    /// The stored value of an input, for operands that are settings in this crate.
    pub fn host(&self, i: usize) -> Option<&Host> {
        self.case.inputs.get(i)?.as_ref()
    }

    pub fn host_ints(&self, i: usize) -> Option<Vec<i64>> {
        self.host(i).map(Host::ints)
    }

    /// The only number in an input.
    pub fn host_number(&self, i: usize) -> Option<f64> {
        self.host(i)?.floats().first().copied()
    }

    /// Settings that are an attribute in older versions of an operator and an input in newer ones.
    pub fn ints_of(&self, attr: &str, i: usize) -> Option<Vec<i64>> {
        self.case.ints(attr).or_else(|| self.host_ints(i))
    }

    pub fn shape_of(&self, i: usize) -> Vec<usize> {
        self.host(i).map(|host| host.shape.clone()).unwrap_or_default()
    }

    pub fn dtype_of(&self, i: usize) -> Result<DType, Stop> {
        let host = self.host(i).ok_or_else(|| Stop::Failed(format!("input {i} is missing")))?;
        host.dtype().map_err(Stop::Unsupported)
    }

    /// ONNX's name of an input's type.
    pub fn onnx_of(&self, i: usize) -> Option<&str> {
        self.host(i).map(|host| host.onnx.as_str())
    }

    /// Sums of integers have 32 bits here and the operand's type in ONNX. Any other type must be right as it is.
    pub fn narrowed(&self, value: TensorValue<'a>, to: DType) -> Outputs<'a> {
        if to.is_integer() { one(self.ops.cast(value, to)) } else { one(Ok(value)) }
    }

    /// The type an output is expected to have, for operators whose type is that of a tensor attribute: cases store
    /// these as plain numbers.
    pub fn out_type(&self, i: usize) -> Result<DType, Stop> {
        let host = self.case.outputs.get(i).and_then(Option::as_ref);
        let host = host.ok_or_else(|| Stop::Failed(format!("output {i} is missing")))?;
        device_type(&host.onnx).map_err(Stop::Unsupported)
    }

    /// A type that an attribute names by its number.
    pub fn type_attribute(&self, attr: &str) -> Result<Option<DType>, Stop> {
        match self.case.int(attr, 0) {
            0 => Ok(None),
            number => device_type(onnx_type(number)).map(Some).map_err(Stop::Unsupported),
        }
    }

    pub fn wants(&self, i: usize) -> bool {
        self.case.outputs.get(i).is_some_and(Option::is_some)
    }

    /// Whether an input may have no axes: its file does not tell. The rank of the output decides.
    pub fn perhaps_scalar(&self, i: usize) -> bool {
        self.host(i).is_some_and(|host| host.perhaps_scalar)
    }

    /// The rank that an output has in the file. Only to interpret files that do not tell which values have no axes.
    pub fn out_rank(&self, i: usize) -> usize {
        self.case.outputs.get(i).and_then(Option::as_ref).map_or(0, |host| host.shape.len())
    }
}

pub fn signed(sizes: &[i64]) -> Vec<isize> {
    sizes.iter().map(|&n| n as isize).collect()
}

pub fn sizes(sizes: &[i64]) -> Vec<usize> {
    sizes.iter().map(|&n| n.max(0) as usize).collect()
}

/// An axis as an index into `rank` axes.
pub fn index(axis: i64, rank: usize) -> usize {
    (if axis < 0 { axis + rank as i64 } else { axis }).max(0) as usize
}
