//! Recording a model: its inputs, and its outputs as values of the recording.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use bevy::ecs::entity::Entity;

use super::build::dependencies;
use super::call::{Stop, upload};
use super::error::OnnxRunError;
use super::graph::{Graph, Port, ValueType};
use super::host::HostTensor;
use super::machine::{Frame, Machine, Progress, Role, fail};
use super::model::{Loaded, OnnxModel};
use super::value::{Origin, Value};
use crate::error::{OpError, OpResult};
use crate::formats::onnx::ElementType;
use crate::image::{ImageLayout, ImageSettings};
use crate::ir::Backend;
use crate::onnx::graph::Dimension;
use crate::record::{TensorCommands, TensorExpression, TensorOperand, TensorValue};
use crate::tensor::TensorData;

/// One input of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OnnxInput<'a> {
    /// A tensor, a value of this recording, or an expression.
    Operand(TensorOperand<'a>),
    /// Host values. They stay on the host where an operator needs them there, such as the shape of a Reshape.
    Host(Arc<HostTensor>),
    /// Pixels `[height, width, 4]` of `u8`. They are converted as the input's declared shape asks for; see
    /// [`OnnxModel::image_settings`].
    Pixels(TensorOperand<'a>, Option<ImageSettings>),
    /// A list of tensors.
    Sequence(Vec<OnnxInput<'a>>, ElementType),
    /// An optional without a value.
    Nothing,
}

impl From<Entity> for OnnxInput<'_> {
    fn from(entity: Entity) -> Self {
        Self::Operand(entity.into())
    }
}

impl<'a> From<TensorValue<'a>> for OnnxInput<'a> {
    fn from(value: TensorValue<'a>) -> Self {
        Self::Operand(value.into())
    }
}

impl<'a> From<TensorExpression<'a>> for OnnxInput<'a> {
    fn from(expression: TensorExpression<'a>) -> Self {
        Self::Operand(expression.into())
    }
}

impl From<HostTensor> for OnnxInput<'_> {
    fn from(tensor: HostTensor) -> Self {
        Self::Host(Arc::new(tensor))
    }
}

impl From<Arc<HostTensor>> for OnnxInput<'_> {
    fn from(tensor: Arc<HostTensor>) -> Self {
        Self::Host(tensor)
    }
}

impl From<&TensorData> for OnnxInput<'_> {
    fn from(data: &TensorData) -> Self {
        Self::Host(Arc::new(HostTensor::own(data)))
    }
}

impl From<TensorData> for OnnxInput<'_> {
    fn from(data: TensorData) -> Self {
        (&data).into()
    }
}

/// The inputs of a run, by name or in order, and the outputs to compute.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// use bevy_tensor_compute::onnx::{HostTensor, OnnxInputs, OnnxModel};
///
/// fn encode(model: Single<&OnnxModel>, pixels: Entity, ops: TensorCommands) -> Result {
///     let ids = HostTensor::from_i64(&[101, 7592, 102], [1, 3])?;
///     let inputs = OnnxInputs::new().with("pixel_values", pixels).with("input_ids", ids).only(["logits"]);
///     let outputs = ops.run(&model, inputs)?;
///     let logits = outputs.value("logits")?;
/// #   drop(logits);
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct OnnxInputs<'a> {
    named: Vec<(String, OnnxInput<'a>)>,
    ordered: Vec<OnnxInput<'a>>,
    only: Option<Vec<String>>,
}

impl<'a> OnnxInputs<'a> {
    /// No inputs, and all outputs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an input by name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, input: impl Into<OnnxInput<'a>>) -> Self {
        self.named.push((name.into(), input.into()));
        self
    }

    /// Adds the next input in the order of the model.
    #[must_use]
    pub fn then(mut self, input: impl Into<OnnxInput<'a>>) -> Self {
        self.ordered.push(input.into());
        self
    }

    /// Adds pixels `[height, width, 4]` as an input by name, converted as the model's declared shape asks for.
    #[must_use]
    pub fn with_pixels(self, name: impl Into<String>, pixels: impl Into<TensorOperand<'a>>) -> Self {
        self.with(name, OnnxInput::Pixels(pixels.into(), None))
    }

    /// Computes only these outputs.
    #[must_use]
    pub fn only<T: Into<String>>(mut self, outputs: impl IntoIterator<Item = T>) -> Self {
        self.only = Some(outputs.into_iter().map(Into::into).collect());
        self
    }
}

impl<'a, T: Into<OnnxInput<'a>>, const N: usize> From<[(&str, T); N]> for OnnxInputs<'a> {
    fn from(inputs: [(&str, T); N]) -> Self {
        inputs.into_iter().fold(Self::new(), |all, (name, input)| all.with(name, input))
    }
}

impl<'a> From<OnnxInput<'a>> for OnnxInputs<'a> {
    fn from(input: OnnxInput<'a>) -> Self {
        Self::new().then(input)
    }
}

impl<'a> From<TensorValue<'a>> for OnnxInputs<'a> {
    fn from(input: TensorValue<'a>) -> Self {
        Self::new().then(input)
    }
}

impl From<Entity> for OnnxInputs<'_> {
    fn from(input: Entity) -> Self {
        Self::new().then(input)
    }
}

/// The outputs of a run, by name or in order.
pub struct OnnxOutputs<'a> {
    ops: &'a TensorCommands<'a, 'a>,
    backend: Backend,
    graph: Arc<Graph>,
    values: Vec<Option<Value<'a>>>,
}

impl core::fmt::Debug for OnnxOutputs<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names = self.graph.outputs.iter().map(|port| &port.name);
        f.debug_map().entries(names.zip(&self.values)).finish()
    }
}

impl<'a> OnnxOutputs<'a> {
    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.graph.outputs.iter().map(|port| port.name.as_str())
    }

    fn find(&self, name: &str) -> Result<(&Port, &Value<'a>), OnnxRunError> {
        let found = self.graph.outputs.iter().zip(&self.values).find(|(port, _)| port.name == name);
        match found {
            Some((port, Some(value))) => Ok((port, value)),
            _ => Err(unknown("output", name, &self.graph.outputs)),
        }
    }

    /// An output as a value of the recording.
    pub fn value(&self, name: &str) -> Result<TensorValue<'a>, OnnxRunError> {
        let (port, value) = self.find(name)?;
        self.uploaded(port, value)
    }

    /// An output by its place.
    pub fn at(&self, index: usize) -> Result<TensorValue<'a>, OnnxRunError> {
        match (self.graph.outputs.get(index), self.values.get(index)) {
            (Some(port), Some(Some(value))) => self.uploaded(port, value),
            _ => Err(unknown("output", &index.to_string(), &self.graph.outputs)),
        }
    }

    fn uploaded(&self, port: &Port, value: &Value<'a>) -> Result<TensorValue<'a>, OnnxRunError> {
        upload(self.ops, self.backend, value).map_err(|stop| match stop {
            Stop::Op(error) => OnnxRunError::Op(error),
            Stop::Unsupported(reason) | Stop::Failed(reason) => OnnxRunError::Op(OpError::Argument {
                op: "run",
                reason: format!("the output \"{}\": {reason}", port.name),
            }),
            Stop::Host(_) => OnnxRunError::NotReady,
        })
    }

    /// The element type that ONNX gives an output. On the device, 64-bit types have 32 bits.
    pub fn element(&self, name: &str) -> Option<ElementType> {
        self.find(name).ok().and_then(|(_, value)| value.element())
    }

    /// The values of an output that the host knows, such as constants and shapes.
    pub fn host(&self, name: &str) -> Option<Arc<HostTensor>> {
        self.find(name).ok().and_then(|(_, value)| value.as_host().cloned())
    }
}

pub(super) fn unknown(what: &'static str, name: &str, ports: &[Port]) -> OnnxRunError {
    let has = ports.iter().map(|port| format!("\"{}\"", port.name)).collect::<Vec<_>>().join(", ");
    OnnxRunError::UnknownName { what, name: name.to_owned(), has }
}

/// ONNX models.
impl TensorCommands<'_, '_> {
    /// Records a whole model and returns its outputs as values, so that it fuses with the ops around it.
    ///
    /// A model that needs values on the host that the device computes, for example for a data-dependent shape, is an
    /// [`OnnxRunError::NeedsStages`]; see [`run_staged`](Self::run_staged).
    pub fn run<'a>(
        &'a self,
        model: &OnnxModel,
        inputs: impl Into<OnnxInputs<'a>>,
    ) -> Result<OnnxOutputs<'a>, OnnxRunError> {
        let loaded = model.loaded()?;
        let mut machine = start(self, &loaded, inputs.into())?;
        match machine.run()? {
            Progress::Done(values) => {
                Ok(OnnxOutputs { ops: self, backend: machine.backend, graph: loaded.graph.graph.clone(), values })
            }
            Progress::Waits { node, .. } => Err(fail(&node, Stop::Host(Default::default()))),
        }
    }
}

/// A run before its first node.
pub(super) fn start<'a>(
    ops: &'a TensorCommands<'_, '_>,
    loaded: &Loaded,
    inputs: OnnxInputs<'a>,
) -> Result<Machine<'a>, OnnxRunError> {
    let graph = &loaded.graph.graph;
    let needed = match &inputs.only {
        Some(outputs) => Some(Rc::new(needed_nodes(graph, outputs)?)),
        None => None,
    };
    let backend = ops.model_backend(loaded.entity);
    let mut machine = Machine { ops, backend, weights: loaded.weights.clone(), stack: Vec::new() };
    let mut frame: Frame<'a> = machine.frame(graph, Role::Main(needed));
    let OnnxInputs { named, ordered, .. } = inputs;
    // Inputs with a default are not counted by order: files before IR version 4 list all weights as inputs.
    let open: Vec<&Port> = graph.inputs.iter().filter(|port| frame.values[port.value.index()].is_none()).collect();
    if ordered.len() > open.len() {
        return Err(unknown("input", &format!("number {}", ordered.len()), &graph.inputs));
    }
    let mut given: Vec<(&Port, OnnxInput<'a>)> = open.into_iter().zip(ordered).collect();
    for (name, input) in named {
        match graph.inputs.iter().find(|port| port.name == name) {
            Some(port) => given.push((port, input)),
            None => return Err(unknown("input", &name, &graph.inputs)),
        }
    }
    for (port, input) in given {
        let value = value_of(ops, port, input)?;
        check_type(port, &value)?;
        frame.values[port.value.index()] = Some(value);
    }
    for port in &graph.inputs {
        let value = &mut frame.values[port.value.index()];
        if value.is_none() && is_optional(port) {
            *value = Some(Value::Nothing);
        }
        let unused = graph.last_use[port.value.index()] == 0
            && !graph.nodes.first().is_some_and(|node| dependencies(node).any(|id| id == port.value));
        if value.is_none() && !unused {
            let declared = port.declared.as_ref().map_or("a value".to_owned(), ValueType::to_string);
            return Err(OnnxRunError::MissingInput { name: port.name.clone(), declared });
        }
    }
    machine.stack.push(frame);
    Ok(machine)
}

fn is_optional(port: &Port) -> bool {
    matches!(port.declared, Some(ValueType::Optional(_)))
}

/// The nodes that some outputs depend on.
fn needed_nodes(graph: &Graph, outputs: &[String]) -> Result<HashSet<usize>, OnnxRunError> {
    let mut used = vec![false; graph.names.len()];
    for name in outputs {
        let Some(port) = graph.outputs.iter().find(|port| port.name == *name) else {
            return Err(unknown("output", name, &graph.outputs));
        };
        used[port.value.index()] = true;
    }
    let mut needed = HashSet::new();
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().flatten().any(|value| used[value.index()]) {
            dependencies(node).for_each(|value| used[value.index()] = true);
            needed.insert(index);
        }
    }
    Ok(needed)
}

fn value_of<'a>(ops: &'a TensorCommands<'_, '_>, port: &Port, input: OnnxInput<'a>) -> Result<Value<'a>, OnnxRunError> {
    let wrap = |result: OpResult<TensorValue<'a>>| {
        result.map_err(|error| OnnxRunError::Input { name: port.name.clone(), error: Box::new(error) })
    };
    Ok(match input {
        OnnxInput::Host(tensor) => Value::host(tensor, Origin::Data),
        OnnxInput::Operand(operand) => {
            let value = wrap(ops.value(operand))?;
            let dtype = ops.dtype(value)?;
            // Device types are narrower than ONNX's: an i32 tensor is the value of an int64 input.
            let declared = match tensor_type(port.declared.as_ref()) {
                Some(element) if element.device_type() == Some(dtype) => element,
                _ => ElementType::of_device(dtype),
            };
            Value::Device(value, declared)
        }
        OnnxInput::Pixels(pixels, settings) => {
            let settings = settings.or_else(|| image_settings(port)).unwrap_or_default();
            Value::Device(wrap(ops.image_input(pixels, &settings))?, ElementType::Float32)
        }
        OnnxInput::Sequence(items, element) => {
            let values = items.into_iter().map(|item| value_of(ops, port, item));
            Value::Sequence(Rc::new(values.collect::<Result<_, _>>()?), element)
        }
        OnnxInput::Nothing => Value::Nothing,
    })
}

/// The element type of a declared tensor, or of the tensors of a sequence or optional.
fn tensor_type(declared: Option<&ValueType>) -> Option<ElementType> {
    match declared? {
        ValueType::Tensor { element, .. } => Some(*element),
        ValueType::Sequence(of) | ValueType::Optional(of) => tensor_type(Some(of)),
        ValueType::Other(_) => None,
    }
}

/// Refuses an input whose element type is not the declared one. Declared shapes are not checked: those of real files can
/// be wrong.
fn check_type(port: &Port, value: &Value) -> Result<(), OnnxRunError> {
    let Some(declared) = &port.declared else { return Ok(()) };
    let fits = match (tensor_type(Some(declared)), value.element()) {
        (Some(declared), Some(given)) => declared == given,
        (None, _) | (_, None) => true,
    };
    if fits {
        return Ok(());
    }
    let given = value.element().map_or("nothing".to_owned(), |element| element.to_string());
    Err(OnnxRunError::InputType { name: port.name.clone(), given, declared: declared.clone() })
}

/// The conversion of pixels that a declared shape asks for: `[n, 3, h, w]` or `[n, h, w, 3]`.
pub(super) fn image_settings(port: &Port) -> Option<ImageSettings> {
    let Some(ValueType::Tensor { shape: Some(shape), .. }) = &port.declared else { return None };
    let [_, a, b, c] = &shape[..] else { return None };
    let three = |size: &Dimension| *size == Dimension::Fixed(3);
    let (layout, height, width) = match (three(a), three(c)) {
        (true, _) => (ImageLayout::Nchw, b, c),
        (false, true) => (ImageLayout::Nhwc, a, b),
        (false, false) => return None,
    };
    let size = match (height, width) {
        (Dimension::Fixed(height), Dimension::Fixed(width)) => Some([*height, *width]),
        _ => None,
    };
    Some(ImageSettings { layout, size, ..ImageSettings::default() })
}
