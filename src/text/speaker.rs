//! Speakers: contexts that share the weights of a model.

use std::collections::VecDeque;

use async_channel::{Receiver, Sender};
use bevy::ecs::lifecycle::Remove;
use bevy::prelude::*;

use super::config::TextError;
use super::decoder::Cache;
use super::events::{DoneReason, Prompt, Say, TextDone};
use super::sample::Sampler;
use super::tokens::{TextStream, Tokenizer};
use crate::tensor::TensorModel;

/// The model that a speaker belongs to. Despawning the model despawns its speakers.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[relationship(relationship_target = Speakers)]
#[reflect(Component)]
pub struct SpeakerOf(pub Entity);

/// The speakers of a model. Maintained by [`SpeakerOf`].
#[derive(Component, Debug, Default, Reflect)]
#[relationship_target(relationship = SpeakerOf, linked_spawn)]
#[reflect(Component)]
pub struct Speakers(Vec<Entity>);

/// A context of a model: keys and values, a position, and a sampler.
#[derive(Component, Debug, Default)]
#[require(TensorModel)]
pub struct Speaker {
    /// How tokens are chosen.
    pub sampler: Sampler,
    /// Stops new steps while it is set. Tokens that are computed already still arrive.
    pub paused: bool,
    pub(super) talk: Option<Talk>,
    /// The keys and values of each layer, once there are any.
    pub(super) caches: Vec<Cache>,
    /// The token that the next step takes, `i32 [1]`.
    pub(super) next: Option<Entity>,
    /// How often each token was said.
    pub(super) counts: Option<Entity>,
    /// The tokens whose keys and values are in the caches.
    pub(super) cached: Vec<u32>,
    /// Number of texts so far. Answers to an earlier one are ignored.
    pub(super) run: u64,
    text: String,
    listener: Option<Sender<TextPiece>>,
}

/// What a speaker is saying.
#[derive(Debug)]
pub(super) struct Talk {
    pub say: Say,
    /// The tokens of the prompt, once the model is there.
    pub prompt: Vec<u32>,
    /// Tokens of the prompt that were recorded.
    pub read: usize,
    /// Maximum number of tokens to say.
    pub limit: usize,
    /// Tokens to say that were recorded.
    pub scheduled: usize,
    /// Tokens that arrived.
    pub said: Vec<u32>,
    pub stream: TextStream,
    /// Tokens that arrived and wait for the receiver: id and probability.
    pub inbox: VecDeque<(u32, f32)>,
    /// Whether the prompt was tokenised and the caches were reset.
    pub begun: bool,
}

impl Talk {
    fn new(say: Say) -> Self {
        Self {
            say,
            prompt: Vec::new(),
            read: 0,
            limit: 0,
            scheduled: 0,
            said: Vec::new(),
            stream: TextStream::default(),
            inbox: VecDeque::new(),
            begun: false,
        }
    }
}

/// A piece of text over a [`TextReceiver`].
#[derive(Clone, Debug, PartialEq)]
pub struct TextPiece {
    /// The token.
    pub id: u32,
    /// The characters that are complete with this token.
    pub text: String,
    /// Probability of the token before the sampler's settings.
    pub probability: f32,
}

/// Receives what a speaker says. While it is full, the speaker pauses. Dropping it does not stop the speaker.
#[derive(Debug)]
pub struct TextReceiver(Receiver<TextPiece>);

impl TextReceiver {
    /// The next piece, if there is one.
    pub fn try_recv(&self) -> Option<TextPiece> {
        self.0.try_recv().ok()
    }

    /// Waits for the next piece. `None` if the speaker is gone. For async tasks.
    pub async fn recv(&self) -> Option<TextPiece> {
        self.0.recv().await.ok()
    }
}

impl Speaker {
    /// A speaker with a sampler.
    pub fn new(sampler: Sampler) -> Self {
        Self { sampler, ..default() }
    }

    /// Whether it is speaking, or waits for its model to speak.
    pub fn is_speaking(&self) -> bool {
        self.talk.is_some()
    }

    /// What it said since the last [`Say`].
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A receiver for what it says from now on, with room for `capacity` tokens. Replaces the one before.
    pub fn listen(&mut self, capacity: usize) -> TextReceiver {
        let (sender, receiver) = async_channel::bounded(capacity.max(1));
        self.listener = Some(sender);
        TextReceiver(receiver)
    }

    /// Whether the receiver takes no more.
    pub(super) fn is_blocked(&self) -> bool {
        self.listener.as_ref().is_some_and(Sender::is_full)
    }

    /// Hands a token on. Gives the characters that are complete.
    pub(super) fn hand_on(&mut self, tokenizer: &Tokenizer, id: u32, probability: f32) -> String {
        let Some(talk) = &mut self.talk else { return String::new() };
        let mut text = talk.stream.push(tokenizer, id);
        talk.said.push(id);
        // The space that SentencePiece puts before the first word of a text of its own stays: the prompt came before.
        if self.text.is_empty() && talk.prompt.is_empty() {
            text = text.trim_start().to_owned();
        }
        self.text.push_str(&text);
        self.send(id, &text, probability);
        text
    }

    fn send(&mut self, id: u32, text: &str, probability: f32) {
        let piece = TextPiece { id, text: text.to_owned(), probability };
        // The caller checked that there is room. A receiver that was dropped is forgotten.
        if self.listener.as_ref().is_some_and(|listener| listener.try_send(piece).is_err()) {
            self.listener = None;
        }
    }

    /// Ends what it is saying and gives the event for it.
    pub(super) fn end(&mut self, speaker: Entity, model: Option<Entity>, reason: DoneReason) -> Option<TextDone> {
        let mut talk = self.talk.take()?;
        self.text.push_str(&talk.stream.finish());
        // The last token was not an input of a recorded step, or of one that does not count.
        let known = talk.read.min(talk.prompt.len());
        self.cached = talk.prompt[..known].to_vec();
        if known == talk.prompt.len() {
            self.cached.extend(&talk.said[..talk.said.len().saturating_sub(1)]);
        }
        Some(TextDone {
            entity: speaker,
            speaker,
            model: model.unwrap_or(speaker),
            reason,
            text: self.text.clone(),
            prompt_tokens: talk.prompt.len(),
            tokens: talk.said.len(),
        })
    }

    /// Tokenises the prompt. `context` is the maximum number of tokens.
    pub(super) fn begin(&mut self, tokenizer: &Tokenizer, context: usize) -> Result<(), TextError> {
        let Some(talk) = &mut self.talk else { return Ok(()) };
        let prompt = match &talk.say.prompt {
            Prompt::Text(text) => tokenizer.encode_with(text, true, true)?,
            Prompt::Chat(messages) => {
                let text = tokenizer.chat(messages)?;
                let bos = tokenizer.bos().and_then(|id| tokenizer.token(id)).unwrap_or_default();
                tokenizer.encode_with(&text, bos.is_empty() || !text.starts_with(bos), true)?
            }
        };
        if prompt.is_empty() || talk.say.prompt == Prompt::Text(String::new()) {
            return Err(TextError::EmptyPrompt);
        }
        if prompt.len() >= context {
            return Err(TextError::PromptTooLong { tokens: prompt.len(), context });
        }
        // At least one token is computed, because its logits are needed.
        let same = self.cached.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        talk.read = same.min(prompt.len() - 1);
        self.cached.clear();
        talk.limit = talk.say.tokens.min(context - prompt.len());
        talk.prompt = prompt;
        talk.begun = true;
        Ok(())
    }
}

/// Starts a speaker. If it is speaking, that is cancelled.
pub(super) fn say(say: On<Say>, mut speakers: Query<(&mut Speaker, Option<&SpeakerOf>)>, mut commands: Commands) {
    let Ok((mut speaker, of)) = speakers.get_mut(say.entity) else {
        warn!("{} was told to say something, but it is no speaker", say.entity);
        return;
    };
    if let Some(done) = speaker.end(say.entity, of.map(|of| of.0), DoneReason::Cancelled) {
        commands.trigger(done);
    }
    speaker.run += 1;
    speaker.text.clear();
    speaker.talk = Some(Talk::new(say.event().clone()));
}

/// Cancels a speaker that is despawned.
pub(super) fn cancel(
    removed: On<Remove, Speaker>,
    mut speakers: Query<(&mut Speaker, Option<&SpeakerOf>)>,
    mut commands: Commands,
) {
    let Ok((mut speaker, of)) = speakers.get_mut(removed.entity) else { return };
    if let Some(done) = speaker.end(removed.entity, of.map(|of| of.0), DoneReason::Cancelled) {
        commands.trigger(done);
    }
}
