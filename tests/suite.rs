//! All behaviour tests in one binary: linking Bevy once per file would cost minutes.

mod common;

mod fusion;
mod lifecycle;
mod op_errors;
mod op_invariants;
mod parity;
mod quantisation;
mod readback;
mod steady_state;
mod wgsl;
