//! Custom kernels.

use std::sync::Arc;

use bevy::reflect::Reflect;
use smallvec::SmallVec;

use super::{Arg, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{Backend, CustomCall, ElementFunction, KernelCode, NodeId, Op, Shape};
use crate::kernel::custom::{Code, TensorKernel};
use crate::kernel::wgsl_type;

/// The inputs of a custom kernel: an array, a slice or a `Vec` of operands of one kind, or a tuple of up to eight
/// operands of any kind, as in `(entity, value, 0.5)`.
pub trait KernelInputs<'a> {
    /// The operands, in order.
    fn operands(self) -> Vec<TensorOperand<'a>>;
}

impl<'a, T: Into<TensorOperand<'a>>, const N: usize> KernelInputs<'a> for [T; N] {
    fn operands(self) -> Vec<TensorOperand<'a>> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<'a, T: Into<TensorOperand<'a>>> KernelInputs<'a> for Vec<T> {
    fn operands(self) -> Vec<TensorOperand<'a>> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<'a, T: Clone + Into<TensorOperand<'a>>> KernelInputs<'a> for &[T] {
    fn operands(self) -> Vec<TensorOperand<'a>> {
        self.iter().cloned().map(Into::into).collect()
    }
}

macro_rules! kernel_inputs {
    ($($($name:ident)*;)*) => { $(
        impl<'a, $($name: Into<TensorOperand<'a>>),*> KernelInputs<'a> for ($($name,)*) {
            #[expect(non_snake_case, reason = "a value is named after its type")]
            fn operands(self) -> Vec<TensorOperand<'a>> {
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

impl<'a> KernelInputs<'a> for () {
    fn operands(self) -> Vec<TensorOperand<'a>> {
        Vec::new()
    }
}

/// Custom kernels. See [`CustomKernel`](crate::kernels::CustomKernel) for how to make one.
impl TensorCommands<'_, '_> {
    /// The output of a custom kernel with one output: `ops.custom(&blur, [image], &BlurParams { radius: 3 })?`. For a
    /// kernel without params, pass `&()`.
    ///
    /// Inputs of full kernels are made contiguous if necessary. They must have the 32-bit type of their binding; cast
    /// others first. A number is an input of one element. Operands of elementwise kernels broadcast.
    #[track_caller]
    pub fn custom<'a, P: Reflect>(
        &'a self,
        kernel: &TensorKernel,
        inputs: impl KernelInputs<'a>,
        params: &P,
    ) -> OpResult<TensorValue<'a>> {
        let [value] = self.custom_outputs(kernel, inputs, params)?;
        Ok(value)
    }

    /// All outputs of a custom kernel, in order: `let [next_u, next_v] = ops.custom_outputs(&step, [u, v], &params)?`.
    #[track_caller]
    pub fn custom_outputs<'a, const N: usize, P: Reflect>(
        &'a self,
        kernel: &TensorKernel,
        inputs: impl KernelInputs<'a>,
        params: &P,
    ) -> OpResult<[TensorValue<'a>; N]> {
        let operands = inputs.operands();
        let rec = &mut self.recorder();
        let op = kernel.name();
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
        for operand in operands {
            args.push(rec.arg(op, operand)?);
        }
        let values = match &code {
            Code::Kernel(code) => rec.custom_kernel(code, args, &words)?,
            Code::Element(function) => SmallVec::from_iter([rec.custom_function(function, args)?]),
        };
        // The number was checked above.
        <[TensorValue; N]>::try_from(&values[..]).map_err(|_| wrong("an output is missing".to_owned()))
    }
}

impl<'a> Recorder<'a> {
    /// Records a call of a kernel.
    fn custom_kernel(
        &mut self,
        code: &Arc<KernelCode>,
        mut args: SmallVec<[Arg; 4]>,
        params: &[u32],
    ) -> Result<SmallVec<[TensorValue<'a>; 2]>, OpError> {
        let op = code.name;
        let wrong = |reason: String| OpError::Argument { op, reason };
        if args.len() != code.inputs.len() {
            let names: Vec<&str> = code.inputs.iter().map(|input| input.name).collect();
            return Err(wrong(format!(
                "the kernel takes {} inputs ({}), not {}",
                names.len(),
                names.join(", "),
                args.len()
            )));
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
        // A kernel without output elements is not launched. A binding cannot be empty.
        let empty = |shape: &Shape| shape.elements() == 0;
        let nothing = outputs.iter().all(empty);
        if !nothing && inputs.iter().chain(&outputs).chain(&scratch).any(empty) {
            return Err(shape_error(
                "a kernel whose outputs are not empty cannot have empty inputs or scratch".to_owned(),
            ));
        }
        let workgroups = match (backend, &self.ops.support.adapter) {
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
        let part = self.begin(backend, op);
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
        found.into_iter().map(|node| self.value(backend, node)).collect()
    }

    /// Records a call of an elementwise kernel.
    fn custom_function(
        &mut self,
        function: &Arc<ElementFunction>,
        mut args: SmallVec<[Arg; 4]>,
    ) -> OpResult<TensorValue<'a>> {
        let op = function.name;
        if args.len() != function.arguments.len() {
            let reason = format!("the kernel takes {} operands, not {}", function.arguments.len(), args.len());
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
        let part = self.begin(backend, op);
        let nodes: SmallVec<[NodeId; 4]> = args.iter().map(|arg| part.broadcast(arg.node, &shape)).collect();
        let node = part.push(Op::Function(function.clone()), &nodes, shape, function.result.dtype(), &[]);
        self.value(backend, node)
    }
}

/// The words of a kernel's params, or why the value does not fit.
fn param_words<P: Reflect>(code: &Code, params: &P) -> Result<Vec<u32>, String> {
    let layout = match code {
        Code::Kernel(code) => code.params.as_ref(),
        Code::Element(_) => None,
    };
    let given = core::any::TypeId::of::<P>();
    match layout {
        Some(layout) if layout.type_id == given => Ok(layout.write(params.as_partial_reflect())),
        Some(layout) => {
            Err(format!("the params of the kernel are {}, not {}", layout.type_path, core::any::type_name::<P>()))
        }
        None if given == core::any::TypeId::of::<()>() => Ok(Vec::new()),
        None => Err(format!("the kernel has no params, but {} was given; pass &()", core::any::type_name::<P>())),
    }
}
