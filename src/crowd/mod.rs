//! One network for many entities: observations in, actions out, one batch per step.
//!
//! Each member of a crowd is an entity with an observation component. A step gathers the observations of all members as
//! the rows of one tensor, runs the crowd's network once, and writes each row of the result into the action component of
//! its entity when the values arrive. The frame does not wait for them.
//!
//! ```
//! # use bevy::prelude::*;
//! # use bevy_tensor_compute::prelude::*;
//! use bevy_tensor_compute::crowd::{CrowdSeat, InCrowd, TensorCrowd, TensorCrowdPlugin};
//! use bevy_tensor_compute::nn::Linear;
//! use bytemuck::{Pod, Zeroable};
//!
//! #[derive(Component, Clone, Copy, Pod, Zeroable)]
//! #[repr(C)]
//! struct Senses { goal: [f32; 2], neighbour: [f32; 2] }
//!
//! #[derive(Component, Clone, Copy, Pod, Zeroable)]
//! #[repr(C)]
//! struct Steering { force: [f32; 2] }
//!
//! fn spawn_herd(mut commands: Commands) -> Result {
//!     let herd = commands.spawn((TensorModel, Name::new("herd"))).id();
//!     let weight = commands.spawn_tensor(herd, "weight", Tensor::random_normal([2, 4], 0.0, 0.3, 7, DType::F32)?);
//!     let layer = Linear { weight, bias: None };
//!     commands.entity(herd).insert(TensorCrowd::<Senses, Steering>::new(move |ops, rows| ops.tanh(layer.apply(ops, rows)?)));
//!     for i in 0..1000 {
//!         commands.spawn((Transform::from_xyz(i as f32, 0.0, 0.0), Senses::zeroed(), InCrowd(herd)));
//!     }
//!     Ok(())
//! }
//!
//! fn steer(mut members: Query<(&Steering, &mut Transform)>, time: Res<Time>) {
//!     for (steering, mut transform) in &mut members {
//!         transform.translation += Vec2::from(steering.force).extend(0.0) * time.delta_secs();
//!     }
//! }
//!
//! App::new()
//!     .add_plugins((AnywherePlugins::headless(), TensorComputePlugin::default()))
//!     .add_plugins(TensorCrowdPlugin::<Senses, Steering>::default())
//!     .add_systems(Startup, spawn_herd)
//!     .add_systems(Update, steer);
//! ```
//!
//! Rows are padded to a power of two, so that a crowd that grows or shrinks a little keeps its plan, its buffers and its
//! pipelines.

mod rows;
mod step;

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;

use bevy::diagnostic::FrameCountPlugin;
use bevy::platform::time::Instant;
use bevy::prelude::*;
use bytemuck::Pod;

use crate::error::{CrowdError, OpResult};
#[cfg(feature = "onnx")]
use crate::onnx::OnnxModel;
use crate::readback::TensorReceiver;
use crate::record::{TensorCommands, TensorValue};
use crate::tensor::TensorModel;

use rows::Rows;

/// The systems of [`TensorCrowdPlugin`].
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorCrowdSystems {
    /// In [`PreUpdate`]: writes the actions that have arrived.
    Act,
    /// In [`PostUpdate`]: gathers the observations and records the network.
    Observe,
}

/// Runs the crowds with observations `O` and actions `A`. Add it once for each pair of types.
///
/// Both types are plain structs of `f32` fields: the bytes of an observation are one row of the network's input, and a
/// row of its output is the bytes of an action.
pub struct TensorCrowdPlugin<O, A>(PhantomData<fn(O) -> A>);

impl<O, A> Default for TensorCrowdPlugin<O, A> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<O: Component + Pod, A: Component<Mutability = bevy::ecs::component::Mutable> + Pod> Plugin
    for TensorCrowdPlugin<O, A>
{
    fn build(&self, app: &mut App) {
        if !app.is_plugin_added::<FrameCountPlugin>() {
            app.add_plugins(FrameCountPlugin);
        }
        app.add_observer(step::leave::<O, A>)
            .add_observer(step::dissolve::<O, A>)
            .add_systems(PreUpdate, step::act::<O, A>.in_set(TensorCrowdSystems::Act))
            .add_systems(
                PostUpdate,
                (step::join::<O, A>, step::pack::<O, A>, step::observe::<O, A>)
                    .chain()
                    .in_set(TensorCrowdSystems::Observe),
            );
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// What a crowd computes: rows `[n, observation]` to rows `[n, action]`.
type Network = Box<
    dyn for<'a, 'w, 's> Fn(&'a TensorCommands<'w, 's>, TensorValue<'a>) -> Result<TensorValue<'a>, CrowdError>
        + Send
        + Sync,
>;

/// A crowd: the entity whose members are the entities with [`InCrowd`].
///
/// The network may use the tensors of any model, so several crowds can share the weights of one model. The crowd's own
/// tensor with the observations belongs to the crowd's entity.
#[derive(Component)]
#[require(TensorModel)]
pub struct TensorCrowd<O: Send + Sync + 'static, A: Send + Sync + 'static> {
    network: Network,
    /// Different for every crowd, also for one that replaces another on its entity.
    id: u64,
    /// Maximum number of steps that are recorded and not answered. Further steps are skipped until an answer arrives.
    pub in_flight: usize,
    /// Stops new steps while it is set. Steps in flight are still answered.
    pub paused: bool,
    rows: Rows,
    waiting: VecDeque<Waiting>,
    /// Whether its members have not been looked for yet.
    is_new: bool,
    stats: CrowdStats,
    failed: Option<CrowdError>,
    types: PhantomData<fn(O) -> A>,
}

/// The tensor with a crowd's observations. It stays when the crowd is replaced.
#[derive(Component)]
struct CrowdInput<O: Send + Sync + 'static, A: Send + Sync + 'static> {
    observations: Entity,
    types: PhantomData<fn(O) -> A>,
}

/// A step whose actions have not arrived yet.
struct Waiting {
    receiver: TensorReceiver,
    /// Number of the step in the crowd.
    step: u64,
    /// Bevy's frame count when the observations were gathered.
    frame: u32,
    /// When gathering began.
    start: Instant,
}

impl<O: Send + Sync + 'static, A: Send + Sync + 'static> TensorCrowd<O, A> {
    /// A crowd that runs `network`: a function from the rows of all observations, `f32 [n, observation]`, to the rows of
    /// all actions, `f32 [n, action]`. `n` is at least the number of members; rows without a member are ignored.
    ///
    /// Each row of the result may depend only on the same row of the input.
    pub fn new(
        network: impl for<'a, 'w, 's> Fn(&'a TensorCommands<'w, 's>, TensorValue<'a>) -> OpResult<TensorValue<'a>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self::of(Box::new(move |ops, rows| Ok(network(ops, rows)?)))
    }

    /// A crowd that runs an ONNX model whose first input are the observations and whose first output are the actions. The
    /// first axis of both must be of any size. The model must be [ready](OnnxModel::is_ready); clones of it share its
    /// weights.
    #[cfg(feature = "onnx")]
    pub fn onnx(model: OnnxModel) -> Self {
        Self::of(Box::new(move |ops, rows| {
            let outputs = ops.run(&model, rows).map_err(|error| CrowdError::Onnx(error.to_string()))?;
            outputs.at(0).map_err(|error| CrowdError::Onnx(error.to_string()))
        }))
    }

    fn of(network: Network) -> Self {
        const {
            assert!(size_of::<O>() > 0 && size_of::<O>().is_multiple_of(4), "an observation is a struct of f32 fields");
            assert!(size_of::<A>() > 0 && size_of::<A>().is_multiple_of(4), "an action is a struct of f32 fields");
        }
        Self {
            network,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            in_flight: 2,
            paused: false,
            rows: Rows::new(size_of::<O>() / 4),
            waiting: VecDeque::new(),
            is_new: true,
            stats: CrowdStats::default(),
            failed: None,
            types: PhantomData,
        }
    }

    /// Figures of the crowd.
    pub fn stats(&self) -> CrowdStats {
        CrowdStats {
            members: self.rows.members(),
            rows: self.rows.capacity(),
            in_flight: self.waiting.len(),
            ..self.stats
        }
    }
}

impl<O: Send + Sync + 'static, A: Send + Sync + 'static> fmt::Debug for TensorCrowd<O, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorCrowd").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The crowd that an entity is a member of. The entity also needs the observation component. It gets the action
/// component, zeroed, if it has none.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[reflect(Component)]
pub struct InCrowd(pub Entity);

/// A member's place in its crowd. Inserted by the plugin.
#[derive(Component, Clone, Copy, Debug)]
pub struct CrowdSeat<O: Send + Sync + 'static, A: Send + Sync + 'static> {
    crowd: Entity,
    /// The id of the crowd.
    id: u64,
    row: u32,
    /// The first step that this entity had the row in.
    since: u64,
    frame: Option<u32>,
    types: PhantomData<fn(O) -> A>,
}

impl<O: Send + Sync + 'static, A: Send + Sync + 'static> CrowdSeat<O, A> {
    /// The crowd.
    pub fn crowd(&self) -> Entity {
        self.crowd
    }

    /// The row of the crowd's tensors that belongs to this entity. It may change when members leave.
    pub fn row(&self) -> usize {
        self.row as usize
    }

    /// The frame (Bevy's `FrameCount`) whose observation the entity's action answers. `None` before the first action.
    pub fn frame(&self) -> Option<u32> {
        self.frame
    }
}

/// Figures of a [`TensorCrowd`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrowdStats {
    /// Number of members.
    pub members: usize,
    /// Number of rows of the network's input: members and padding.
    pub rows: usize,
    /// Number of rows that the last step uploaded.
    pub uploaded_rows: usize,
    /// Number of recorded steps.
    pub steps: u64,
    /// Number of answered steps.
    pub answers: u64,
    /// Number of frames without a step because [`TensorCrowd::in_flight`] steps were waiting.
    pub skipped: u64,
    /// Number of steps that wait for their answer.
    pub in_flight: usize,
    /// Frames between the last answered step and its answer.
    pub latency: u32,
    /// Time from the start of the last answered step, gathering included, until its actions were written.
    pub step: Duration,
    /// Time that the last gathering of observations took.
    pub gather: Duration,
    /// Time that the last writing of actions took.
    pub scatter: Duration,
}

/// A step of a crowd failed. Triggered on the crowd's entity. An error that repeats is reported once, until a step
/// succeeds.
#[derive(EntityEvent, Clone, Debug)]
pub struct CrowdFailed {
    /// The crowd.
    pub entity: Entity,
    /// The reason.
    pub error: CrowdError,
}
