//! The computations of the example, independent of the UI: the three models, and searches with them.

pub mod encoders;
pub mod kernel;
pub mod library;
pub mod matcher;
pub mod models;
pub mod search;
pub mod tokens;
