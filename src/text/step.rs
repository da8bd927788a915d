//! The systems that make speakers speak: steps are recorded, and sampled tokens are delivered.

use bevy::prelude::*;

use super::config::TextError;
use super::decoder::{Cache, Rows};
use super::events::{DoneReason, TextLogits, TextToken};
use super::model::{Failed, Ready, TextModel};
use super::sample::{Choice, count, sample};
use super::speaker::{Speaker, SpeakerOf};
use crate::error::{OpError, OpResult};
use crate::ir::{Backend, DType};
use crate::readback::TensorReceiver;
use crate::record::{TensorCommands, TensorValue};
use crate::tensor::{Tensor, TensorData, TensorOf};

/// A step whose tokens are not read back yet.
pub(super) struct Pending {
    /// `f32 [rows, 2]`: ids and probabilities.
    receiver: TensorReceiver,
    /// The logits of the only row, if they were asked for.
    logits: Option<TensorReceiver>,
    /// The speakers of the rows, and the number of the text.
    rows: Vec<(Entity, u64)>,
}

type Spoken = (Entity, &'static SpeakerOf, &'static mut Speaker);

/// Hands on the tokens that have arrived.
pub(super) fn deliver(
    mut models: Query<(Entity, &mut Ready)>,
    mut speakers: Query<(&mut Speaker, &SpeakerOf)>,
    mut commands: Commands,
) {
    for (model, mut ready) in &mut models {
        // Change detection is not used for it.
        let ready = ready.bypass_change_detection();
        while let Some(pending) = ready.pending.front() {
            // The logits are read after the tokens, so once they are here, the tokens are too.
            let logits = match &pending.logits {
                Some(receiver) => match receiver.try_recv() {
                    Some(logits) => Some(logits),
                    None => break,
                },
                None => None,
            };
            let Some(answer) = pending.receiver.try_recv() else { break };
            let Some(pending) = ready.pending.pop_front() else { break };
            if let (Some(Ok(logits)), Some(&(entity, _))) = (logits, pending.rows.first()) {
                commands.trigger(TextLogits { entity, logits });
            }
            for (row, &(entity, run)) in pending.rows.iter().enumerate() {
                let Ok((mut speaker, _)) = speakers.get_mut(entity) else { continue };
                if speaker.run != run {
                    continue;
                }
                let values = match &answer {
                    Ok(data) => {
                        data.as_slice::<f32>().ok().and_then(|v| Some((*v.get(2 * row)?, *v.get(2 * row + 1)?)))
                    }
                    Err(error) => {
                        end(&mut commands, &mut speaker, entity, model, DoneReason::Error(error.clone().into()));
                        continue;
                    }
                };
                match values {
                    Some((id, probability)) if probability.is_finite() => {
                        let Some(talk) = &mut speaker.talk else { continue };
                        talk.inbox.push_back((id as u32, probability));
                    }
                    _ => end(&mut commands, &mut speaker, entity, model, DoneReason::Error(TextError::NotFinite)),
                }
            }
        }
    }
    for (model, ready) in &models {
        for (mut speaker, _) in speakers.iter_mut().filter(|(_, of)| of.0 == model) {
            let speaker = speaker.bypass_change_detection();
            hand_on(&mut commands, speaker, model, ready);
        }
    }
}

/// Hands on the tokens of a speaker as long as its receiver takes them.
fn hand_on(commands: &mut Commands, speaker: &mut Speaker, model: Entity, ready: &Ready) {
    while !speaker.is_blocked()
        && let Some(talk) = &mut speaker.talk
        && let Some((id, probability)) = talk.inbox.pop_front()
    {
        let (entity, limit) = (talk.say.entity, talk.limit);
        if ready.tokenizer.is_end(id) {
            end(commands, speaker, entity, model, DoneReason::Stop);
            return;
        }
        let text = speaker.hand_on(&ready.tokenizer, id, probability);
        commands.trigger(TextToken { entity, speaker: entity, model, id, text, probability });
        if speaker.talk.as_ref().is_some_and(|talk| talk.said.len() >= limit) {
            end(commands, speaker, entity, model, DoneReason::Length);
        }
    }
}

fn end(commands: &mut Commands, speaker: &mut Speaker, entity: Entity, model: Entity, reason: DoneReason) {
    if let Some(done) = speaker.end(entity, Some(model), reason) {
        commands.trigger(done);
    }
}

/// Records the steps of all models.
pub(super) fn speak(
    mut models: Query<(Entity, &mut Ready)>,
    failed: Query<&Failed>,
    known: Query<(), With<TextModel>>,
    mut speakers: Query<Spoken>,
    mut orphans: Query<(Entity, &mut Speaker), Without<SpeakerOf>>,
    ops: TensorCommands,
    mut commands: Commands,
) {
    for (entity, mut speaker) in &mut orphans {
        if let Some(done) = speaker.end(entity, None, DoneReason::Error(TextError::NoModel)) {
            commands.trigger(done);
        }
    }
    for (entity, of, mut speaker) in &mut speakers {
        if let Ok(Failed(error)) = failed.get(of.0) {
            end(&mut commands, &mut speaker, entity, of.0, DoneReason::Error(error.clone()));
        } else if !known.contains(of.0) {
            end(&mut commands, &mut speaker, entity, of.0, DoneReason::Error(TextError::NoModel));
        }
    }
    for (model, mut ready) in &mut models {
        let ready = ready.bypass_change_detection();
        let mut own: Vec<_> =
            speakers.iter_mut().filter(|(_, of, speaker)| of.0 == model && speaker.talk.is_some()).collect();
        own.sort_by_key(|(entity, ..)| *entity);
        let mut active: Vec<(Entity, &mut Speaker)> = Vec::with_capacity(own.len());
        for (entity, _, speaker) in &mut own {
            let speaker = speaker.bypass_change_detection();
            match prepare(&mut commands, *entity, speaker, ready) {
                Ok(true) => active.push((*entity, speaker)),
                Ok(false) => {}
                Err(reason) => end(&mut commands, speaker, *entity, model, reason),
            }
        }
        let backend = ops.model_backend(model);
        read_prompt(&ops, &mut commands, backend, model, ready, &mut active);
        for _ in 0..ready.settings.steps_per_frame {
            if ready.pending.len() >= ready.settings.in_flight {
                break;
            }
            generate(&ops, &mut commands, backend, model, ready, &mut active);
        }
    }
}

/// Whether a speaker may take part in steps. Tokenises its prompt and spawns its tensors at first.
fn prepare(commands: &mut Commands, entity: Entity, speaker: &mut Speaker, ready: &Ready) -> Result<bool, DoneReason> {
    let Some(talk) = &speaker.talk else { return Ok(false) };
    if !talk.begun {
        speaker.begin(&ready.tokenizer, ready.context).map_err(DoneReason::Error)?;
        if speaker.talk.as_ref().is_some_and(|talk| talk.limit == 0) {
            return Err(DoneReason::Length);
        }
    }
    let counts = speaker.sampler.counts();
    if !speaker.caches.is_empty() && (!counts || speaker.counts.is_some()) {
        return Ok(!speaker.paused && !speaker.is_blocked());
    }
    let failed = |error: crate::error::TensorError| {
        DoneReason::Error(OpError::Argument { op: "speaker", reason: error.to_string() }.into())
    };
    let mut spawn = |name: String, tensor: Tensor| commands.spawn((Name::new(name), tensor, TensorOf(entity))).id();
    let config = &ready.decoder.config;
    if speaker.caches.is_empty() {
        // Padding of the last piece of a prompt is written behind the context.
        let room = ready.context + ready.settings.chunk;
        for i in 0..config.layers {
            let cache = |size| Tensor::zeros([1, config.kv_heads, room, size], ready.settings.cache).map_err(failed);
            let (keys, values) = (cache(config.key)?, cache(config.value)?);
            let (keys, values) = (spawn(format!("keys {i}"), keys), spawn(format!("values {i}"), values));
            speaker.caches.push(Cache { keys, values });
        }
        speaker.next = Some(spawn("next".to_owned(), Tensor::zeros([1], DType::I32).map_err(failed)?));
    }
    if counts && speaker.counts.is_none() {
        let words = Tensor::zeros([1, ready.vocabulary()], DType::F32).map_err(failed)?;
        speaker.counts = Some(spawn("counts".to_owned(), words));
    }
    // The tensors exist from the next frame on.
    Ok(false)
}

/// Records a piece of the first prompt that is not read to its end.
fn read_prompt(
    ops: &TensorCommands,
    commands: &mut Commands,
    backend: Backend,
    model: Entity,
    ready: &mut Ready,
    active: &mut [(Entity, &mut Speaker)],
) {
    if ready.pending.len() >= ready.settings.in_flight {
        return;
    }
    let unread = |speaker: &Speaker| speaker.talk.as_ref().is_some_and(|talk| talk.read < talk.prompt.len());
    let Some((entity, speaker)) = active.iter_mut().find(|(_, speaker)| unread(speaker)) else { return };
    match record_prompt(ops, backend, ready, *entity, speaker) {
        Ok(Some(pending)) => ready.pending.push_back(pending),
        Ok(None) => {}
        Err(error) => end(commands, speaker, *entity, model, DoneReason::Error(error.into())),
    }
}

fn record_prompt(
    ops: &TensorCommands,
    backend: Backend,
    ready: &Ready,
    entity: Entity,
    speaker: &mut Speaker,
) -> OpResult<Option<Pending>> {
    let (sampler, run, counts) = (speaker.sampler, speaker.run, speaker.counts.filter(|_| speaker.sampler.counts()));
    let (Some(talk), Some(next)) = (&mut speaker.talk, speaker.next) else { return Ok(None) };
    let position = talk.read;
    let count_read = (talk.prompt.len() - position).min(ready.settings.chunk);
    // Few sizes, so that few plans are needed. Rows behind the prompt see it, but nothing sees them.
    let rows = if count_read == 1 { 1 } else { count_read.next_power_of_two().max(8) };
    let mut ids: Vec<i32> = talk.prompt[position..position + count_read].iter().map(|&id| id as i32).collect();
    ids.resize(rows, 0);
    let ids = host(ops, backend, &ids)?;
    let caches = &speaker.caches;
    let x = ready.decoder.layers(ops, backend, ids, &[Rows { caches, position, count: rows }])?;
    talk.read += count_read;
    if talk.read < talk.prompt.len() {
        return Ok(None);
    }
    if let (0, Some(counts)) = (talk.scheduled, counts) {
        ops.store(0.0, counts)?;
    }
    let last = host(ops, backend, &[count_read as i32 - 1])?;
    let logits = ready.decoder.logits(ops, ops.gather(x, last, 0)?)?;
    let wanted = talk.say.logits;
    let choice = Choice { sampler, counts, token: talk.scheduled };
    talk.scheduled += 1;
    let (ids, probability) = sample(ops, backend, logits, &[choice])?;
    keep(ops, ids, &[(next, counts)])?;
    let receiver = ops.read(ops.concat([ops.cast(ids, DType::F32)?, probability], 1)?)?;
    let logits = if wanted { Some(ops.read(ops.flatten(logits, 0, 1)?)?) } else { None };
    Ok(Some(Pending { receiver, logits, rows: vec![(entity, run)] }))
}

/// Records one token of every speaker that has read its prompt.
fn generate(
    ops: &TensorCommands,
    commands: &mut Commands,
    backend: Backend,
    model: Entity,
    ready: &mut Ready,
    active: &mut [(Entity, &mut Speaker)],
) {
    let can = |speaker: &Speaker| {
        speaker
            .talk
            .as_ref()
            .is_some_and(|talk| talk.read == talk.prompt.len() && (1..talk.limit).contains(&talk.scheduled))
    };
    let mut group: Vec<&mut (Entity, &mut Speaker)> = active.iter_mut().filter(|(_, speaker)| can(speaker)).collect();
    if group.is_empty() {
        return;
    }
    match record_step(ops, backend, ready, &group) {
        Ok(pending) => {
            ready.pending.push_back(pending);
            for (_, speaker) in &mut group {
                if let Some(talk) = &mut speaker.talk {
                    talk.scheduled += 1;
                }
            }
        }
        Err(error) => {
            for (entity, speaker) in group {
                end(commands, speaker, *entity, model, DoneReason::Error(error.clone().into()));
            }
        }
    }
}

fn record_step(
    ops: &TensorCommands,
    backend: Backend,
    ready: &Ready,
    group: &[&mut (Entity, &mut Speaker)],
) -> OpResult<Pending> {
    let mut rows = Vec::with_capacity(group.len());
    let (mut nexts, mut choices, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for (_, speaker) in group.iter().map(|member| (&member.0, &member.1)) {
        let (Some(talk), Some(next)) = (&speaker.talk, speaker.next) else { continue };
        // The token that was sampled last is the input.
        let position = talk.prompt.len() + talk.scheduled - 1;
        rows.push(Rows { caches: &speaker.caches, position, count: 1 });
        nexts.push(next);
        let counts = speaker.counts.filter(|_| speaker.sampler.counts());
        choices.push(Choice { sampler: speaker.sampler, counts, token: talk.scheduled });
        kept.push((next, counts));
    }
    let ids = match nexts[..] {
        [one] => ops.value(one)?,
        _ => ops.concat(nexts, 0)?,
    };
    let x = ready.decoder.layers(ops, backend, ids, &rows)?;
    let logits = ready.decoder.logits(ops, x)?;
    let (ids, probability) = sample(ops, backend, logits, &choices)?;
    keep(ops, ids, &kept)?;
    let receiver = ops.read(ops.concat([ops.cast(ids, DType::F32)?, probability], 1)?)?;
    let rows = group.iter().map(|member| (member.0, member.1.run)).collect();
    Ok(Pending { receiver, logits: None, rows })
}

/// Stores the sampled tokens `[rows, 1]` where the next step finds them, and counts them.
fn keep(ops: &TensorCommands, ids: TensorValue, rows: &[(Entity, Option<Entity>)]) -> OpResult<()> {
    for (i, &(next, counts)) in rows.iter().enumerate() {
        let id = ops.slice(ids, 0, i as isize, i as isize + 1)?;
        ops.store(ops.reshape(id, &[1])?, next)?;
        if let Some(counts) = counts {
            count(ops, counts, id)?;
        }
    }
    Ok(())
}

/// Integers of the host as a value.
fn host<'a>(ops: &'a TensorCommands, backend: Backend, values: &[i32]) -> OpResult<TensorValue<'a>> {
    let data = TensorData::new(values, [values.len()])
        .map_err(|error| OpError::Argument { op: "speak", reason: error.to_string() })?;
    ops.host_value(backend, &data, false)
}
