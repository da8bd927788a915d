//! Language models that speak (feature `text`).
//!
//! A *model* is an entity with [`TextModel`]: a GGUF file whose weights become tensors of the entity. A *speaker* is an
//! entity with [`Speaker`] and [`SpeakerOf`]: it has its own context (keys and values), position and sampler, and shares
//! the weights. [`Say`] gives it a prompt. Its tokens come as [`TextToken`] events, which bubble to the model, and
//! [`TextDone`] says why it ended, exactly once. Despawning a speaker cancels it.
//!
//! ```no_run
//! # use bevy::prelude::*;
//! # use bevy_tensor_compute::prelude::*;
//! use bevy_tensor_compute::text::{Say, Speaker, SpeakerOf, TextDone, TextModel, TextToken};
//!
//! fn spawn_teller(mut commands: Commands, server: Res<AssetServer>) {
//!     let model = commands.spawn(TextModel::new(server.load("models/stories15m.gguf"))).id();
//!     let teller = commands.spawn((Speaker::default(), SpeakerOf(model))).id();
//!     commands.trigger(Say::prompt(teller, "Once upon a time").with_tokens(100));
//! }
//!
//! App::new()
//!     .add_plugins((AnywherePlugins::headless(), TensorComputePlugin::default()))
//!     .add_systems(Startup, spawn_teller)
//!     .add_observer(|token: On<TextToken>| print!("{}", token.text))
//!     .add_observer(|done: On<TextDone>| println!("\n{:?}", done.reason))
//!     .run();
//! ```
//!
//! All speakers of a model take a step together: one product with each weight serves all of them. A step records the same
//! work every time, so generating builds no plans, buffers or pipelines. The sampled token stays on the device and is the
//! input of the next step. Only ids and their probabilities are read back.

mod config;
mod decoder;
mod events;
mod model;
mod sample;
mod speaker;
mod step;
mod tokens;

pub use config::{DecoderConfig, Rope, RopeScaling, TextArchitecture, TextError};
pub use events::{DoneReason, Prompt, Say, TextDone, TextLogits, TextModelReady, TextToken, TextTrigger};
pub use model::{TextModel, TextModelInfo, TextSettings};
pub use sample::Sampler;
pub use speaker::{Speaker, SpeakerOf, Speakers, TextPiece, TextReceiver};
pub use tokens::{ChatMessage, TextStream, Tokenizer, TokenizerError};

use bevy::prelude::*;

/// The systems of speaking models.
pub(crate) fn plugin(app: &mut App) {
    app.register_type::<SpeakerOf>()
        .register_type::<Speakers>()
        .add_observer(model::weights_ready)
        .add_observer(speaker::say)
        .add_observer(speaker::cancel)
        .add_observer(model::forget)
        .add_systems(PreUpdate, step::deliver)
        .add_systems(PostUpdate, (model::load_models, model::finish_models, step::speak).chain());
}
