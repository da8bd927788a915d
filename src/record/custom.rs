//! Kernels of the user's.

use core::panic::Location;
use std::sync::Arc;

use bevy::reflect::Reflect;
use smallvec::SmallVec;

use super::{Arg, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpError;
use crate::ir::{Backend, CustomCall, ElementFunction, KernelCode, NodeId, Op, Shape};
use crate::kernel::custom::{Code, TensorKernel};
use crate::kernel::wgsl_type;

/// What a custom kernel is given: an array, a slice or a `Vec` of operands of one kind, or a tuple of up to eight of any kinds, as in
/// `(entity, value, 0.5)`.
pub trait KernelInputs {
    /// The operands, in order.
    fn operands(self) -> Vec<TensorOperand>;
}

impl<T: Into<TensorOperand>, const N: usize> KernelInputs for [T; N] {
    fn operands(self) -> Vec<TensorOperand> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Into<TensorOperand>> KernelInputs for Vec<T> {
    fn operands(self) -> Vec<TensorOperand> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Clone + Into<TensorOperand>> KernelInputs for &[T] {
    fn operands(self) -> Vec<TensorOperand> {
        self.iter().cloned().map(Into::into).collect()
    }
}

macro_rules! kernel_inputs {
    ($($($name:ident)*;)*) => { $(
        impl<$($name: Into<TensorOperand>),*> KernelInputs for ($($name,)*) {
            #[expect(non_snake_case, reason = "a value is named after its type")]
            fn operands(self) -> Vec<TensorOperand> {
                let ($($name,)*) = self;
                vec![$($name.into()),*]
            }
        }
    )* };
}
kernel_inputs! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}

impl KernelInputs for () {
    fn operands(self) -> Vec<TensorOperand> {
        Vec::new()
    }
}

/// Kernels of your own. See [`CustomKernel`](crate::CustomKernel) for how they are made.
impl TensorCommands<'_, '_> {
    /// The output of a custom kernel that has one: `ops.custom(&blur, [image], &BlurParams { radius: 3 })?`. Without params, give `&()`.
    ///
    /// Inputs of full kernels are made contiguous where they are not, and must be of the binding's 32-bit type: cast others first. A number is an
    /// input of one element. Operands of elementwise kernels broadcast.
    #[track_caller]
    pub fn custom<P: Reflect>(
        &mut self,
        kernel: &TensorKernel,
        inputs: impl KernelInputs,
        params: &P,
    ) -> Result<TensorValue, OpError> {
        let [value] = self.custom_outputs(kernel, inputs, params)?;
        Ok(value)
    }

    /// All outputs of a custom kernel, in order: `let [next_u, next_v] = ops.custom_outputs(&step, [u, v], &params)?`.
    #[track_caller]
    pub fn custom_outputs<const N: usize, P: Reflect>(
        &mut self,
        kernel: &TensorKernel,
        inputs: impl KernelInputs,
        params: &P,
    ) -> Result<[TensorValue; N], OpError> {
        let (op, site) = (kernel.name(), Location::caller());
        let wrong = |reason: String| OpError::Argument { op, reason };
        let code = kernel.code()?;
        let outputs = match &code {
            Code::Kernel(code) => code.outputs.len(),
            Code::Element(_) => 1,
        };
        if outputs != N {
            return Err(wrong(format!("the kernel has {outputs} outputs, not {N}")));
        }
        let words = param_words(&code, params).map_err(wrong)?;
        let mut args = SmallVec::<[Arg; 4]>::new();
        for operand in inputs.operands() {
            args.push(self.resolve(op, operand, site)?);
        }
        let values = match &code {
            Code::Kernel(code) => self.custom_kernel(code, args, &words, site)?,
            Code::Element(function) => SmallVec::from_iter([self.custom_function(function, args, site)?]),
        };
        // As many as were asked for, as was checked above.
        <[TensorValue; N]>::try_from(&values[..]).map_err(|_| wrong("an output is missing".to_owned()))
    }

    /// Records a call of a kernel.
    fn custom_kernel(
        &mut self,
        code: &Arc<KernelCode>,
        mut args: SmallVec<[Arg; 4]>,
        params: &[u32],
        site: &'static Location<'static>,
    ) -> Result<SmallVec<[TensorValue; 2]>, OpError> {
        let op = code.name;
        let wrong = |reason: String| OpError::Argument { op, reason };
        if args.len() != code.inputs.len() {
            let names: Vec<&str> = code.inputs.iter().map(|input| input.name).collect();
            return Err(wrong(format!("it takes {} inputs ({}), not {}", names.len(), names.join(", "), args.len())));
        }
        let backend = self.same_backend(op, &mut args)?;
        for (arg, binding) in args.iter_mut().zip(&code.inputs) {
            *arg = self.number_as(*arg, binding.dtype);
            if self.dtype_of_arg(*arg) != binding.dtype {
                let reason = format!("input `{}` is of {}; cast first", binding.name, binding.dtype);
                return Err(self.type_error(op, &[*arg], reason));
            }
            let elements = self.shape_of_arg(*arg).elements();
            if !elements.is_multiple_of(binding.lanes) || elements < binding.least {
                let reason = match binding.lanes {
                    1 => format!("input `{}` has {} elements or more", binding.name, binding.least),
                    lanes => format!("input `{}` is read {lanes} elements at a time", binding.name),
                };
                return Err(self.shape_error(op, &[*arg], reason));
            }
        }
        let inputs: SmallVec<[Shape; 4]> = args.iter().map(|&arg| self.shape_of_arg(arg)).collect();
        let shape_error = |reason: String| match args.is_empty() {
            true => wrong(reason),
            false => self.shape_error(op, &args, reason),
        };
        let outputs = code.shapes(&code.outputs, &inputs).map_err(shape_error)?;
        let scratch = code.shapes(&code.scratch, &inputs).map_err(shape_error)?;
        for (binding, shape) in code.outputs.iter().chain(&code.scratch).zip(outputs.iter().chain(&scratch)) {
            let elements = shape.checked_elements().filter(|&n| n <= i32::MAX as usize);
            let Some(elements) = elements else {
                return Err(wrong(format!("`{}` of shape {shape} is too large to address", binding.name)));
            };
            if !elements.is_multiple_of(binding.lanes) || elements < binding.least {
                return Err(wrong(format!(
                    "`{}` of shape {shape} is not made of whole elements of its array",
                    binding.name
                )));
            }
        }
        // Work on nothing is left out, but a binding cannot be of nothing.
        let empty = |shape: &Shape| shape.elements() == 0;
        let nothing = outputs.iter().all(empty);
        if !nothing && inputs.iter().chain(&outputs).chain(&scratch).any(empty) {
            return Err(shape_error("the kernel cannot be given empty tensors for results that are not".to_owned()));
        }
        let workgroups = match (backend, &self.support.adapter) {
            (Backend::Cpu, _) if !code.has_cpu_function() => return Err(OpError::NoCpuFunction { op }),
            (Backend::Gpu, Some(adapter)) if !nothing => {
                code.fits(&adapter.limits)?;
                let most = adapter.limits.max_storage_buffer_binding_size;
                let bytes = |shape: &Shape| shape.elements() as u64 * 4;
                if let Some(shape) = inputs.iter().chain(&outputs).chain(&scratch).find(|shape| bytes(shape) > most) {
                    return Err(wrong(format!("{shape} is {} bytes, and a binding at most {most}", bytes(shape))));
                }
                let limit = adapter.limits.max_compute_workgroups_per_dimension;
                code.workgroups(&inputs, &outputs, limit).map_err(wrong)?
            }
            _ => [1; 3],
        };
        let scratch = scratch.iter().map(Shape::elements).collect();
        let call = CustomCall { code: code.clone(), workgroups, scratch };
        let nodes: SmallVec<[NodeId; 4]> = args.iter().map(|arg| arg.node).collect();
        let part = self.begin(backend, op, site);
        let mut first = None;
        let mut found = SmallVec::<[NodeId; 2]>::new();
        for (i, (binding, shape)) in code.outputs.iter().zip(outputs).enumerate() {
            let node = match first {
                None => part.push(Op::Custom(Box::new(call.clone())), &nodes, shape, binding.dtype, params),
                Some(first) => part.push(Op::CustomOutput { index: i }, &[first], shape, binding.dtype, &[]),
            };
            first = first.or(Some(node));
            found.push(node);
        }
        Ok(found.into_iter().map(|node| self.value(backend, node)).collect())
    }

    /// Records a function of every element.
    fn custom_function(
        &mut self,
        function: &Arc<ElementFunction>,
        mut args: SmallVec<[Arg; 4]>,
        site: &'static Location<'static>,
    ) -> Result<TensorValue, OpError> {
        let op = function.name;
        if args.len() != function.arguments.len() {
            let reason = format!("it takes {} operands, not {}", function.arguments.len(), args.len());
            return Err(OpError::Argument { op, reason });
        }
        let backend = self.same_backend(op, &mut args)?;
        if backend == Backend::Cpu && function.cpu.is_none() {
            return Err(OpError::NoCpuFunction { op });
        }
        let mut shape = Shape::default();
        for (arg, class) in args.iter_mut().zip(&function.arguments) {
            *arg = self.number_as(*arg, class.dtype());
            if self.dtype_of_arg(*arg).class() != *class {
                let reason = format!("the function takes {}; cast first", wgsl_type(*class));
                return Err(self.type_error(op, &[*arg], reason));
            }
        }
        for &arg in &args {
            shape = shape
                .broadcast(&self.shape_of_arg(arg))
                .ok_or_else(|| self.shape_error(op, &args, "the shapes do not broadcast"))?;
        }
        let part = self.begin(backend, op, site);
        let nodes: SmallVec<[NodeId; 4]> = args.iter().map(|arg| part.broadcast(arg.node, &shape)).collect();
        let node = part.push(Op::Function(function.clone()), &nodes, shape, function.result.dtype(), &[]);
        self.sized(op, backend, node)
    }
}

/// The words of a kernel's params, or what is wrong with the value given.
fn param_words<P: Reflect>(code: &Code, params: &P) -> Result<Vec<u32>, String> {
    let layout = match code {
        Code::Kernel(code) => code.params.as_ref(),
        Code::Element(_) => None,
    };
    let given = core::any::TypeId::of::<P>();
    match layout {
        Some(layout) if layout.type_id == given => Ok(layout.write(params.as_partial_reflect())),
        Some(layout) => Err(format!("its params are {}, not {}", layout.type_path, core::any::type_name::<P>())),
        None if given == core::any::TypeId::of::<()>() => Ok(Vec::new()),
        None => Err(format!("it has no params, but {} was given; give &()", core::any::type_name::<P>())),
    }
}
