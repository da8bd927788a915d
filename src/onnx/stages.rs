//! Runs over several frames. Where the host needs values that a device computes, the values that later nodes use are
//! kept in tensors, the needed ones are read back, and the run goes on when they have arrived.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use bevy::ecs::entity::Entity;
use bevy::prelude::*;

use super::call::Stop;
use super::control::{Looping, Mapping, Scanning};
use super::error::OnnxRunError;
use super::graph::{Graph, ValueId};
use super::host::HostTensor;
use super::machine::{Frame, Machine, Progress, Role};
use super::model::{Loaded, OnnxModel};
use super::run::{OnnxInputs, start};
use super::value::{Origin, Value};
use crate::error::ReadError;
use crate::formats::onnx::ElementType;
use crate::readback::TensorReceiver;
use crate::record::{TensorCommands, TensorValue};
use crate::tensor::Tensor;

/// A value of a run that outlives its recording.
#[derive(Clone, Debug)]
enum Kept {
    Host(Arc<HostTensor>, Origin, Option<Entity>),
    Device(Tensor, ElementType),
    Sequence(Vec<Kept>, ElementType),
    Nothing,
}

/// A graph being run, between two recordings.
#[derive(Debug)]
struct KeptFrame {
    graph: Arc<Graph>,
    values: Vec<(ValueId, Kept)>,
    next: usize,
    role: KeptRole,
}

#[derive(Debug)]
enum KeptRole {
    Main(Option<Vec<usize>>),
    Branch,
    Loop {
        limit: Option<i64>,
        iteration: i64,
        carried: usize,
        collected: Vec<Vec<Kept>>,
    },
    Scan {
        length: usize,
        iteration: usize,
        carried: usize,
        scanned: Vec<(Kept, usize, bool)>,
        collected: Vec<Vec<Kept>>,
    },
    Map {
        length: usize,
        iteration: usize,
        inputs: Vec<Kept>,
        collected: Vec<Vec<Kept>>,
    },
}

/// A value that is on its way to the host.
#[derive(Debug)]
struct Arrival {
    element: ElementType,
    receiver: TensorReceiver,
    answer: Option<Result<HostTensor, OnnxRunError>>,
}

impl Arrival {
    /// Whether the value is here.
    fn poll(&mut self) -> bool {
        if self.answer.is_none()
            && let Some(answer) = self.receiver.try_recv()
        {
            self.answer = Some(match answer {
                Ok(data) => HostTensor::from_data(&data, self.element)
                    .map_err(|error| OnnxRunError::Output { name: String::new(), error }),
                Err(error) => Err(OnnxRunError::Readback(error)),
            });
        }
        self.answer.is_some()
    }
}

/// An output of a model on the host.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OnnxAnswer {
    /// A tensor.
    Tensor(Arc<HostTensor>),
    /// A list of tensors.
    Sequence(Vec<OnnxAnswer>),
    /// An optional without a value.
    Nothing,
}

impl OnnxAnswer {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&HostTensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Sequence(_) | Self::Nothing => None,
        }
    }
}

/// The outputs of a run on the host, in the types that ONNX gives them.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxAnswers {
    /// Names and values, in the order of the model.
    pub outputs: Vec<(String, OnnxAnswer)>,
    /// The nodes for which values left the device before the end, in order. Empty for a model that stays on the device.
    pub left_device: Vec<String>,
    /// Number of frames in which the model was recorded.
    pub stages: usize,
}

impl OnnxAnswers {
    /// The tensor of an output.
    pub fn get(&self, name: &str) -> Option<&HostTensor> {
        self.outputs.iter().find(|(known, _)| known == name).and_then(|(_, answer)| answer.tensor())
    }
}

/// The result of a run.
pub type OnnxResult = Result<OnnxAnswers, OnnxRunError>;

/// Triggered on the entity of an [`OnnxRun`] when it has ended.
#[derive(EntityEvent, Clone, Debug)]
pub struct OnnxReady {
    /// The entity of the run.
    pub entity: Entity,
    /// The outputs, or the error.
    pub result: OnnxResult,
}

/// Receives the result of a run. Dropping it does not cancel the run.
#[derive(Debug)]
pub struct OnnxReceiver(async_channel::Receiver<OnnxResult>);

impl OnnxReceiver {
    /// The result, if it has arrived.
    pub fn try_recv(&self) -> Option<OnnxResult> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(async_channel::TryRecvError::Empty) => None,
            Err(async_channel::TryRecvError::Closed) => Some(Err(OnnxRunError::Readback(ReadError::Disabled))),
        }
    }

    /// Waits for the result. For async tasks.
    pub async fn recv(&self) -> OnnxResult {
        self.0.recv().await.unwrap_or(Err(OnnxRunError::Readback(ReadError::Disabled)))
    }
}

/// A run over several frames. Spawn it, so that the plugin advances it: the component is removed and [`OnnxReady`] is
/// triggered on its entity when the outputs have arrived. Despawning the entity cancels the run.
#[derive(Component, Debug)]
pub struct OnnxRun {
    loaded: Arc<Loaded>,
    frames: Vec<KeptFrame>,
    /// What the host waits for: the frame, the value, and its arrival.
    waits: Vec<(usize, ValueId, Arrival)>,
    /// The outputs, once all nodes are recorded.
    outputs: Option<Vec<(String, Pending)>>,
    left_device: Vec<String>,
    stages: usize,
    sender: async_channel::Sender<OnnxResult>,
    receiver: async_channel::Receiver<OnnxResult>,
}

/// An output on its way.
#[derive(Debug)]
enum Pending {
    Ready(OnnxAnswer),
    Arriving(Arrival),
    Sequence(Vec<Pending>),
}

impl OnnxRun {
    /// A receiver of the result. The first that asks gets it.
    pub fn receiver(&self) -> OnnxReceiver {
        OnnxReceiver(self.receiver.clone())
    }

    /// Goes on with the run, if what it waits for has arrived. Returns the result at the end.
    fn advance(&mut self, ops: &TensorCommands) -> Option<OnnxResult> {
        if self.outputs.is_none() {
            let mut all = true;
            for (.., arrival) in &mut self.waits {
                all &= arrival.poll();
            }
            if !all {
                return None;
            }
            if let Err(error) = self.go_on(ops) {
                return Some(Err(error));
            }
        }
        let outputs = self.outputs.as_mut()?;
        let mut all = true;
        for (_, pending) in outputs.iter_mut() {
            all &= pending.poll();
        }
        if !all {
            return None;
        }
        let outputs = core::mem::take(outputs);
        let answers: Result<Vec<_>, OnnxRunError> =
            outputs.into_iter().map(|(name, pending)| pending.answer(&name).map(|answer| (name, answer))).collect();
        Some(answers.map(|outputs| OnnxAnswers {
            outputs,
            left_device: core::mem::take(&mut self.left_device),
            stages: self.stages,
        }))
    }

    /// Records the next stage with the values that have arrived.
    fn go_on(&mut self, ops: &TensorCommands) -> Result<(), OnnxRunError> {
        let backend = ops.model_backend(self.loaded.entity);
        let mut machine = Machine { ops, backend, weights: self.loaded.weights.clone(), stack: Vec::new() };
        for frame in core::mem::take(&mut self.frames) {
            let frame = restore_frame(&machine, frame);
            machine.stack.push(frame);
        }
        for (frame, value, arrival) in core::mem::take(&mut self.waits) {
            let tensor = Arc::new(arrival.answer.unwrap_or(Err(OnnxRunError::NotReady))?);
            // A value that a graph inside has captured is known there too.
            let mut place = Some((frame, value));
            while let Some((frame, value)) = place {
                machine.stack[frame].values[value.index()] = Some(Value::host(tensor.clone(), Origin::Data));
                place = frame.checked_sub(1).and_then(|outer| {
                    let captures = &machine.stack[frame].graph.captures;
                    captures.iter().find(|(_, inner)| *inner == value).map(|(from, _)| (outer, *from))
                });
            }
        }
        self.step(machine)
    }

    /// Records until the run ends or waits.
    fn step<'a>(&mut self, mut machine: Machine<'a>) -> Result<(), OnnxRunError> {
        self.stages += 1;
        match machine.run()? {
            Progress::Done(values) => {
                let graph = self.loaded.graph.graph.clone();
                let mut outputs = Vec::with_capacity(values.len());
                for (port, value) in graph.outputs.iter().zip(values) {
                    if let Some(value) = value {
                        outputs.push((port.name.clone(), pending(&machine, value)?));
                    }
                }
                self.outputs = Some(outputs);
            }
            Progress::Waits { frame, values, node } => {
                self.left_device.push(format!("{} ({})", node.name, node.op));
                for id in values {
                    if let Some(Value::Device(value, element)) = machine.stack[frame].values[id.index()] {
                        let receiver = machine.ops.read(value)?;
                        self.waits.push((frame, id, Arrival { element, receiver, answer: None }));
                    }
                }
                let mut known = Vec::new();
                for frame in core::mem::take(&mut machine.stack) {
                    self.frames.push(keep_frame(&machine, frame, &mut known)?);
                }
            }
        }
        Ok(())
    }
}

fn pending<'a>(machine: &Machine<'a>, value: Value<'a>) -> Result<Pending, OnnxRunError> {
    Ok(match value {
        Value::Host(host) => Pending::Ready(OnnxAnswer::Tensor(host.tensor)),
        Value::Device(value, element) => {
            Pending::Arriving(Arrival { element, receiver: machine.ops.read(value)?, answer: None })
        }
        Value::Sequence(values, _) => {
            Pending::Sequence(values.iter().map(|value| pending(machine, value.clone())).collect::<Result<_, _>>()?)
        }
        Value::Nothing => Pending::Ready(OnnxAnswer::Nothing),
    })
}

impl Pending {
    fn poll(&mut self) -> bool {
        match self {
            Self::Ready(_) => true,
            Self::Arriving(arrival) => arrival.poll(),
            Self::Sequence(items) => items.iter_mut().map(Self::poll).filter(|here| !here).count() == 0,
        }
    }

    fn answer(self, name: &str) -> Result<OnnxAnswer, OnnxRunError> {
        Ok(match self {
            Self::Ready(answer) => answer,
            Self::Arriving(arrival) => match arrival.answer {
                Some(Ok(tensor)) => OnnxAnswer::Tensor(Arc::new(tensor)),
                Some(Err(OnnxRunError::Output { error, .. })) => {
                    return Err(OnnxRunError::Output { name: name.to_owned(), error });
                }
                Some(Err(error)) => return Err(error),
                None => return Err(OnnxRunError::NotReady),
            },
            Self::Sequence(items) => {
                OnnxAnswer::Sequence(items.into_iter().map(|item| item.answer(name)).collect::<Result<_, _>>()?)
            }
        })
    }
}

/// Values of the device that are kept already, with the tensor that keeps them.
type Known<'a> = Vec<(TensorValue<'a>, Tensor)>;

fn keep<'a>(machine: &Machine<'a>, value: &Value<'a>, known: &mut Known<'a>) -> Result<Kept, OnnxRunError> {
    Ok(match value {
        Value::Host(host) => Kept::Host(host.tensor.clone(), host.origin, host.weight),
        Value::Device(value, element) => {
            let tensor = match known.iter().find(|(kept, _)| kept == value) {
                Some((_, tensor)) => tensor.clone(),
                None => {
                    let tensor = machine.ops.keep(*value)?;
                    known.push((*value, tensor.clone()));
                    tensor
                }
            };
            Kept::Device(tensor, *element)
        }
        Value::Sequence(values, element) => {
            let values = values.iter().map(|value| keep(machine, value, known));
            Kept::Sequence(values.collect::<Result<_, _>>()?, *element)
        }
        Value::Nothing => Kept::Nothing,
    })
}

fn keep_all<'a>(machine: &Machine<'a>, values: &[Value<'a>], known: &mut Known<'a>) -> Result<Vec<Kept>, OnnxRunError> {
    values.iter().map(|value| keep(machine, value, known)).collect()
}

fn keep_lists<'a>(
    machine: &Machine<'a>,
    lists: &[Vec<Value<'a>>],
    known: &mut Known<'a>,
) -> Result<Vec<Vec<Kept>>, OnnxRunError> {
    lists.iter().map(|list| keep_all(machine, list, known)).collect()
}

/// Keeps what the rest of a graph uses. Constants are in the graph.
fn keep_frame<'a>(machine: &Machine<'a>, frame: Frame<'a>, known: &mut Known<'a>) -> Result<KeptFrame, OnnxRunError> {
    let Frame { graph, values, next, role } = frame;
    let constants: HashSet<ValueId> = graph.constants.iter().map(|constant| constant.value).collect();
    let inputs: HashSet<ValueId> = graph.inputs.iter().map(|port| port.value).collect();
    let mut kept = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let id = ValueId(index as u32);
        let used = graph.last_use[index] as usize >= next;
        if let Some(value) = value.as_ref().filter(|_| used && (inputs.contains(&id) || !constants.contains(&id))) {
            kept.push((id, keep(machine, value, known)?));
        }
    }
    let role = match role {
        Role::Main(needed) => KeptRole::Main(needed.map(|needed| needed.iter().copied().collect())),
        Role::Branch => KeptRole::Branch,
        Role::Loop(Looping { limit, iteration, carried, collected }) => {
            KeptRole::Loop { limit, iteration, carried, collected: keep_lists(machine, &collected, known)? }
        }
        Role::Scan(Scanning { length, iteration, carried, scanned, collected }) => KeptRole::Scan {
            length,
            iteration,
            carried,
            scanned: scanned
                .iter()
                .map(|(value, axis, backwards)| Ok((keep(machine, value, known)?, *axis, *backwards)))
                .collect::<Result<_, OnnxRunError>>()?,
            collected: keep_lists(machine, &collected, known)?,
        },
        Role::Map(Mapping { length, iteration, inputs, collected }) => KeptRole::Map {
            length,
            iteration,
            inputs: keep_all(machine, &inputs, known)?,
            collected: keep_lists(machine, &collected, known)?,
        },
    };
    Ok(KeptFrame { graph, values: kept, next, role })
}

fn restore<'a>(machine: &Machine<'a>, kept: Kept) -> Value<'a> {
    match kept {
        Kept::Host(tensor, Origin::Constant, weight) => Value::weight(tensor, weight),
        Kept::Host(tensor, origin, _) => Value::host(tensor, origin),
        Kept::Device(tensor, element) => Value::Device(machine.ops.load_aside("run", &tensor), element),
        Kept::Sequence(values, element) => Value::Sequence(Rc::new(restore_all(machine, values)), element),
        Kept::Nothing => Value::Nothing,
    }
}

fn restore_all<'a>(machine: &Machine<'a>, kept: Vec<Kept>) -> Vec<Value<'a>> {
    kept.into_iter().map(|kept| restore(machine, kept)).collect()
}

fn restore_lists<'a>(machine: &Machine<'a>, kept: Vec<Vec<Kept>>) -> Vec<Vec<Value<'a>>> {
    kept.into_iter().map(|kept| restore_all(machine, kept)).collect()
}

fn restore_frame<'a>(machine: &Machine<'a>, frame: KeptFrame) -> Frame<'a> {
    let role = match frame.role {
        KeptRole::Main(needed) => Role::Main(needed.map(|needed| Rc::new(needed.into_iter().collect()))),
        KeptRole::Branch => Role::Branch,
        KeptRole::Loop { limit, iteration, carried, collected } => {
            Role::Loop(Looping { limit, iteration, carried, collected: restore_lists(machine, collected) })
        }
        KeptRole::Scan { length, iteration, carried, scanned, collected } => Role::Scan(Scanning {
            length,
            iteration,
            carried,
            scanned: scanned
                .into_iter()
                .map(|(value, axis, backwards)| (restore(machine, value), axis, backwards))
                .collect(),
            collected: restore_lists(machine, collected),
        }),
        KeptRole::Map { length, iteration, inputs, collected } => Role::Map(Mapping {
            length,
            iteration,
            inputs: restore_all(machine, inputs),
            collected: restore_lists(machine, collected),
        }),
    };
    let mut restored = machine.frame(&frame.graph, role);
    restored.next = frame.next;
    for (id, value) in frame.values {
        restored.values[id.index()] = Some(restore(machine, value));
    }
    restored
}

/// ONNX models in stages.
impl TensorCommands<'_, '_> {
    /// Runs a model over as many frames as it needs and reads its outputs back.
    ///
    /// The first stage is recorded now. Where the host needs values that the device computes, they are read back, and the
    /// run goes on in a later frame. Spawn the returned [`OnnxRun`]; [`OnnxReady`] is triggered on its entity:
    ///
    /// ```
    /// # use bevy::prelude::*;
    /// # use bevy_tensor_compute::prelude::*;
    /// use bevy_tensor_compute::onnx::{OnnxModel, OnnxReady};
    ///
    /// fn detect(model: Single<&OnnxModel>, input: Entity, ops: TensorCommands, mut commands: Commands) -> Result {
    ///     commands.spawn(ops.run_staged(&model, input)?).observe(|ready: On<OnnxReady>| match &ready.result {
    ///         Ok(answers) => info!("{:?}", answers.get("boxes")),
    ///         Err(error) => error!("{error}"),
    ///     });
    ///     Ok(())
    /// }
    /// ```
    pub fn run_staged<'a>(
        &'a self,
        model: &OnnxModel,
        inputs: impl Into<OnnxInputs<'a>>,
    ) -> Result<OnnxRun, OnnxRunError> {
        let loaded = model.loaded()?;
        let machine = start(self, &loaded, inputs.into())?;
        let (sender, receiver) = async_channel::bounded(1);
        let mut run = OnnxRun {
            loaded,
            frames: Vec::new(),
            waits: Vec::new(),
            outputs: None,
            left_device: Vec::new(),
            stages: 0,
            sender,
            receiver,
        };
        run.step(machine)?;
        Ok(run)
    }
}

/// Goes on with runs whose values have arrived, and delivers the results of those that ended.
pub(crate) fn advance_runs(mut runs: Query<(Entity, &mut OnnxRun)>, ops: TensorCommands, mut commands: Commands) {
    for (entity, mut run) in &mut runs {
        if let Some(result) = run.advance(&ops) {
            // Nobody may be interested; the event is triggered all the same.
            let _ = run.sender.try_send(result.clone());
            commands.entity(entity).remove::<OnnxRun>();
            commands.trigger(OnnxReady { entity, result });
        }
    }
}

impl From<Stop> for OnnxRunError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Op(error) => Self::Op(error),
            Stop::Unsupported(reason) | Stop::Failed(reason) => {
                Self::Op(crate::error::OpError::Argument { op: "run", reason })
            }
            Stop::Host(_) => Self::NotReady,
        }
    }
}
