//! CPU implementations of custom kernels, written by their authors.

use std::sync::Arc;

use bevy::ecs::error::BevyError;
use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::params::ParamValue;
use crate::error::{RunError, TensorError};
use crate::ir::{Class, CpuElementFunction, CpuFunction, CpuKernelCall, DType, Element, KernelCode, Shape};

/// A 32-bit WGSL number: `f32`, `i32` or `u32`.
pub trait KernelNumber: Pod + Send + Sync {
    /// The class of the number.
    const CLASS: Class;
    /// Returns the bits of the number.
    fn bits(self) -> u32;
    /// Creates a number from its bits.
    fn from_bits(bits: u32) -> Self;
}

macro_rules! kernel_numbers {
    ($($ty:ty: $class:ident),*) => { $(impl KernelNumber for $ty {
        const CLASS: Class = Class::$class;

        fn bits(self) -> u32 {
            bytemuck::cast(self)
        }

        fn from_bits(bits: u32) -> Self {
            bytemuck::cast(bits)
        }
    })* };
}
kernel_numbers!(f32: Float, i32: Int, u32: Uint);

/// A function of one to four numbers that returns a number. Implemented for closures such as `|x: f32, y: f32| x * y`.
pub trait CpuElement<Types>: Send + Sync + 'static {
    /// Classes of the arguments.
    #[doc(hidden)]
    const ARGUMENTS: &'static [Class];
    /// Class of the result.
    #[doc(hidden)]
    const RESULT: Class;
    /// Applies the function to every element. All slices have the same length.
    #[doc(hidden)]
    fn apply(&self, arguments: &[&[u32]], out: &mut [u32]);
}

macro_rules! cpu_elements {
    ($($($argument:ident $at:literal),+;)*) => { $(
        impl<F, R, $($argument),+> CpuElement<(R, $($argument,)+)> for F
        where
            F: Fn($($argument),+) -> R + Send + Sync + 'static,
            R: KernelNumber,
            $($argument: KernelNumber),+
        {
            const ARGUMENTS: &'static [Class] = &[$($argument::CLASS),+];
            const RESULT: Class = R::CLASS;

            fn apply(&self, arguments: &[&[u32]], out: &mut [u32]) {
                for (i, out) in cast_slice_mut::<u32, R>(out).iter_mut().enumerate() {
                    *out = self($($argument::from_bits(arguments[$at][i])),+);
                }
            }
        }
    )* };
}
cpu_elements! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
}

impl CpuElementFunction {
    pub(super) fn new<T, F: CpuElement<T>>(function: F) -> Self {
        Self {
            arguments: F::ARGUMENTS,
            result: F::RESULT,
            apply: Arc::new(move |arguments, out| function.apply(arguments, out)),
        }
    }

    /// Applies the function to every element. All slices have the same length.
    pub(crate) fn apply(&self, arguments: &[&[u32]], out: &mut [u32]) {
        (self.apply)(arguments, out);
    }
}

impl<'a> CpuKernelCall<'a> {
    /// The elements of an input, in row-major order.
    pub fn input<T: Element>(&self, index: usize) -> Result<&'a [T], TensorError> {
        let held = self.code.inputs.get(index).map_or(T::DTYPE, |binding| binding.dtype);
        check_type::<T>(held)?;
        Ok(self.inputs.get(index).map_or(&[], |(words, _)| cast_slice(words)))
    }

    /// The shape of an input.
    pub fn input_shape(&self, index: usize) -> Shape {
        self.inputs.get(index).map_or_else(Shape::default, |(_, shape)| shape.clone())
    }

    /// The elements of an output, in row-major order. They are initially undefined, or zero for [zeroed
    /// outputs](super::CustomKernel::zeroed_output).
    pub fn output<T: Element>(&mut self, index: usize) -> Result<&mut [T], TensorError> {
        let held = self.code.outputs.get(index).map_or(T::DTYPE, |binding| binding.dtype);
        check_type::<T>(held)?;
        Ok(self.outputs.get_mut(index).map_or(&mut [], |(words, _)| cast_slice_mut(words)))
    }

    /// The elements of the first `N` outputs. All outputs of the kernel must have this element type. Slices beyond the
    /// last output are empty.
    pub fn outputs<T: Element, const N: usize>(&mut self) -> Result<[&mut [T]; N], TensorError> {
        for binding in &self.code.outputs {
            check_type::<T>(binding.dtype)?;
        }
        let mut outputs = self.outputs.iter_mut();
        Ok(core::array::from_fn(|_| outputs.next().map_or(&mut [][..], |(words, _)| cast_slice_mut(words))))
    }

    /// The shape of an output.
    pub fn output_shape(&self, index: usize) -> Shape {
        self.outputs.get(index).map_or_else(Shape::default, |(_, shape)| shape.clone())
    }

    /// A member of the params, by name. Returns an error if there is no such member of this type.
    pub fn param<T: ParamValue>(&self, name: &str) -> Result<T, BevyError> {
        self.param_at(name, 0)
    }

    /// An element of a params member that is an array.
    pub fn param_at<T: ParamValue>(&self, name: &str, index: usize) -> Result<T, BevyError> {
        let value = self.code.params.as_ref().and_then(|layout| layout.read(self.params, name, index));
        value.ok_or_else(|| format!("params have no `{name}` of type {}", core::any::type_name::<T>()).into())
    }
}

fn check_type<T: Element>(held: DType) -> Result<(), TensorError> {
    if held == T::DTYPE { Ok(()) } else { Err(TensorError::ElementType { held, asked: T::DTYPE }) }
}

/// Runs a kernel's CPU function. Operands are contiguous 32-bit words with their shapes.
pub(crate) fn run_on_cpu(
    code: &KernelCode,
    inputs: Vec<(&[u32], Shape)>,
    outputs: Vec<(&mut [u32], Shape)>,
    params: &[u32],
) -> Result<(), RunError> {
    let failed = |message: String| RunError::CpuFunction { kernel: code.name, message };
    let Some(CpuFunction(run)) = &code.cpu else { return Err(failed("it has no CPU function".to_owned())) };
    run(&mut CpuKernelCall { code, inputs, outputs, params }).map_err(|error| failed(error.to_string()))
}
