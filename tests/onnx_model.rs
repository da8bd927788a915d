//! Writes small ONNX files for tests: protobuf by hand, so that wrong files can be written too.

use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy_tensor_compute::onnx::{OnnxAnswers, OnnxGraph, OnnxInputs, OnnxModel, OnnxRunError};
use bevy_tensor_compute::prelude::*;

use crate::common::Rig;

/// A message under construction.
#[derive(Clone, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn int(mut self, field: u64, value: i64) -> Self {
        self.varint(field << 3);
        self.varint(value as u64);
        self
    }

    pub fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Self {
        self.varint(field << 3 | 2);
        self.varint(value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
        self
    }

    pub fn float(mut self, field: u64, value: f32) -> Self {
        self.varint(field << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn each<T>(self, items: impl IntoIterator<Item = T>, add: impl Fn(Self, T) -> Self) -> Self {
        items.into_iter().fold(self, add)
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

pub const FLOAT: i64 = 1;
pub const INT64: i64 = 7;
pub const BOOL: i64 = 9;

/// A declared value. −1 is a size without a name.
pub fn value(name: &str, element: i64, shape: &[i64]) -> Message {
    let dims = Message::default().each(shape, |m, &size| {
        m.bytes(1, if size < 0 { Message::default() } else { Message::default().int(1, size) })
    });
    let tensor = Message::default().int(1, element).bytes(2, dims);
    Message::default().bytes(1, name).bytes(2, Message::default().bytes(1, tensor))
}

pub fn floats(name: &str, shape: &[i64], values: &[f32]) -> Message {
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Message::default().each(shape, |m, &size| m.int(1, size)).int(2, FLOAT).bytes(8, name).bytes(9, raw)
}

pub fn ints(name: &str, shape: &[i64], values: &[i64]) -> Message {
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Message::default().each(shape, |m, &size| m.int(1, size)).int(2, INT64).bytes(8, name).bytes(9, raw)
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let node = Message::default().each(inputs, |m, name| m.bytes(1, name)).each(outputs, |m, name| m.bytes(2, name));
    node.bytes(3, format!("{op} of {}", outputs.first().unwrap_or(&""))).bytes(4, op)
}

impl Message {
    /// Adds an attribute to a node.
    pub fn with_int(self, name: &str, value: i64) -> Self {
        self.bytes(5, Message::default().bytes(1, name).int(3, value).int(20, 2))
    }

    pub fn with_ints(self, name: &str, values: &[i64]) -> Self {
        self.bytes(5, Message::default().bytes(1, name).each(values, |m, &v| m.int(8, v)).int(20, 7))
    }

    pub fn with_text(self, name: &str, value: &str) -> Self {
        self.bytes(5, Message::default().bytes(1, name).bytes(4, value).int(20, 3))
    }

    pub fn with_graph(self, name: &str, graph: &Message) -> Self {
        self.bytes(5, Message::default().bytes(1, name).bytes(6, graph).int(20, 5))
    }

    pub fn of_domain(self, domain: &str) -> Self {
        self.bytes(7, domain)
    }
}

pub fn graph(nodes: &[Message], inputs: &[Message], outputs: &[Message], initialisers: &[Message]) -> Message {
    Message::default()
        .each(nodes, |m, node| m.bytes(1, node))
        .bytes(2, "graph")
        .each(initialisers, |m, tensor| m.bytes(5, tensor))
        .each(inputs, |m, value| m.bytes(11, value))
        .each(outputs, |m, value| m.bytes(12, value))
}

pub fn opset(domain: &str, version: i64) -> Message {
    Message::default().bytes(1, domain).int(2, version)
}

pub fn model(graph: &Message) -> Message {
    Message::default().int(1, 8).bytes(7, graph).bytes(8, opset("", 18))
}

/// Spawns a model and steps the app until it can run.
pub fn spawn(rig: &mut Rig, file: &Message) -> Entity {
    let graph = OnnxGraph::from_bytes(file.0.clone()).expect("a valid model");
    let model = rig.app.world_mut().spawn(OnnxModel::from_graph(graph)).id();
    rig.step_until(|app| app.world().get::<OnnxModel>(model).is_some_and(OnnxModel::is_ready));
    model
}

/// Runs a model in stages and steps the app until its outputs are here.
pub fn run(rig: &mut Rig, model: Entity, inputs: OnnxInputs<'static>) -> Result<OnnxAnswers, OnnxRunError> {
    let mut state = SystemState::<(Query<&OnnxModel>, TensorCommands)>::new(rig.app.world_mut());
    let run = {
        let (models, ops) = state.get_mut(rig.app.world_mut()).expect("the plugin is there");
        ops.run_staged(models.get(model).expect("a model"), inputs)
    };
    state.apply(rig.app.world_mut());
    let run = run?;
    let receiver = run.receiver();
    rig.app.world_mut().spawn(run);
    let mut answer = None;
    rig.step_until(|_| {
        answer = answer.take().or_else(|| receiver.try_recv());
        answer.is_some()
    });
    answer.expect("it has arrived")
}
