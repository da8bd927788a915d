//! Every op gives the same result on both backends, at awkward sizes and through every kind of view, and matches simple
//! reference code.

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
mod sampling;
mod shapes;
mod windows;

/// Sizes around workgroup sizes, and larger.
pub const SIZES: [usize; 8] = [1, 2, 7, 63, 64, 65, 257, 1757];
