//! The kernels of `bevy_tensor_compute` in the hands of other compilers.
//!
//! [`catalogue`] has the texts: every built-in kernel in every form. [`translate`] makes of a text what wgpu's backends would: SPIR-V, MSL, HLSL,
//! GLSL. [`radv`] compiles SPIR-V with AMD's compiler, on a device without hardware, and [`loops`] reads its machine code. This crate does not depend
//! on the library, because the languages that naga writes here would have Bevy built once more.

pub mod catalogue;
pub mod loops;
pub mod radv;
pub mod translate;

/// An error with a text for the user.
pub type Result<T> = core::result::Result<T, Box<dyn core::error::Error + Send + Sync>>;
