//! Cases of the ONNX backend tests: a folder with `model.onnx` and `test_data_set_*/input_*.pb`, `output_*.pb`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy_tensor_compute::onnx::{
    ElementType, HostTensor, NodeError, Numbers, OnnxAnswer, OnnxAnswers, OnnxError, OnnxGraph, OnnxInput, OnnxInputs,
    OnnxModel, OnnxPort, OnnxRunError, read_pb,
};
use bevy_tensor_compute::prelude::*;

/// What became of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Passed,
    /// The model needs what the crate does not support; why.
    Unsupported(String),
    Failed(String),
}

/// A folder that is a case, or all cases below it, by path.
pub fn find(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        if folder.join("model.onnx").is_file() {
            found.push(folder);
        } else if let Ok(entries) = std::fs::read_dir(&folder) {
            open.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
    }
    found.sort();
    found
}

/// The stored values of one kind, in order.
fn values(folder: &Path, kind: &str, ports: &[OnnxPort]) -> Result<Vec<OnnxAnswer>, String> {
    let mut values = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let path = folder.join(format!("{kind}_{i}.pb"));
        let Ok(bytes) = std::fs::read(&path) else { break };
        values.push(read_pb(bytes, port.declared.as_ref()).map_err(|error| format!("{}: {error}", path.display()))?);
    }
    Ok(values)
}

fn input(answer: &OnnxAnswer) -> OnnxInput<'static> {
    match answer {
        OnnxAnswer::Tensor(tensor) => tensor.clone().into(),
        OnnxAnswer::Sequence(items) => {
            let element = items.first().and_then(OnnxAnswer::tensor).map_or(ElementType::Float32, HostTensor::element);
            OnnxInput::Sequence(items.iter().map(input).collect(), element)
        }
        _ => OnnxInput::Nothing,
    }
}

/// Steps the app until `done` returns something, or fails after a minute.
pub fn step_until<T>(app: &mut App, mut done: impl FnMut(&mut App) -> Option<T>) -> Result<T, String> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(result) = done(app) {
            return Ok(result);
        }
        if Instant::now() > end {
            return Err("nothing happened for a minute".to_owned());
        }
        app.update();
    }
}

/// Spawns a model and steps the app until it can run.
pub fn load(app: &mut App, graph: OnnxGraph) -> Result<Entity, String> {
    let model = app.world_mut().spawn(OnnxModel::from_graph(graph)).id();
    step_until(app, |app| {
        let model = app.world().get::<OnnxModel>(model)?;
        (model.is_ready() || model.error().is_some()).then(|| model.error().map(OnnxError::to_string))
    })?
    .map_or(Ok(model), Err)
}

/// Runs a model and steps the app until its outputs are here.
pub fn run(
    app: &mut App,
    model: Entity,
    inputs: impl FnOnce() -> OnnxInputs<'static>,
) -> Result<OnnxAnswers, OnnxRunError> {
    let mut state = SystemState::<(Query<&OnnxModel>, TensorCommands)>::new(app.world_mut());
    let run = match state.get_mut(app.world_mut()) {
        Ok((models, ops)) => match models.get(model) {
            Ok(model) => ops.run_staged(model, inputs()),
            Err(_) => Err(OnnxRunError::NotReady),
        },
        Err(_) => Err(OnnxRunError::NotReady),
    };
    state.apply(app.world_mut());
    let run = run?;
    let receiver = run.receiver();
    let entity = app.world_mut().spawn(run).id();
    let answer = step_until(app, |_| receiver.try_recv());
    app.world_mut().despawn(entity);
    answer.unwrap_or(Err(OnnxRunError::NotReady))
}

/// Runs every data set of a case.
pub fn check(app: &mut App, folder: &Path) -> Outcome {
    let graph = match OnnxGraph::open(folder.join("model.onnx")) {
        Ok(graph) => graph,
        Err(error @ OnnxError::Unsupported { .. }) => return Outcome::Unsupported(error.to_string()),
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let (inputs, outputs) = (graph.inputs(), graph.outputs());
    let drawn = graph.operators().keys().any(|operator| RANDOM.contains(&operator.as_str()));
    let model = match load(app, graph) {
        Ok(model) => model,
        Err(error) => return Outcome::Failed(error),
    };
    let outcome = check_sets(app, model, folder, &inputs, &outputs, drawn);
    app.world_mut().despawn(model);
    outcome
}

fn check_sets(
    app: &mut App,
    model: Entity,
    folder: &Path,
    inputs: &[OnnxPort],
    outputs: &[OnnxPort],
    drawn: bool,
) -> Outcome {
    let mut sets = 0;
    for number in 0.. {
        let set = folder.join(format!("test_data_set_{number}"));
        if !set.is_dir() {
            break;
        }
        sets += 1;
        let stored = values(&set, "input", inputs).and_then(|i| values(&set, "output", outputs).map(|o| (i, o)));
        let (given, expected) = match stored {
            Ok(stored) => stored,
            Err(error) => return Outcome::Failed(error),
        };
        let named = || {
            let pairs = inputs.iter().zip(&given);
            pairs.fold(OnnxInputs::new(), |all, (port, value)| all.with(port.name.clone(), input(value)))
        };
        match run(app, model, named) {
            Ok(answers) => {
                for ((name, actual), expected) in answers.outputs.iter().zip(&expected) {
                    if let Err(reason) = if drawn { same_kind(actual, expected) } else { compare(actual, expected) } {
                        return Outcome::Failed(format!("output \"{name}\": {reason}"));
                    }
                }
                if answers.outputs.len() < expected.len() {
                    return Outcome::Failed("an output is missing".to_owned());
                }
            }
            Err(error @ OnnxRunError::Node { reason: NodeError::Unsupported(_), .. }) => {
                return Outcome::Unsupported(error.to_string());
            }
            Err(error) => return Outcome::Failed(error.to_string()),
        }
    }
    if sets == 0 { Outcome::Failed("there is no test data".to_owned()) } else { Outcome::Passed }
}

/// Operators whose numbers ONNX does not define. Their outputs are compared by type and shape.
const RANDOM: [&str; 6] =
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

fn same_kind(actual: &OnnxAnswer, expected: &OnnxAnswer) -> Result<(), String> {
    match (actual.tensor(), expected.tensor()) {
        (Some(actual), Some(expected))
            if actual.element() == expected.element() && actual.shape() == expected.shape() =>
        {
            Ok(())
        }
        _ => Err(format!("{actual:?} is not of the kind of {expected:?}")),
    }
}

/// Exact for integers, truth values and strings; NaN and infinities must match.
pub fn compare(actual: &OnnxAnswer, expected: &OnnxAnswer) -> Result<(), String> {
    match (actual, expected) {
        (OnnxAnswer::Tensor(actual), OnnxAnswer::Tensor(expected)) => compare_tensors(actual, expected),
        (OnnxAnswer::Sequence(actual), OnnxAnswer::Sequence(expected)) => {
            if actual.len() != expected.len() {
                return Err(format!("{} tensors, expected {}", actual.len(), expected.len()));
            }
            actual.iter().zip(expected).try_for_each(|(a, e)| compare(a, e))
        }
        (OnnxAnswer::Nothing, OnnxAnswer::Nothing) => Ok(()),
        (actual, expected) => Err(format!("{actual:?}, expected {expected:?}")),
    }
}

fn compare_tensors(actual: &Arc<HostTensor>, expected: &Arc<HostTensor>) -> Result<(), String> {
    if actual.element() != expected.element() {
        return Err(format!("is {}, expected {}", actual.element(), expected.element()));
    }
    if actual.shape() != expected.shape() {
        return Err(format!("has shape {}, expected {}", actual.shape(), expected.shape()));
    }
    if actual.strings() != expected.strings() {
        return Err(format!("is {actual:?}, expected {expected:?}"));
    }
    if actual.strings().is_some() {
        return Ok(());
    }
    let (absolute, relative) = match expected.element() {
        ElementType::Float16 => (2.5e-3, 2.5e-3),
        ElementType::Bfloat16 => (1e-2, 1e-2),
        ElementType::Float32 | ElementType::Float64 => (1e-5, 1e-3),
        _ => (0.0, 0.0),
    };
    match (actual.numbers(), expected.numbers()) {
        (Ok(Numbers::Int(actual)), Ok(Numbers::Int(expected))) => {
            match actual.iter().zip(&expected).position(|(a, e)| a != e) {
                Some(i) => Err(format!("element {i} is {}, expected {}", actual[i], expected[i])),
                None => Ok(()),
            }
        }
        (Ok(Numbers::Float(actual)), Ok(Numbers::Float(expected))) => {
            let wrong = actual.iter().zip(&expected).position(|(&a, &e)| {
                let same = (a.is_nan() && e.is_nan()) || a == e;
                !(same || e.is_finite() && (a - e).abs() <= absolute + relative * e.abs())
            });
            match wrong {
                Some(i) => Err(format!("element {i} is {}, expected {}", actual[i], expected[i])),
                None => Ok(()),
            }
        }
        _ => Err(format!("{} cannot be compared", expected.element())),
    }
}
