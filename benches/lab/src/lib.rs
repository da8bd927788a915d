//! Compiles the kernels of `bevy_tensor_compute` with other compilers.
//!
//! [`catalogue`] reads the list of texts: every built-in kernel in every variant. [`translate`] translates a text as
//! the backends of wgpu would: to SPIR-V, MSL, HLSL and GLSL. [`radv`] compiles SPIR-V with AMD's compiler on a device
//! without hardware, and [`loops`] analyses the machine code.
//!
//! This crate does not depend on the library. The extra languages are features of naga, and with them Bevy would be
//! built a second time.

pub mod catalogue;
pub mod loops;
pub mod radv;
pub mod translate;

/// A result with an error message for the user.
pub type Result<T> = core::result::Result<T, Box<dyn core::error::Error + Send + Sync>>;
