//! What speakers are told, and what they tell.

use bevy::ecs::event::{Trigger, trigger_entity_internal};
use bevy::ecs::observer::{CachedObservers, TriggerContext};
use bevy::ecs::world::DeferredWorld;
use bevy::prelude::*;

use super::config::TextError;
use super::model::TextModelInfo;
use super::tokens::ChatMessage;
use crate::tensor::TensorData;

/// Tells a [`Speaker`](super::Speaker) to continue a text or to answer. If it is speaking, that is cancelled first.
///
/// It may be triggered before the model is loaded. The beginning that the prompt shares with what the speaker said last is
/// not computed again, so a conversation that grows stays cheap.
#[derive(EntityEvent, Clone, Debug)]
pub struct Say {
    /// The speaker.
    pub entity: Entity,
    /// What it says something to.
    pub prompt: Prompt,
    /// Maximum number of tokens. 256 by default.
    pub tokens: usize,
    /// Trigger [`TextLogits`] with the logits after the prompt.
    pub logits: bool,
}

/// What a speaker continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text to continue.
    Text(String),
    /// A conversation to answer, written by the chat template of the file.
    Chat(Vec<ChatMessage>),
}

impl Say {
    /// Continues a text.
    pub fn prompt(speaker: Entity, text: impl Into<String>) -> Self {
        Self { entity: speaker, prompt: Prompt::Text(text.into()), tokens: 256, logits: false }
    }

    /// Answers a conversation.
    pub fn chat(speaker: Entity, messages: impl Into<Vec<ChatMessage>>) -> Self {
        Self { entity: speaker, prompt: Prompt::Chat(messages.into()), tokens: 256, logits: false }
    }

    /// Sets the maximum number of tokens.
    pub fn with_tokens(mut self, tokens: usize) -> Self {
        self.tokens = tokens;
        self
    }

    /// Asks for the logits after the prompt.
    pub fn with_logits(mut self) -> Self {
        self.logits = true;
        self
    }
}

/// A speaker said a token. Triggered on the speaker, then on its model. Global observers run once.
#[derive(EntityEvent, Clone, Debug, PartialEq)]
#[entity_event(trigger = TextTrigger)]
pub struct TextToken {
    /// The entity that the event is on: the speaker, then its model.
    pub entity: Entity,
    /// The speaker.
    pub speaker: Entity,
    /// Its model.
    pub model: Entity,
    /// The token.
    pub id: u32,
    /// The characters that are complete with this token. Empty if a character needs more tokens.
    pub text: String,
    /// Probability of the token before the sampler's settings.
    pub probability: f32,
}

/// A speaker has ended. Triggered exactly once for each [`Say`], on the speaker and then on its model. Global observers run
/// once.
#[derive(EntityEvent, Clone, Debug)]
#[entity_event(trigger = TextTrigger)]
pub struct TextDone {
    /// The entity that the event is on: the speaker, then its model.
    pub entity: Entity,
    /// The speaker.
    pub speaker: Entity,
    /// Its model. The speaker itself if it has none.
    pub model: Entity,
    /// Why it ended.
    pub reason: DoneReason,
    /// Everything that it said.
    pub text: String,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of tokens that it said.
    pub tokens: usize,
}

/// Why a speaker ended.
#[derive(Clone, Debug)]
pub enum DoneReason {
    /// The model gave a token that ends a text.
    Stop,
    /// The maximum number of tokens, or the end of the context, was reached.
    Length,
    /// The speaker or its model was despawned, or it was told something else.
    Cancelled,
    /// It failed.
    Error(TextError),
}

/// The logits after the prompt of a [`Say`] that asked for them. Triggered on the speaker.
#[derive(EntityEvent, Clone, Debug)]
pub struct TextLogits {
    /// The speaker.
    pub entity: Entity,
    /// `f32 [vocabulary]`.
    pub logits: TensorData,
}

/// A model is loaded and its speakers begin, or it failed. Triggered on the model.
#[derive(EntityEvent, Clone, Debug)]
pub struct TextModelReady {
    /// The model.
    pub entity: Entity,
    /// What was loaded, or the error.
    pub result: Result<TextModelInfo, TextError>,
}

/// Runs the observers of a speaker and of its model, and global ones once. Bevy's own propagation runs global observers
/// once per entity.
#[derive(Debug, Default)]
pub struct TextTrigger;

/// An event on a speaker that bubbles to its model.
trait Said: EntityEvent {
    /// The speaker, its model, and the field with the entity that the event is on.
    fn path(&mut self) -> (Entity, Entity, &mut Entity);
}

impl Said for TextToken {
    fn path(&mut self) -> (Entity, Entity, &mut Entity) {
        (self.speaker, self.model, &mut self.entity)
    }
}

impl Said for TextDone {
    fn path(&mut self) -> (Entity, Entity, &mut Entity) {
        (self.speaker, self.model, &mut self.entity)
    }
}

/// Runs the observers.
///
/// # Safety
///
/// The arguments must be those of [`Trigger::trigger`], and [`TextTrigger`] the trigger of `E`.
unsafe fn bubble<E: Said>(
    trigger: &mut TextTrigger,
    mut world: DeferredWorld,
    observers: &CachedObservers,
    context: &TriggerContext,
    event: &mut E,
) {
    let (speaker, model, at) = event.path();
    *at = speaker;
    // SAFETY: `observers` are of this world and event type and `context` has the key of that type, as the caller
    // promised. The two pointers are to the event and to its trigger.
    unsafe {
        trigger_entity_internal(world.reborrow(), observers, event.into(), trigger.into(), speaker, context);
    }
    if model == speaker {
        return;
    }
    *event.path().2 = model;
    let of_speaker = observers.entity_observers().get(&speaker);
    for (&observer, runner) in observers.entity_observers().get(&model).into_iter().flatten() {
        // An observer can watch both.
        if of_speaker.is_some_and(|map| map.contains_key(&observer)) {
            continue;
        }
        // SAFETY: as above; the runner is that of an observer of this event type.
        unsafe { runner(world.reborrow(), observer, context, event.into(), trigger.into()) };
    }
}

// SAFETY: `Event::Trigger` of `TextToken` is this type. `bubble` upholds what the caller promised.
unsafe impl Trigger<TextToken> for TextTrigger {
    unsafe fn trigger(
        &mut self,
        world: DeferredWorld,
        observers: &CachedObservers,
        context: &TriggerContext,
        event: &mut TextToken,
    ) {
        // SAFETY: the arguments are those of this call.
        unsafe { bubble(self, world, observers, context, event) };
    }
}

// SAFETY: `Event::Trigger` of `TextDone` is this type. `bubble` upholds what the caller promised.
unsafe impl Trigger<TextDone> for TextTrigger {
    unsafe fn trigger(
        &mut self,
        world: DeferredWorld,
        observers: &CachedObservers,
        context: &TriggerContext,
        event: &mut TextDone,
    ) {
        // SAFETY: the arguments are those of this call.
        unsafe { bubble(self, world, observers, context, event) };
    }
}
