//! Decisions about device memory: budgets, eviction, buffer pools and host copies.
//!
//! `pool`, `ledger`, `policy`, `pressure` and `scratch` are pure logic without a device or a world. `gpu/` carries out
//! their decisions. [`TensorMemory`] is the system parameter for apps.

mod advice;
mod events;
mod ledger;
mod policy;
mod pool;
mod pressure;
mod scratch;
mod settings;
mod usage;

pub use advice::{AdviceSettings, AdvisedTensor, Duplicates, MemoryAdvice, MemoryAdvisor};
pub use events::TensorLost;
pub use policy::{MemoryPolicy, PriorityMode};
pub use pressure::{MemoryPressure, PressureLevel};
pub use settings::{HostCopies, MemorySettings, Pinned};
pub use usage::{ModelUsage, TensorMemory};

pub use crate::figures::{PoolClass, PoolKind};
pub use crate::mailbox::SyncDirection;
pub use crate::tensor::{Residency, TensorUsage};

pub(crate) use events::{MemoryNews, NewsReceiver, NewsSender, trigger_news};
pub(crate) use ledger::{Ledger, Room};
pub(crate) use policy::{Candidate, choose};
pub(crate) use pool::{Pool, size_class};
pub(crate) use pressure::Gauge;
pub(crate) use scratch::ScratchUse;
pub(crate) use settings::plugin;
