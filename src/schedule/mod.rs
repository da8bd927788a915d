//! How recorded work shares the time of a backend: bounded queues, and what happens when recording runs ahead.
//!
//! Plain data and decisions. The backends carry them out.

mod backlog;

pub use backlog::{Backlog, BacklogSettings, TensorBacklog, TensorBacklogs, has_room};
pub(crate) use backlog::{Owner, Owners, Ticket, Waiting};
