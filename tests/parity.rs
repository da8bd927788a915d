//! Every op gives the same on both backends, at awkward sizes, through every kind of view; and what a few lines of Rust expect.

pub mod host;
pub mod random;
pub mod table;

mod elementwise;
mod hazards;
mod index;
mod known;
mod products;
mod recurrent;
mod rows;
mod shapes;
mod windows;

/// Around the sizes of workgroups, and beyond them.
pub const SIZES: [usize; 8] = [1, 2, 7, 63, 64, 65, 257, 1757];
