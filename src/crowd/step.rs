//! The systems of a crowd: members join and leave, observations are gathered, actions are written.

use core::marker::PhantomData;

use bevy::diagnostic::FrameCount;
use bevy::ecs::component::Mutable;
use bevy::ecs::lifecycle::Remove;
use bevy::platform::collections::HashMap;
use bevy::platform::time::Instant;
use bevy::prelude::*;
use bytemuck::{Pod, cast_slice, pod_read_unaligned};

use super::rows::Upload;
use super::{CrowdFailed, CrowdInput, CrowdSeat, InCrowd, TensorCrowd, Waiting};
use crate::error::CrowdError;
use crate::ir::{Backend, DType, Shape};
use crate::record::{ScatterMode, TensorCommands, TensorValue};
use crate::tensor::{Tensor, TensorData, TensorOf};

/// Members, with or without a seat.
type Members<O, A> = (Entity, Ref<'static, InCrowd>, Option<&'static CrowdSeat<O, A>>, Has<A>);

/// A seat, and the observation of the member that has it.
type Observed<O, A> = (Ref<'static, O>, Ref<'static, CrowdSeat<O, A>>);
/// A crowd that can make a step.
type Stepping<O, A> = (Entity, &'static mut TensorCrowd<O, A>, Option<&'static CrowdInput<O, A>>);
/// A crowd, and its tensor once there is one.
type WithInput<O, A> = (&'static TensorCrowd<O, A>, Option<&'static CrowdInput<O, A>>);
/// Entities with a seat that are no members any more.
type Strangers<O, A> = (With<CrowdSeat<O, A>>, Or<(Without<InCrowd>, Without<O>)>);

/// Gives a row to members that have joined or changed their crowd.
pub(super) fn join<O: Component + Pod, A: Component + Pod>(
    members: Query<Members<O, A>, With<O>>,
    mut crowds: Query<&mut TensorCrowd<O, A>>,
    mut commands: Commands,
) {
    // A crowd that was replaced knows nothing of the seats in the old one.
    let mut replaced = false;
    for mut crowd in &mut crowds {
        replaced |= core::mem::take(&mut crowd.bypass_change_detection().is_new);
    }
    for (member, in_crowd, seat, can_act) in &members {
        if seat.is_some() && !replaced && !in_crowd.is_changed() {
            continue;
        }
        if let Some(seat) = seat
            && let Ok(mut old) = crowds.get_mut(seat.crowd)
            && old.id == seat.id
        {
            if seat.crowd == in_crowd.0 {
                continue;
            }
            old.rows.give_back(seat.row);
        }
        let InCrowd(crowd) = *in_crowd;
        let Ok(mut entered) = crowds.get_mut(crowd) else {
            // The crowd may be inserted later. Until then the member has no seat.
            commands.entity(member).try_remove::<CrowdSeat<O, A>>();
            continue;
        };
        let (row, since) = (entered.rows.take(), entered.stats.steps + 1);
        let seat = CrowdSeat::<O, A> { crowd, id: entered.id, row, since, frame: None, types: PhantomData };
        let mut member = commands.entity(member);
        member.try_insert(seat);
        if !can_act {
            member.try_insert(A::zeroed());
        }
    }
}

/// Takes back the row of a member that is despawned.
pub(super) fn leave<O: Component + Pod, A: Component + Pod>(
    seat: On<Remove, CrowdSeat<O, A>>,
    seats: Query<&CrowdSeat<O, A>>,
    mut crowds: Query<&mut TensorCrowd<O, A>>,
) {
    if let Ok(seat) = seats.get(seat.entity)
        && let Ok(mut crowd) = crowds.get_mut(seat.crowd)
        && crowd.id == seat.id
    {
        crowd.rows.give_back(seat.row);
    }
}

/// Takes the seats of all members and the tensor of a crowd that is removed.
pub(super) fn dissolve<O: Component + Pod, A: Component + Pod>(
    removed: On<Remove, TensorCrowd<O, A>>,
    crowds: Query<WithInput<O, A>>,
    seats: Query<(Entity, &CrowdSeat<O, A>)>,
    mut commands: Commands,
) {
    let Ok((crowd, input)) = crowds.get(removed.entity) else { return };
    for (member, _) in seats.iter().filter(|(_, seat)| seat.id == crowd.id) {
        commands.entity(member).try_remove::<CrowdSeat<O, A>>();
    }
    if let Some(input) = input {
        commands.entity(input.observations).try_despawn();
        commands.entity(removed.entity).try_remove::<CrowdInput<O, A>>();
    }
}

/// Removes the seats of entities that are no members any more, and numbers the members of sparse crowds anew.
pub(super) fn pack<O: Component + Pod, A: Component + Pod>(
    strangers: Query<Entity, Strangers<O, A>>,
    mut seats: Query<&mut CrowdSeat<O, A>>,
    mut crowds: Query<&mut TensorCrowd<O, A>>,
    mut commands: Commands,
) {
    for stranger in &strangers {
        commands.entity(stranger).try_remove::<CrowdSeat<O, A>>();
    }
    for mut crowd in &mut crowds {
        if crowd.rows.is_sparse() {
            crowd.rows.restart();
            let (id, since) = (crowd.id, crowd.stats.steps + 1);
            for mut seat in seats.iter_mut().filter(|seat| seat.id == id) {
                seat.row = crowd.rows.take();
                seat.since = since;
            }
        }
    }
}

/// Gathers the observations of all members, and records a step of every crowd that may make one.
pub(super) fn observe<O: Component + Pod, A: Component + Pod>(
    members: Query<Observed<O, A>>,
    mut crowds: Query<Stepping<O, A>>,
    frame: Res<FrameCount>,
    ops: TensorCommands,
    mut commands: Commands,
) {
    let start = Instant::now();
    let mut crowds: Vec<_> = crowds.iter_mut().collect();
    // Members of one crowd usually follow each other.
    let mut at = 0;
    for (observation, seat) in &members {
        // A seat that is new or has another row needs its observation too.
        if !observation.is_changed() && !seat.is_changed() {
            continue;
        }
        if crowds.get(at).is_none_or(|(crowd, ..)| *crowd != seat.crowd) {
            let Some(found) = crowds.iter().position(|(crowd, ..)| *crowd == seat.crowd) else { continue };
            at = found;
        }
        let crowd = crowds[at].1.bypass_change_detection();
        if crowd.id != seat.id {
            continue;
        }
        crowd.rows.set(seat.row, cast_slice(core::slice::from_ref(&*observation)));
    }
    let gathered = start.elapsed();
    for (entity, crowd, input) in &mut crowds {
        crowd.stats.gather = gathered;
        if crowd.paused || crowd.rows.members() == 0 {
            continue;
        }
        if crowd.waiting.len() >= crowd.in_flight.max(1) {
            crowd.stats.skipped += 1;
            continue;
        }
        if let Err(error) =
            step(*entity, crowd, input.map(|input| input.observations), (frame.0, start), &ops, &mut commands)
        {
            fail(*entity, crowd, error, &mut commands);
        }
    }
}

/// Records one step. The first step of a new capacity only creates the tensor; the network runs from the next frame on.
fn step<O: Component + Pod, A: Component + Pod>(
    entity: Entity,
    crowd: &mut TensorCrowd<O, A>,
    observations: Option<Entity>,
    (frame, start): (u32, Instant),
    ops: &TensorCommands,
    commands: &mut Commands,
) -> Result<(), CrowdError> {
    let (capacity, width) = (crowd.rows.capacity(), crowd.rows.width());
    let tensor = match observations {
        Some(tensor) if ops.shape(tensor).is_ok_and(|shape| shape[..] == [capacity, width]) => tensor,
        old => {
            let Upload::All(data) = crowd.rows.take_changes(true)? else { return Ok(()) };
            if let Some(old) = old {
                commands.entity(old).try_despawn();
            }
            let bundle = (Name::new("observations"), Tensor::from(data), TensorOf(entity));
            let observations = commands.spawn(bundle).id();
            commands.entity(entity).try_insert(CrowdInput::<O, A> { observations, types: PhantomData });
            return Ok(());
        }
    };
    let observations = ops.value(tensor)?;
    // On the CPU backend a copy of all rows is cheaper than a scatter.
    let backend = observations.backend();
    let upload = crowd.rows.take_changes(backend == Backend::Cpu)?;
    let (rows, uploaded) = upload_rows(ops, tensor, observations, upload)?;
    let actions = (crowd.network)(ops, rows)?;
    let (found, dtype) = (ops.shape(actions)?, ops.dtype(actions)?);
    let expected = Shape::from([capacity, size_of::<A>() / 4]);
    if found != expected || dtype != DType::F32 {
        return Err(CrowdError::Actions { dtype, found, expected });
    }
    let receiver = ops.read(actions)?;
    crowd.stats.steps += 1;
    crowd.stats.uploaded_rows = uploaded;
    crowd.waiting.push_back(Waiting { receiver, step: crowd.stats.steps, frame, start });
    Ok(())
}

/// Brings the changes to the tensor. Returns its new value, and the number of rows that were uploaded.
fn upload_rows<'a>(
    ops: &'a TensorCommands,
    tensor: Entity,
    observations: TensorValue<'a>,
    upload: Upload,
) -> Result<(TensorValue<'a>, usize), CrowdError> {
    match upload {
        Upload::Nothing => Ok((observations, 0)),
        Upload::All(data) => {
            ops.write_data(tensor, &data)?;
            Ok((ops.value(tensor)?, data.shape()[0]))
        }
        Upload::Some(numbers, rows) => {
            let host = |data: &TensorData| ops.host_value(observations.backend(), data, false);
            let updated = ops.scatter_nd(observations, host(&numbers)?, host(&rows)?, ScatterMode::Replace)?;
            ops.store(updated, tensor)?;
            Ok((updated, rows.shape()[0]))
        }
    }
}

/// Writes the actions of the newest step that has been answered.
pub(super) fn act<O: Component + Pod, A: Component<Mutability = Mutable> + Pod>(
    mut crowds: Query<(Entity, &mut TensorCrowd<O, A>)>,
    mut members: Query<(&mut CrowdSeat<O, A>, &mut A)>,
    frame: Res<FrameCount>,
    mut commands: Commands,
) {
    let start = Instant::now();
    // By the id of the crowd.
    let mut arrived: HashMap<u64, (Waiting, TensorData)> = HashMap::default();
    for (entity, mut crowd) in &mut crowds {
        while let Some(result) = crowd.waiting.front().and_then(|waiting| waiting.receiver.try_recv()) {
            let Some(waiting) = crowd.waiting.pop_front() else { break };
            match result {
                Ok(actions) => {
                    crowd.stats.answers += 1;
                    crowd.stats.latency = frame.0.wrapping_sub(waiting.frame);
                    crowd.failed = None;
                    arrived.insert(crowd.id, (waiting, actions));
                }
                Err(error) => fail(entity, &mut crowd, error.into(), &mut commands),
            }
        }
    }
    if arrived.is_empty() {
        return;
    }
    for (mut seat, mut action) in &mut members {
        let Some((waiting, actions)) = arrived.get(&seat.id) else { continue };
        // The row belonged to another member when an older step was recorded.
        if seat.since > waiting.step {
            continue;
        }
        let (at, size) = (seat.row as usize, size_of::<A>());
        if let Some(bytes) = actions.bytes().get(at * size..(at + 1) * size) {
            *action = pod_read_unaligned(bytes);
            seat.bypass_change_detection().frame = Some(waiting.frame);
        }
    }
    for (_, mut crowd) in &mut crowds {
        if let Some((waiting, _)) = arrived.get(&crowd.id) {
            crowd.stats.scatter = start.elapsed();
            crowd.stats.step = waiting.start.elapsed();
        }
    }
}

/// Reports an error, unless it is the same as that of the step before.
fn fail<O: Component, A: Component>(
    entity: Entity,
    crowd: &mut TensorCrowd<O, A>,
    error: CrowdError,
    commands: &mut Commands,
) {
    if crowd.failed.as_ref() != Some(&error) {
        warn!("crowd {entity}: {error}");
        crowd.failed = Some(error.clone());
        commands.trigger(CrowdFailed { entity, error });
    }
}
