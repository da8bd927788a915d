//! Defects that an audit found. Each test is named after what holds since.

mod device;
mod files;
mod kernels;
mod results;
mod watchdog;
