//! What the example computes, without how it looks: the three models, and questions to them.

pub mod encoders;
pub mod kernel;
pub mod library;
pub mod matcher;
pub mod models;
pub mod search;
pub mod tokens;
