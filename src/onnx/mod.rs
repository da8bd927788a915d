//! ONNX models as assets, run as they are.
//!
//! ```
//! # use bevy::prelude::*;
//! # use bevy_tensor_compute::prelude::*;
//! use bevy_tensor_compute::onnx::OnnxModel;
//!
//! fn spawn(mut commands: Commands, server: Res<AssetServer>) {
//!     commands.spawn((OnnxModel::new(server.load("net.onnx")), Name::new("net")));
//! }
//!
//! fn forward(model: Single<&OnnxModel>, input: Entity, output: Entity, ops: TensorCommands) -> Result {
//!     if model.is_ready() {
//!         let outputs = ops.run(&model, input)?;
//!         ops.store(outputs.at(0)?, output)?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Shape arithmetic and small integer inputs are computed on the host, exactly in 64 bits. Everything else is recorded
//! into the frame's plan. On a device, `int64` is `i32` and `double` is `f32`; values that do not fit are an error.

mod build;
mod call;
mod control;
mod error;
mod files;
mod fold;
mod functions;
mod graph;
mod host;
mod host_ops;
mod machine;
mod model;
mod operators;
mod program;
mod run;
mod seen;
mod small_float;
mod stages;
mod summary;
mod value;

use bevy::prelude::*;

pub use error::{NodeError, OnnxError, OnnxRunError, UnsupportedNode};
pub use files::read_pb;
pub use graph::{Dimension, ValueType};
pub use host::{HostError, HostTensor, Numbers};
pub use model::{OnnxLoaded, OnnxModel};
pub use program::{OnnxGraph, OnnxPort};
pub use run::{OnnxInput, OnnxInputs, OnnxOutputs};
pub use seen::OnnxNode;
pub use stages::{OnnxAnswer, OnnxAnswers, OnnxReady, OnnxReceiver, OnnxResult, OnnxRun};
pub use summary::OnnxSummary;

pub use crate::formats::onnx::{ElementType, OnnxFormatError};

pub(crate) use model::OnnxLoader;

/// Adds the systems of this room. Models begin before their weights are placed.
pub(crate) fn plugin(app: &mut App) {
    app.add_message::<AssetEvent<OnnxGraph>>()
        .add_observer(model::end_upload)
        .add_systems(PreUpdate, stages::advance_runs)
        .add_systems(PostUpdate, model::begin_models.before(crate::formats::begin_arrivals));
}
