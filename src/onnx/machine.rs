//! Runs a graph node by node. Graphs inside of nodes are frames on a stack of its own, so that nothing recurses and a
//! run can be interrupted at any node.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use bevy::ecs::entity::Entity;
use smallvec::SmallVec;

use super::call::{Call, Stop};
use super::control::{Looping, Mapping, Scanning};
use super::error::{NodeError, OnnxRunError};
use super::graph::{Graph, Node, ValueId};
use super::host::HostTensor;
use super::host_ops::HostCall;
use super::operators::Control;
use super::value::{Origin, Value};
use crate::ir::Backend;
use crate::record::TensorCommands;

/// The largest number of nodes that one recording runs. A loop that does not end stops here.
const MAX_STEPS: usize = 1 << 18;

/// Values from inputs of a model with more elements than this run on the device, also integers.
const MAX_HOST_DATA: usize = 1 << 12;

/// The list of inputs that a node needs on the host.
pub(super) type Needs = SmallVec<[usize; 4]>;

/// A graph being run.
#[derive(Clone, Debug)]
pub(super) struct Frame<'a> {
    pub graph: Arc<Graph>,
    pub values: Vec<Option<Value<'a>>>,
    /// The next node.
    pub next: usize,
    pub role: Role<'a>,
}

/// What a graph is run for.
#[derive(Clone, Debug)]
pub(super) enum Role<'a> {
    /// The model itself, and which nodes are needed. All, if there is no list.
    Main(Option<Rc<HashSet<usize>>>),
    Branch,
    Loop(Looping<'a>),
    Scan(Scanning<'a>),
    Map(Mapping<'a>),
}

/// Where a run has come to.
pub(super) enum Progress<'a> {
    /// The outputs of the model.
    Done(Vec<Option<Value<'a>>>),
    /// Values that the host needs, by frame, and the node that needs them.
    Waits { frame: usize, values: Vec<ValueId>, node: Arc<Node> },
}

/// A run.
pub(super) struct Machine<'a> {
    pub ops: &'a TensorCommands<'a, 'a>,
    pub backend: Backend,
    /// The tensors of the model that hold its weights.
    pub weights: Arc<[Entity]>,
    pub stack: Vec<Frame<'a>>,
}

impl<'a> Machine<'a> {
    /// A frame of a graph with its constants. The caller fills in inputs and captures.
    pub(super) fn frame(&self, graph: &Arc<Graph>, role: Role<'a>) -> Frame<'a> {
        let mut values = vec![None; graph.names.len()];
        for constant in &graph.constants {
            let weight = constant.weight.and_then(|index| self.weights.get(index as usize).copied());
            values[constant.value.index()] = Some(Value::weight(constant.tensor.clone(), weight));
        }
        Frame { graph: graph.clone(), values, next: 0, role }
    }

    /// A frame of a graph inside of the graph that runs now.
    pub(super) fn inner_frame(
        &self,
        graph: &Arc<Graph>,
        role: Role<'a>,
        inputs: Vec<Value<'a>>,
    ) -> Result<Frame<'a>, Stop> {
        if graph.inputs.len() != inputs.len() {
            return Err(Stop::Failed(format!(
                "the graph inside takes {} values but is given {}",
                graph.inputs.len(),
                inputs.len()
            )));
        }
        let mut frame = self.frame(graph, role);
        if let Some(outer) = self.stack.last() {
            for (from, to) in &graph.captures {
                frame.values[to.index()] = outer.values[from.index()].clone();
            }
        }
        for (port, value) in graph.inputs.iter().zip(inputs) {
            frame.values[port.value.index()] = Some(value);
        }
        Ok(frame)
    }

    /// Runs until the model is done or the host needs a value of the device.
    pub(super) fn run(&mut self) -> Result<Progress<'a>, OnnxRunError> {
        for _ in 0..MAX_STEPS {
            let Some(depth) = self.stack.len().checked_sub(1) else { return Ok(Progress::Done(Vec::new())) };
            let frame = &mut self.stack[depth];
            let Some(node) = frame.graph.nodes.get(frame.next).cloned() else {
                if let Some(progress) = self.leave()? {
                    return Ok(progress);
                }
                continue;
            };
            if let Role::Main(Some(needed)) = &frame.role
                && !needed.contains(&frame.next)
            {
                frame.next += 1;
                continue;
            }
            let inputs: SmallVec<[Option<Value<'a>>; 6]> =
                node.inputs.iter().map(|input| input.and_then(|id| frame.values[id.index()].clone())).collect();
            if let Some(missing) =
                node.inputs.iter().zip(&inputs).position(|(id, value)| id.is_some() && value.is_none())
            {
                return Err(fail(&node, Stop::Failed(format!("input {missing} has no value"))));
            }
            let result = match node.operator.control {
                Some(control) => self.enter(control, &node, inputs).map(|()| None),
                None => self.compute(&node, inputs).map(Some),
            };
            match result {
                Ok(Some(outputs)) => {
                    node.note(self.ops, &outputs);
                    self.give(&node, outputs)?;
                }
                Ok(None) => {}
                Err(Stop::Host(needs)) => {
                    let values = needs.iter().filter_map(|&i| node.inputs.get(i).copied().flatten()).collect();
                    return Ok(Progress::Waits { frame: depth, values, node });
                }
                Err(stop) => return Err(fail(&node, stop)),
            }
        }
        Err(OnnxRunError::TooLong { limit: MAX_STEPS })
    }

    /// Sets the outputs of the node that ran and goes on to the next one.
    pub(super) fn give(&mut self, node: &Node, outputs: Vec<Option<Value<'a>>>) -> Result<(), OnnxRunError> {
        let Some(frame) = self.stack.last_mut() else { return Ok(()) };
        let mut outputs = outputs.into_iter();
        for (i, id) in node.outputs.iter().enumerate() {
            let value = outputs.next().flatten();
            if let Some(id) = id {
                if value.is_none() {
                    return Err(fail(node, Stop::Unsupported(format!("output {i} is not computed"))));
                }
                frame.values[id.index()] = value;
            }
        }
        frame.next += 1;
        Ok(())
    }

    /// Runs a node on the host or records it.
    fn compute(
        &self,
        node: &Arc<Node>,
        mut inputs: SmallVec<[Option<Value<'a>>; 6]>,
    ) -> Result<Vec<Option<Value<'a>>>, Stop> {
        let operator = node.operator;
        if let Some(host) = node.host {
            let wanted = |value: &Value| match value {
                Value::Host(host) => {
                    let small = host.tensor.elements() <= MAX_HOST_DATA;
                    let device = host.tensor.element().is_float() && host.origin == Origin::Data;
                    operator.record.is_none() || (host.weight.is_none() && small && !device)
                }
                Value::Device(..) | Value::Sequence(..) | Value::Nothing => false,
            };
            if inputs.iter().flatten().all(wanted) {
                match evaluate(node, host, &inputs) {
                    // What the host cannot compute, the device may.
                    Err(Stop::Unsupported(_)) if operator.record.is_some() => {}
                    result => return result,
                }
            }
        }
        let refused = match operator.record {
            Some(record) => {
                let call = Call { ops: self.ops, node: node.clone(), inputs, backend: self.backend };
                // Timings and reports name the operator of the model.
                self.ops.set_label(Some(operator.name));
                self.ops.set_node(Some(node.label()));
                let recorded = record(&call);
                self.ops.set_label(None);
                self.ops.set_node(None);
                match (recorded, node.host) {
                    (Err(Stop::Unsupported(reason)), Some(host)) => {
                        inputs = call.inputs;
                        (reason, host)
                    }
                    (result, _) => return result,
                }
            }
            None => match node.host {
                Some(host) => ("the operator does not take sequences or optionals".to_owned(), host),
                None => return Err(Stop::Unsupported("the operator is not supported".to_owned())),
            },
        };
        // What the device cannot compute, the host may, after the inputs were read back.
        let (reason, host) = refused;
        let on_device = |value: &Option<Value>| matches!(value, Some(Value::Device(..)));
        let needs: Needs = inputs.iter().enumerate().filter(|(_, value)| on_device(value)).map(|(i, _)| i).collect();
        if !needs.is_empty() {
            return Err(Stop::Host(needs));
        }
        match inputs.iter().flatten().all(|value| value.as_host().is_some()) {
            true => evaluate(node, host, &inputs).map_err(|stop| match stop {
                Stop::Unsupported(_) => Stop::Unsupported(reason),
                stop => stop,
            }),
            false => Err(Stop::Unsupported(reason)),
        }
    }

    /// Begins a node with graphs inside.
    fn enter(
        &mut self,
        control: Control,
        node: &Arc<Node>,
        inputs: SmallVec<[Option<Value<'a>>; 6]>,
    ) -> Result<(), Stop> {
        match control {
            Control::If => self.enter_if(node, &inputs),
            Control::Loop => self.enter_loop(node, &inputs),
            Control::Scan => self.enter_scan(node, &inputs),
            Control::SequenceMap => self.enter_map(node, &inputs),
        }
    }

    /// Ends the graph on top of the stack. Returns the progress if the run ends or waits.
    fn leave(&mut self) -> Result<Option<Progress<'a>>, OnnxRunError> {
        let Some(frame) = self.stack.last_mut() else { return Ok(None) };
        let mut outputs = Vec::with_capacity(frame.graph.outputs.len());
        for port in &frame.graph.outputs {
            outputs.push(frame.values[port.value.index()].clone());
        }
        if let Role::Main(_) = frame.role {
            return Ok(Some(Progress::Done(outputs)));
        }
        let graph = frame.graph.clone();
        let missing = graph.outputs.iter().zip(&outputs).find(|(_, value)| value.is_none());
        let outer = self.stack.len().checked_sub(2).map(|outer| &self.stack[outer]);
        let Some(node) = outer.and_then(|outer| outer.graph.nodes.get(outer.next)).cloned() else { return Ok(None) };
        if let Some((port, _)) = missing {
            return Err(fail(&node, Stop::Failed(format!("\"{}\" has no value", port.name))));
        }
        let outputs: Vec<Value<'a>> = outputs.into_iter().flatten().collect();
        match self.finish(&node, outputs) {
            Ok(()) => Ok(None),
            Err(Stop::Host(needs)) => {
                let frame = self.stack.len() - 1;
                let values = needs.iter().filter_map(|&i| graph.outputs.get(i).map(|port| port.value)).collect();
                Ok(Some(Progress::Waits { frame, values, node }))
            }
            Err(stop) => Err(fail(&node, stop)),
        }
    }
}

/// Computes a node on the host, or finds what it gave before.
fn evaluate<'a>(
    node: &Arc<Node>,
    host: super::host_ops::Evaluate,
    inputs: &[Option<Value<'a>>],
) -> Result<Vec<Option<Value<'a>>>, Stop> {
    let mut origin = Origin::Constant;
    let tensors: Vec<Option<Arc<HostTensor>>> = inputs
        .iter()
        .map(|input| match input {
            Some(Value::Host(host)) => {
                origin = origin.max(host.origin);
                Some(host.tensor.clone())
            }
            _ => None,
        })
        .collect();
    let give = |outputs: Vec<Arc<HostTensor>>| outputs.into_iter().map(|t| Some(Value::host(t, origin))).collect();
    if let Some(outputs) = node.memo.find(&tensors) {
        return Ok(give(outputs));
    }
    let outputs: Vec<Arc<HostTensor>> = host(&HostCall { node, inputs: &tensors })?.into_iter().map(Arc::new).collect();
    if origin == Origin::Constant {
        node.memo.keep(tensors, outputs.clone());
    }
    Ok(give(outputs))
}

/// The error of a node.
pub(super) fn fail(node: &Node, stop: Stop) -> OnnxRunError {
    let (node, operator) = (node.name.clone(), node.op.clone());
    let reason = match stop {
        Stop::Unsupported(reason) => NodeError::Unsupported(reason),
        Stop::Failed(reason) => NodeError::Invalid(reason),
        Stop::Op(error) => NodeError::Op(error),
        Stop::Host(_) => return OnnxRunError::NeedsStages { node, operator },
    };
    OnnxRunError::Node { node, operator, reason }
}
