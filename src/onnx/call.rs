//! What an operator sees of a node while a graph is recorded: its inputs, its attributes and the ops to call.

use core::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use super::graph::Node;
use super::host::{HostError, HostTensor};
use super::value::{Origin, Value};
use crate::error::OpError;
use crate::formats::onnx::ElementType;
use crate::ir::{Backend, DType, Shape};
use crate::record::{TensorCommands, TensorValue};

/// Why an operator gave no values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stop {
    /// The operator does not support these types, shapes or settings.
    Unsupported(String),
    /// The model or its inputs are not valid.
    Failed(String),
    /// An op of the crate refused its operands.
    Op(OpError),
    /// These inputs must be known on the host. The run goes on in a later frame, after they were read back.
    Host(SmallVec<[usize; 4]>),
}

impl From<OpError> for Stop {
    fn from(error: OpError) -> Self {
        Self::Op(error)
    }
}

impl From<HostError> for Stop {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Range { .. } | HostError::Type { .. } => Self::Unsupported(error.to_string()),
            HostError::Length { .. } => Self::Failed(error.to_string()),
        }
    }
}

/// Refuses what an operator does not support.
pub(crate) fn unsupported<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Unsupported(reason.into()))
}

/// Refuses what is not valid.
pub(crate) fn failed<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Failed(reason.into()))
}

/// The outputs in operator order. `None` for outputs that the node does not name.
pub(crate) type Outputs<'a> = Result<Vec<Option<Value<'a>>>, Stop>;

/// One node being recorded. Attributes are methods of [`Node`]: `call.int("axis", 0)`.
pub(crate) struct Call<'a> {
    /// The ops to record with.
    pub ops: &'a TensorCommands<'a, 'a>,
    pub(super) node: Arc<Node>,
    pub(super) inputs: SmallVec<[Option<Value<'a>>; 6]>,
    /// Where the model's weights are.
    pub(super) backend: Backend,
}

impl Deref for Call<'_> {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.node
    }
}

impl<'a> Call<'a> {
    /// The number of inputs that the node lists, absent ones included.
    pub(crate) fn count(&self) -> usize {
        self.inputs.len()
    }

    /// Whether an input is given.
    pub(crate) fn has(&self, i: usize) -> bool {
        self.value(i).is_some()
    }

    /// An input that may be absent, wherever it is.
    pub(crate) fn value(&self, i: usize) -> Option<&Value<'a>> {
        self.inputs.get(i).and_then(Option::as_ref)
    }

    /// An input that must be given, wherever it is.
    pub(crate) fn need(&self, i: usize) -> Result<&Value<'a>, Stop> {
        self.value(i).ok_or_else(|| Stop::Failed(format!("input {i} is missing")))
    }

    /// An input that must be given, on the device.
    pub(crate) fn x(&self, i: usize) -> Result<TensorValue<'a>, Stop> {
        self.upload(self.need(i)?)
    }

    /// An input that may be absent, on the device.
    pub(crate) fn maybe(&self, i: usize) -> Result<Option<TensorValue<'a>>, Stop> {
        self.value(i).map(|value| self.upload(value)).transpose()
    }

    /// An input on the device, cast to a type of the crate. Integers that were 64-bit are already 32-bit there.
    pub(crate) fn x_as(&self, i: usize, dtype: DType) -> Result<TensorValue<'a>, Stop> {
        Ok(self.ops.cast(self.x(i)?, dtype)?)
    }

    /// A value on the device. Host values are uploaded when they are first needed.
    pub(crate) fn upload(&self, value: &Value<'a>) -> Result<TensorValue<'a>, Stop> {
        upload(self.ops, self.backend, value)
    }

    /// The shape of an input. Rank 0 if the input is absent.
    pub(crate) fn shape_of(&self, i: usize) -> Result<Shape, Stop> {
        match self.value(i) {
            Some(value) => self.shape(value),
            None => Ok(Shape::default()),
        }
    }

    /// The shape of a value.
    pub(crate) fn shape(&self, value: &Value<'a>) -> Result<Shape, Stop> {
        match value {
            Value::Host(host) => Ok(host.tensor.shape().clone()),
            Value::Device(value, _) => Ok(self.ops.shape(*value)?),
            Value::Sequence(..) => failed("a sequence has no shape"),
            Value::Nothing => failed("an empty optional has no shape"),
        }
    }

    /// The element type of an input.
    pub(crate) fn type_of(&self, i: usize) -> Result<ElementType, Stop> {
        self.need(i)?.element().ok_or_else(|| Stop::Failed(format!("input {i} is an empty optional")))
    }

    /// The type that an input has on the device.
    pub(crate) fn dtype_of(&self, i: usize) -> Result<DType, Stop> {
        device_type(self.type_of(i)?)
    }

    /// An input that must be known on the host. `None` if it is absent.
    pub(crate) fn host(&self, i: usize) -> Result<Option<&Arc<HostTensor>>, Stop> {
        match self.value(i) {
            None | Some(Value::Nothing) => Ok(None),
            Some(Value::Host(host)) => Ok(Some(&host.tensor)),
            Some(Value::Device(..)) => Err(Stop::Host(SmallVec::from_slice(&[i]))),
            Some(Value::Sequence(..)) => failed(format!("input {i} is a sequence")),
        }
    }

    /// Asks for several inputs on the host at once, so that they are read back together.
    pub(crate) fn need_host(&self, inputs: &[usize]) -> Result<(), Stop> {
        let missing: SmallVec<[usize; 4]> =
            inputs.iter().copied().filter(|&i| matches!(self.value(i), Some(Value::Device(..)))).collect();
        if missing.is_empty() { Ok(()) } else { Err(Stop::Host(missing)) }
    }

    /// The integers of an input that must be known on the host. `None` if the input is absent.
    pub(crate) fn host_ints(&self, i: usize) -> Result<Option<Vec<i64>>, Stop> {
        self.host(i)?.map(|host| host.to_i64()).transpose().map_err(Stop::from)
    }

    /// The numbers of an input that must be known on the host. `None` if the input is absent.
    pub(crate) fn host_floats(&self, i: usize) -> Result<Option<Vec<f64>>, Stop> {
        self.host(i)?.map(|host| host.to_f64()).transpose().map_err(Stop::from)
    }

    /// The first number of an input that must be known on the host. `None` if the input is absent or empty.
    pub(crate) fn host_number(&self, i: usize) -> Result<Option<f64>, Stop> {
        Ok(self.host_floats(i)?.and_then(|numbers| numbers.first().copied()))
    }

    /// Settings that older versions of an operator have as an attribute and newer ones as an input.
    pub(crate) fn ints_of(&self, attribute: &str, i: usize) -> Result<Option<Vec<i64>>, Stop> {
        match self.ints(attribute) {
            Some(values) => Ok(Some(values.to_vec())),
            None => self.host_ints(i),
        }
    }

    /// Where the model's weights are.
    pub(crate) fn backend(&self) -> Backend {
        self.backend
    }

    /// A number as a rank-0 value on the model's backend.
    pub(crate) fn number(&self, value: f64, dtype: DType) -> TensorValue<'a> {
        self.ops.number_value(self.backend, value, dtype)
    }

    /// A value filled with one number, on the model's backend.
    pub(crate) fn full(&self, shape: impl Into<Shape>, value: f64, dtype: DType) -> Result<TensorValue<'a>, Stop> {
        Ok(self.ops.broadcast_to(self.number(value, dtype), shape)?)
    }

    /// Host values on the model's backend, as a part of the plan.
    pub(crate) fn constant(&self, tensor: HostTensor) -> Result<TensorValue<'a>, Stop> {
        self.upload(&Value::constant(tensor))
    }

    /// An output with the element type of an input.
    pub(crate) fn like(&self, i: usize, value: TensorValue<'a>) -> Outputs<'a> {
        Ok(vec![Some(Value::Device(value, self.type_of(i)?))])
    }
}

/// A value on the device. Host values are uploaded when they are first needed.
pub(super) fn upload<'a>(
    ops: &'a TensorCommands<'a, 'a>,
    backend: Backend,
    value: &Value<'a>,
) -> Result<TensorValue<'a>, Stop> {
    match value {
        Value::Device(value, _) => Ok(*value),
        Value::Host(host) => {
            if let Some(value) = host.uploaded.get() {
                return Ok(*value);
            }
            let value = match host.weight {
                Some(weight) => ops.value(weight)?,
                None => ops.host_value(backend, &host.tensor.to_data()?, host.origin == Origin::Constant)?,
            };
            Ok(*host.uploaded.get_or_init(|| value))
        }
        Value::Sequence(..) => failed("a sequence where a tensor is needed"),
        Value::Nothing => failed("an empty optional where a tensor is needed"),
    }
}

/// The only output, of an element type.
pub(crate) fn one<'a>(value: TensorValue<'a>, element: ElementType) -> Outputs<'a> {
    Ok(vec![Some(Value::Device(value, element))])
}

/// The type that an element type has on the device.
pub(crate) fn device_type(element: ElementType) -> Result<DType, Stop> {
    element.device_type().ok_or_else(|| Stop::Unsupported(format!("{element} has no device type")))
}

/// Numbers as the crate's ops take them.
pub(crate) fn signed(sizes: &[i64]) -> Vec<isize> {
    sizes.iter().map(|&n| n.clamp(isize::MIN as i64, isize::MAX as i64) as isize).collect()
}

/// Sizes as the crate's ops take them. Negative sizes are refused.
pub(crate) fn sizes(sizes: &[i64]) -> Result<Vec<usize>, Stop> {
    sizes.iter().map(|&n| usize::try_from(n).map_err(|_| Stop::Failed(format!("the size {n} is negative")))).collect()
}

/// An axis as an index into `rank` axes.
pub(crate) fn axis_index(axis: i64, rank: usize) -> Result<usize, Stop> {
    let index = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(index)
        .ok()
        .filter(|&index| index < rank)
        .ok_or_else(|| Stop::Failed(format!("axis {axis} does not exist in {rank} axes")))
}
