//! Bounded queues: how far the recordings of a model may run ahead of the backend.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bevy::platform::collections::HashMap;
use bevy::prelude::*;
use smallvec::SmallVec;

/// What happens to recordings of a model while its earlier recordings are unfinished. A component of the model.
///
/// A backend takes the recordings of at most [`BacklogSettings::in_flight`] frames per model. Later recordings wait in
/// the main world. All recordings of a model in one frame count as one. Without this component,
/// [`BacklogSettings::policy`] applies.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// fn spawn_camera_model(mut commands: Commands) {
///     // Only the newest picture matters.
///     commands.spawn((TensorModel, TensorBacklog::Latest));
/// }
/// ```
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq, Hash, Reflect)]
#[reflect(Component)]
pub enum TensorBacklog {
    /// Nothing waits. Ops that use a tensor of the model return [`OpError::Busy`](crate::error::OpError::Busy) until an
    /// earlier recording has finished.
    Wait,
    /// A waiting recording is replaced by a newer one. Its readbacks are answered with
    /// [`ReadError::Replaced`](crate::error::ReadError::Replaced). For cameras and sensors.
    ///
    /// A recording is only replaced if nothing is lost: it does not update a tensor that it reads, it does not append to
    /// one, no other recording uses its results, and the newer one writes the same tensors. Others wait, as with
    /// `Queue(1)`.
    Latest,
    /// Up to this number of frames wait. Beyond that, ops that use a tensor of the model return
    /// [`OpError::Busy`](crate::error::OpError::Busy).
    Queue(usize),
}

impl Default for TensorBacklog {
    fn default() -> Self {
        Self::Queue(1024)
    }
}

/// Settings of the queues of recorded work.
#[derive(Resource, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[reflect(Resource)]
pub struct BacklogSettings {
    /// Maximum number of frames per model whose recordings are on a backend and not finished. At least 1; 0 counts as 1.
    pub in_flight: usize,
    /// The policy of models without a [`TensorBacklog`], and of tensors without a model. The latter count as one model.
    pub policy: TensorBacklog,
}

impl Default for BacklogSettings {
    fn default() -> Self {
        Self { in_flight: 3, policy: TensorBacklog::default() }
    }
}

/// The unfinished recordings of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of frames whose recordings a backend has taken and not finished.
    pub in_flight: usize,
    /// Number of frames whose recordings wait in the main world.
    pub waiting: usize,
    /// How long the oldest waiting recording has waited. `None` if nothing waits.
    pub age: Option<Duration>,
    /// Whether ops that use a tensor of the model return [`OpError::Busy`](crate::error::OpError::Busy) now.
    pub busy: bool,
}

/// A model, or `None` for all tensors without a model.
pub(crate) type Owner = Option<Entity>;

/// The models whose tensors a recording uses.
pub(crate) type Owners = SmallVec<[Owner; 2]>;

/// The unfinished recordings of all models. Clones share the same data.
#[derive(Resource, Clone, Debug, Default)]
pub struct TensorBacklogs(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<HashMap<Owner, State>>,
    /// Number of busy models. Usually 0, which makes the check of every op cheap.
    busy: AtomicUsize,
    /// Number of ops that returned an error because their model was busy, until they are counted.
    refused: AtomicUsize,
}

/// The recordings of one model.
#[derive(Debug, Default)]
struct State {
    /// Frames in flight, and the number of their unfinished recordings.
    flying: VecDeque<(u64, usize)>,
    waiting: Waiting,
    limit: usize,
    policy: TensorBacklog,
    busy: bool,
}

/// The waiting recordings of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Number of frames.
    pub frames: usize,
    /// Number of frames that no newer recording can replace.
    pub lasting: usize,
    pub age: Option<Duration>,
}

impl State {
    fn is_busy(&self) -> bool {
        match self.policy {
            TensorBacklog::Wait => self.waiting.frames > 0 || self.flying.len() >= self.limit,
            TensorBacklog::Latest => self.waiting.lasting >= 1,
            TensorBacklog::Queue(most) => {
                self.waiting.frames >= most && (self.waiting.frames > 0 || self.flying.len() >= self.limit)
            }
        }
    }

    fn backlog(&self) -> Backlog {
        let Waiting { frames, age, .. } = self.waiting;
        Backlog { in_flight: self.flying.len(), waiting: frames, age, busy: self.busy }
    }

    fn is_idle(&self) -> bool {
        self.flying.is_empty() && self.waiting.frames == 0
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, HashMap<Owner, State>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides again whether a model is busy, after something changed.
    fn review(&self, table: &mut HashMap<Owner, State>, owner: Owner) {
        let Some(state) = table.get_mut(&owner) else { return };
        let busy = state.is_busy();
        match (core::mem::replace(&mut state.busy, busy), busy) {
            (false, true) => drop(self.busy.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.busy.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        if state.is_idle() && !busy {
            table.remove(&owner);
        }
    }
}

impl TensorBacklogs {
    /// The unfinished recordings of a model. `None` is for all tensors without a model.
    pub fn of(&self, model: Option<Entity>) -> Backlog {
        self.0.table().get(&model).map_or_else(Backlog::default, State::backlog)
    }

    /// Every model with unfinished recordings, in the order of their entities.
    pub fn all(&self) -> Vec<(Option<Entity>, Backlog)> {
        let mut all: Vec<_> = self.0.table().iter().map(|(owner, state)| (*owner, state.backlog())).collect();
        all.sort_unstable_by_key(|(owner, _)| *owner);
        all
    }

    /// The backlog of a model if it is busy.
    pub(crate) fn busy(&self, owner: Owner) -> Option<Backlog> {
        if self.0.busy.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(self.of(owner)).filter(|backlog| backlog.busy)
    }

    /// Counts an op that was refused.
    pub(crate) fn refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of ops that were refused since the last call.
    pub(crate) fn take_refused(&self) -> u64 {
        self.0.refused.swap(0, Ordering::Relaxed) as u64
    }

    /// Whether a backend may take the recordings of a frame of this model.
    pub(crate) fn admits(&self, owner: Owner, frame: u64, limit: usize) -> bool {
        self.0.table().get(&owner).is_none_or(|state| {
            state.flying.len() < limit.max(1) || state.flying.iter().any(|(flying, _)| *flying == frame)
        })
    }

    /// Counts a recording that a backend takes as in flight until the ticket is dropped.
    pub(crate) fn issue(&self, owners: Owners, frame: u64) -> Arc<Ticket> {
        let mut table = self.0.table();
        for owner in &owners {
            let flying = &mut table.entry(*owner).or_default().flying;
            match flying.iter_mut().find(|(flying, _)| *flying == frame) {
                Some((_, count)) => *count += 1,
                None => flying.push_back((frame, 1)),
            }
        }
        drop(table);
        Arc::new(Ticket { owners, frame, shared: self.0.clone() })
    }

    /// Updates what waits. `waiting` has all models with waiting recordings.
    pub(crate) fn update(
        &self,
        waiting: &HashMap<Owner, Waiting>,
        limit: usize,
        policy: impl Fn(Owner) -> TensorBacklog,
    ) {
        let mut table = self.0.table();
        for owner in waiting.keys() {
            table.entry(*owner).or_default();
        }
        let owners: Vec<Owner> = table.keys().copied().collect();
        for owner in owners {
            if let Some(state) = table.get_mut(&owner) {
                state.waiting = waiting.get(&owner).copied().unwrap_or_default();
                (state.limit, state.policy) = (limit.max(1), policy(owner));
            }
            self.0.review(&mut table, owner);
        }
    }

    /// Number of recordings in flight, of all models.
    pub(crate) fn in_flight(&self) -> usize {
        self.0.table().values().map(|state| state.flying.len()).sum()
    }
}

/// Counts a recording as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    owners: Owners,
    frame: u64,
    shared: Arc<Shared>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        for owner in &self.owners {
            if let Some(state) = table.get_mut(owner)
                && let Some(at) = state.flying.iter().position(|(frame, _)| *frame == self.frame)
            {
                state.flying[at].1 -= 1;
                if state.flying[at].1 == 0 {
                    state.flying.remove(at);
                }
            }
            self.shared.review(&mut table, *owner);
        }
    }
}

/// A run condition: whether no model with the marker component `M` is busy, so that its tensors can be used.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// # #[derive(Component)]
/// # struct Policy;
/// # fn think(ops: TensorCommands) {}
/// # App::new()
/// .add_systems(Update, think.run_if(has_room::<Policy>))
/// # ;
/// ```
pub fn has_room<M: Component>(models: Query<Entity, With<M>>, backlogs: Res<TensorBacklogs>) -> bool {
    models.iter().all(|model| backlogs.busy(Some(model)).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(owner: Owner) -> Owners {
        Owners::from_iter([owner])
    }

    fn settled(backlogs: &TensorBacklogs, policy: TensorBacklog, waiting: &[(Owner, Waiting)]) {
        let waiting = waiting.iter().copied().collect();
        backlogs.update(&waiting, 2, |_| policy);
    }

    #[test]
    fn recordings_of_one_frame_count_once_and_end_with_their_last_ticket() {
        let backlogs = TensorBacklogs::default();
        let (a, b) = (backlogs.issue(owners(None), 1), backlogs.issue(owners(None), 1));
        assert_eq!(backlogs.of(None).in_flight, 1);
        let c = backlogs.issue(owners(None), 2);
        assert_eq!(backlogs.of(None).in_flight, 2);
        assert!(backlogs.admits(None, 2, 2) && !backlogs.admits(None, 3, 2));
        drop(a);
        assert_eq!(backlogs.of(None).in_flight, 2);
        drop(b);
        assert_eq!(backlogs.of(None).in_flight, 1);
        drop(c);
        assert!(backlogs.all().is_empty());
    }

    #[test]
    fn each_policy_is_busy_at_its_bound_and_not_after() {
        let frames = |frames, lasting| Waiting { frames, lasting, age: None };
        let cases = [
            (TensorBacklog::Wait, frames(0, 0), 1, false),
            (TensorBacklog::Wait, frames(0, 0), 2, true),
            (TensorBacklog::Wait, frames(1, 0), 2, true),
            (TensorBacklog::Latest, frames(1, 0), 2, false),
            (TensorBacklog::Latest, frames(1, 1), 2, true),
            (TensorBacklog::Queue(2), frames(1, 1), 2, false),
            (TensorBacklog::Queue(2), frames(2, 0), 2, true),
            (TensorBacklog::Queue(0), frames(0, 0), 1, false),
            (TensorBacklog::Queue(0), frames(0, 0), 2, true),
        ];
        for (policy, waiting, flying, busy) in cases {
            let backlogs = TensorBacklogs::default();
            let tickets: Vec<_> = (0..flying).map(|frame| backlogs.issue(owners(None), frame)).collect();
            settled(&backlogs, policy, &[(None, waiting)]);
            assert_eq!(backlogs.busy(None).is_some(), busy, "{policy:?} {waiting:?} {flying}");
            drop(tickets);
            settled(&backlogs, policy, &[]);
            assert!(backlogs.busy(None).is_none() && backlogs.all().is_empty(), "{policy:?} {waiting:?} {flying}");
        }
    }

    #[test]
    fn a_finished_recording_ends_the_wait_at_once() {
        let backlogs = TensorBacklogs::default();
        let (a, _b) = (backlogs.issue(owners(None), 1), backlogs.issue(owners(None), 2));
        settled(&backlogs, TensorBacklog::Wait, &[]);
        assert!(backlogs.busy(None).is_some());
        drop(a);
        assert!(backlogs.busy(None).is_none());
    }
}
