//! Operators with graphs inside: If, Loop, Scan and SequenceMap. Conditions and counts that the host knows are resolved
//! at once; others are read back.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::smallvec;

use super::call::{Stop, axis_index, failed};
use super::graph::{Graph, Node, ValueType};
use super::host::HostTensor;
use super::machine::{Frame, Machine, Role};
use super::value::{Origin, Value};
use crate::formats::onnx::ElementType;
use crate::ir::Shape;

/// A loop between two iterations.
#[derive(Clone, Debug)]
pub(super) struct Looping<'a> {
    pub limit: Option<i64>,
    pub iteration: i64,
    /// Number of values that an iteration hands to the next one.
    pub carried: usize,
    /// The values that each iteration gave, for each output that collects them.
    pub collected: Vec<Vec<Value<'a>>>,
}

/// A scan between two iterations.
#[derive(Clone, Debug)]
pub(super) struct Scanning<'a> {
    pub length: usize,
    pub iteration: usize,
    pub carried: usize,
    /// The inputs that are sliced, with their axis and whether the last slice comes first.
    pub scanned: Vec<(Value<'a>, usize, bool)>,
    pub collected: Vec<Vec<Value<'a>>>,
}

/// A map over sequences between two elements.
#[derive(Clone, Debug)]
pub(super) struct Mapping<'a> {
    pub length: usize,
    pub iteration: usize,
    pub inputs: Vec<Value<'a>>,
    pub collected: Vec<Vec<Value<'a>>>,
}

fn graph_of(node: &Node, name: &str) -> Result<Arc<Graph>, Stop> {
    node.graph(name).cloned().ok_or_else(|| Stop::Failed(format!("the graph \"{name}\" is missing")))
}

/// A truth value that the host must know. `i` is its place among the inputs or outputs to read back.
fn truth(value: &Value, i: usize) -> Result<bool, Stop> {
    match value {
        Value::Host(host) => match host.tensor.to_i64()?.as_slice() {
            [value] => Ok(*value != 0),
            values => failed(format!("a condition of {} values", values.len())),
        },
        Value::Device(..) => Err(Stop::Host(smallvec![i])),
        Value::Sequence(..) | Value::Nothing => failed("a condition that is no tensor"),
    }
}

impl<'a> Machine<'a> {
    pub(super) fn enter_if(&mut self, node: &Arc<Node>, inputs: &[Option<Value<'a>>]) -> Result<(), Stop> {
        let [Some(condition), ..] = inputs else { return failed("the condition is missing") };
        let branch = if truth(condition, 0)? { "then_branch" } else { "else_branch" };
        let frame = self.inner_frame(&graph_of(node, branch)?, Role::Branch, Vec::new())?;
        self.stack.push(frame);
        Ok(())
    }

    pub(super) fn enter_loop(&mut self, node: &Arc<Node>, inputs: &[Option<Value<'a>>]) -> Result<(), Stop> {
        let limit = match inputs.first() {
            Some(Some(Value::Host(host))) => match host.tensor.to_i64()?.as_slice() {
                [limit] => Some(*limit),
                _ => return failed("the number of iterations is not one number"),
            },
            Some(Some(Value::Device(..))) => return Err(Stop::Host(smallvec![0])),
            Some(Some(Value::Sequence(..))) => return failed("the number of iterations is a sequence"),
            Some(Some(Value::Nothing) | None) | None => None,
        };
        let goes_on = match inputs.get(1) {
            Some(Some(Value::Nothing)) | Some(None) | None => true,
            Some(Some(condition)) => truth(condition, 1)?,
        };
        let graph = graph_of(node, "body")?;
        let carried: Vec<Value<'a>> = inputs.iter().skip(2).flatten().cloned().collect();
        let Some(collects) = graph.outputs.len().checked_sub(1 + carried.len()) else {
            return failed("the body of the loop has too few outputs");
        };
        let state = Looping { limit, iteration: 0, carried: carried.len(), collected: vec![Vec::new(); collects] };
        if !goes_on || limit.is_some_and(|limit| limit <= 0) {
            return self.end_loop(node, &graph, state, carried);
        }
        self.iterate_loop(&graph, state, carried)
    }

    fn iterate_loop(&mut self, graph: &Arc<Graph>, state: Looping<'a>, carried: Vec<Value<'a>>) -> Result<(), Stop> {
        let iteration = HostTensor::from_i64(&[state.iteration], [])?;
        let condition = HostTensor::from_bools(&[true], [])?;
        let mut inputs = vec![Value::constant(iteration), Value::constant(condition)];
        inputs.extend(carried);
        let frame = self.inner_frame(graph, Role::Loop(state), inputs)?;
        self.stack.push(frame);
        Ok(())
    }

    fn end_loop(
        &mut self,
        node: &Arc<Node>,
        graph: &Graph,
        state: Looping<'a>,
        mut outputs: Vec<Value<'a>>,
    ) -> Result<(), Stop> {
        for (i, parts) in state.collected.iter().enumerate() {
            let port = graph.outputs.get(1 + state.carried + i);
            outputs.push(self.stack_values(parts, 0, port.and_then(|port| port.declared.as_ref()))?);
        }
        self.give(node, outputs.into_iter().map(Some).collect()).map_err(|error| Stop::Failed(error.to_string()))
    }

    pub(super) fn enter_scan(&mut self, node: &Arc<Node>, inputs: &[Option<Value<'a>>]) -> Result<(), Stop> {
        let graph = graph_of(node, "body")?;
        let scans = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(0);
        let Some(carried) = inputs.len().checked_sub(scans) else { return failed("there are too few inputs") };
        let all: Vec<Value<'a>> = inputs.iter().flatten().cloned().collect();
        if all.len() != inputs.len() || scans == 0 {
            return failed("an input is missing");
        }
        let axes = node.ints("scan_input_axes").unwrap_or_default();
        let backwards = node.ints("scan_input_directions").unwrap_or_default();
        let mut scanned = Vec::with_capacity(scans);
        let mut length = None;
        for (i, value) in all[carried..].iter().enumerate() {
            let shape = self.shape(value)?;
            let axis = axis_index(axes.get(i).copied().unwrap_or(0), shape.rank())?;
            if *length.get_or_insert(shape[axis]) != shape[axis] {
                return failed("the inputs to scan have different lengths");
            }
            scanned.push((value.clone(), axis, backwards.get(i) == Some(&1)));
        }
        let Some(collects) = graph.outputs.len().checked_sub(carried) else {
            return failed("the body of the scan has too few outputs");
        };
        let state = Scanning {
            length: length.unwrap_or(0),
            iteration: 0,
            carried,
            scanned,
            collected: vec![Vec::new(); collects],
        };
        self.iterate_scan(node, &graph, state, all[..carried].to_vec())
    }

    fn iterate_scan(
        &mut self,
        node: &Arc<Node>,
        graph: &Arc<Graph>,
        mut state: Scanning<'a>,
        carried: Vec<Value<'a>>,
    ) -> Result<(), Stop> {
        if state.iteration == state.length {
            let mut outputs = carried;
            let axes = node.ints("scan_output_axes").unwrap_or_default();
            let backwards = node.ints("scan_output_directions").unwrap_or_default();
            for (i, parts) in state.collected.iter_mut().enumerate() {
                if backwards.get(i) == Some(&1) {
                    parts.reverse();
                }
                let port = graph.outputs.get(state.carried + i);
                let declared = port.and_then(|port| port.declared.as_ref());
                outputs.push(self.stack_values(parts, axes.get(i).copied().unwrap_or(0), declared)?);
            }
            return self
                .give(node, outputs.into_iter().map(Some).collect())
                .map_err(|error| Stop::Failed(error.to_string()));
        }
        let mut inputs = carried;
        for (value, axis, backwards) in &state.scanned {
            let at = if *backwards { state.length - 1 - state.iteration } else { state.iteration };
            inputs.push(self.slice_at(value, *axis, at)?);
        }
        let frame = self.inner_frame(graph, Role::Scan(state), inputs)?;
        self.stack.push(frame);
        Ok(())
    }

    pub(super) fn enter_map(&mut self, node: &Arc<Node>, inputs: &[Option<Value<'a>>]) -> Result<(), Stop> {
        let graph = graph_of(node, "body")?;
        let inputs: Vec<Value<'a>> = inputs.iter().flatten().cloned().collect();
        let Some(Value::Sequence(first, _)) = inputs.first() else { return failed("the first input is no sequence") };
        let (length, collects) = (first.len(), graph.outputs.len());
        let state = Mapping { length, iteration: 0, inputs, collected: vec![Vec::new(); collects] };
        self.iterate_map(node, &graph, state)
    }

    fn iterate_map(&mut self, node: &Arc<Node>, graph: &Arc<Graph>, state: Mapping<'a>) -> Result<(), Stop> {
        if state.iteration == state.length {
            let outputs = state.collected.into_iter().enumerate().map(|(i, values)| {
                let declared = graph.outputs.get(i).and_then(|port| port.declared.as_ref());
                let element = values.first().and_then(Value::element).or_else(|| declared_element(declared));
                Some(Value::Sequence(Rc::new(values), element.unwrap_or(ElementType::Float32)))
            });
            return self.give(node, outputs.collect()).map_err(|error| Stop::Failed(error.to_string()));
        }
        let mut inputs = Vec::with_capacity(state.inputs.len());
        for input in &state.inputs {
            inputs.push(match input {
                Value::Sequence(values, _) => match values.get(state.iteration) {
                    Some(value) => value.clone(),
                    None => return failed("the sequences have different lengths"),
                },
                value => value.clone(),
            });
        }
        let frame = self.inner_frame(graph, Role::Map(state), inputs)?;
        self.stack.push(frame);
        Ok(())
    }

    /// Ends the graph on top of the stack with its outputs: gives them to the node, or begins the next iteration. If the
    /// host needs one of the outputs first, the stack stays as it is.
    pub(super) fn finish(&mut self, node: &Arc<Node>, mut outputs: Vec<Value<'a>>) -> Result<(), Stop> {
        let goes_on = match (self.stack.last().map(|frame| &frame.role), outputs.first()) {
            (Some(Role::Loop(_)), Some(condition)) => truth(condition, 0)?,
            (Some(Role::Loop(_)), None) => return failed("the body of the loop has no outputs"),
            _ => true,
        };
        let Some(Frame { graph, role, .. }) = self.stack.pop() else { return Ok(()) };
        let keep = |collected: &mut Vec<Vec<Value<'a>>>, values: Vec<Value<'a>>| {
            collected.iter_mut().zip(values).for_each(|(parts, value)| parts.push(value));
        };
        match role {
            Role::Main(_) => Ok(()),
            Role::Branch => self
                .give(node, outputs.into_iter().map(Some).collect())
                .map_err(|error| Stop::Failed(error.to_string())),
            Role::Loop(mut state) => {
                let mut carried = outputs.split_off(1);
                keep(&mut state.collected, carried.split_off(state.carried));
                state.iteration += 1;
                match goes_on && state.limit.is_none_or(|limit| state.iteration < limit) {
                    true => self.iterate_loop(&graph, state, carried),
                    false => self.end_loop(node, &graph, state, carried),
                }
            }
            Role::Scan(mut state) => {
                keep(&mut state.collected, outputs.split_off(state.carried));
                state.iteration += 1;
                self.iterate_scan(node, &graph, state, outputs)
            }
            Role::Map(mut state) => {
                keep(&mut state.collected, outputs);
                state.iteration += 1;
                self.iterate_map(node, &graph, state)
            }
        }
    }

    pub(super) fn shape(&self, value: &Value<'a>) -> Result<Shape, Stop> {
        match value {
            Value::Host(host) => Ok(host.tensor.shape().clone()),
            Value::Device(value, _) => Ok(self.ops.shape(*value)?),
            Value::Sequence(..) | Value::Nothing => failed("a value that is no tensor has no shape"),
        }
    }

    /// One index of an axis, without the axis.
    fn slice_at(&self, value: &Value<'a>, axis: usize, at: usize) -> Result<Value<'a>, Stop> {
        match value {
            Value::Device(value, element) => {
                let slice = self.ops.slice(*value, axis, at as isize, at as isize + 1)?;
                Ok(Value::Device(self.ops.squeeze(slice, axis)?, *element))
            }
            Value::Host(host) => {
                let shape = host.tensor.shape();
                let layout = crate::ir::Layout::contiguous(shape.clone()).slice(axis, at, 1, 1);
                let mut sizes = shape.to_vec();
                sizes.remove(axis);
                let positions = super::host_ops::positions(&layout);
                let part = host.tensor.take(Shape::from(sizes), positions.into_iter())?;
                Ok(Value::host(Arc::new(part), host.origin))
            }
            Value::Sequence(..) | Value::Nothing => failed("a value that is no tensor cannot be scanned"),
        }
    }

    /// The values of all iterations as one tensor with a new axis.
    fn stack_values(&self, parts: &[Value<'a>], axis: i64, declared: Option<&ValueType>) -> Result<Value<'a>, Stop> {
        let Some(first) = parts.first() else {
            // No iteration: the shape can only be what the model declares.
            let element = declared_element(declared).unwrap_or(ElementType::Float32);
            let mut sizes = vec![0];
            if let Some(ValueType::Tensor { shape: Some(shape), .. }) = declared {
                sizes.extend(shape.iter().map(|size| match size {
                    super::graph::Dimension::Fixed(size) => *size,
                    super::graph::Dimension::Symbol(_) => 0,
                }));
            }
            return Ok(Value::constant(HostTensor::from_bytes(element, sizes, &[])?));
        };
        let element = first.element().unwrap_or(ElementType::Float32);
        let rank = self.shape(first)?.rank();
        let axis = axis_index(axis, rank + 1)?;
        let hosts: Option<Vec<&Arc<HostTensor>>> = parts.iter().map(Value::as_host).collect();
        if let (Some(hosts), 0) = (hosts, axis) {
            let origin = parts.iter().fold(Origin::Constant, |origin, part| match part {
                Value::Host(host) => origin.max(host.origin),
                _ => Origin::Data,
            });
            let mut sizes = vec![hosts.len()];
            sizes.extend(hosts[0].shape().iter());
            if hosts.iter().any(|part| part.shape() != hosts[0].shape() || part.element() != element) {
                return failed("the iterations give values of different shapes");
            }
            let bytes: Vec<u8> = hosts.iter().flat_map(|part| part.bytes().iter().copied()).collect();
            return Ok(Value::host(Arc::new(HostTensor::from_bytes(element, sizes, &bytes)?), origin));
        }
        let mut values = Vec::with_capacity(parts.len());
        for part in parts {
            values.push(super::call::upload(self.ops, self.backend, part)?);
        }
        Ok(Value::Device(self.ops.stack(values, axis)?, element))
    }
}

fn declared_element(declared: Option<&ValueType>) -> Option<ElementType> {
    match declared {
        Some(ValueType::Tensor { element, .. }) => Some(*element),
        _ => None,
    }
}
