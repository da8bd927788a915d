//! Custom kernels: their description, validated code and handles.
//!
//! ```text
//! CustomKernel ──register──▶ Text ──naga──▶ KernelCode or ElementFunction ──▶ TensorKernel
//! TensorKernel ──ops.custom──▶ a node of the recording
//! ```
//!
//! All validation happens here, in the main world: bindings are matched by name and params by member, and barriers and
//! limits are checked. The device only compiles text that naga has accepted.

mod code;
mod cpu;
mod element;
mod loop_copy;
mod loops;
mod params;
mod registry;
mod spec;
mod text;
pub(super) mod wgsl;

use crate::ir::{CpuElementFunction, CpuFunction, CpuKernelCall, Dispatch, OutputShape};
use core::any::TypeId;
use core::fmt;
use std::borrow::Cow;
use std::sync::Arc;

use bevy::asset::Handle;
use bevy::reflect::{Reflect, Typed};
use bevy::shader::Shader;

pub use cpu::{CpuElement, KernelNumber};
pub use params::ParamValue;
pub use registry::{RegisterTensorKernel, TensorKernel, TensorKernels};

pub(crate) use cpu::run_on_cpu;
pub(crate) use loops::bounded_module;
pub(crate) use registry::{Code, reload_kernels};

use params::ParamsType;

/// A custom kernel: WGSL and a description of its inputs and outputs.
///
/// [Register](TensorKernels::register) it, then record it with
/// [`TensorCommands::custom`](crate::ops::TensorCommands::custom) like any other op. It becomes part of the frame's
/// plan, its inputs may be views, and its outputs can be stored, read back and used by other ops.
///
/// Bindings are matched by name. `@group` and `@binding` are optional and their numbers are replaced. Inputs are
/// `var<storage, read>`, outputs and scratch memory are `var<storage, read_write>`. Each is a runtime-sized array of
/// `f32`, `i32` or `u32`, of vectors of two or four of these, or (outputs and scratch only) of atomics. `arrayLength`
/// returns the number of elements of the tensor.
///
/// ```
/// use bevy::prelude::*;
/// use bevy_tensor_compute::prelude::*;
///
/// // One thread sums all products.
/// const DOT_PRODUCT: &str = "
///     @group(0) @binding(0) var<storage, read> a: array<f32>;
///     @group(0) @binding(1) var<storage, read> b: array<f32>;
///     @group(0) @binding(2) var<storage, read_write> result: array<f32>;
///
///     @compute @workgroup_size(1)
///     fn main() {
///         var sum = 0.0;
///         for (var i = 0u; i < arrayLength(&a); i++) {
///             sum += a[i] * b[i];
///         }
///         result[0] = sum;
///     }
/// ";
///
/// #[derive(Resource)]
/// struct Similarity { dot: TensorKernel, text: Entity, vision: Entity, score: Entity }
///
/// fn set_up(mut commands: Commands, mut kernels: ResMut<TensorKernels>) -> Result {
///     let dot = kernels.register(
///         CustomKernel::wgsl("dot_product", DOT_PRODUCT)
///             .inputs(["a", "b"])
///             .output("result", OutputShape::fixed([1]))
///             // For machines without a GPU, where recording a kernel without it is an error.
///             .cpu(|call| {
///                 let (a, b) = (call.input::<f32>(0)?, call.input::<f32>(1)?);
///                 call.output::<f32>(0)?[0] = a.iter().zip(b).map(|(a, b)| a * b).sum();
///                 Ok(())
///             }),
///     )?;
///     let text = commands.spawn(Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3])?).id();
///     let vision = commands.spawn(Tensor::from_slice(&[4.0f32, 5.0, 6.0], [3])?).id();
///     let score = commands.spawn(Tensor::zeros([1], DType::F32)?).observe(show).id();
///     commands.insert_resource(Similarity { dot, text, vision, score });
///     Ok(())
/// }
///
/// fn compare(similarity: Res<Similarity>, ops: TensorCommands) -> Result {
///     let score = ops.custom(&similarity.dot, [similarity.text, similarity.vision], &())?;
///     ops.store(score, similarity.score)?;
///     ops.notify(similarity.score)?;
///     Ok(())
/// }
///
/// fn show(ready: On<TensorReady>, mut exit: MessageWriter<AppExit>) -> Result {
///     assert_eq!(ready.result.clone()?.as_slice::<f32>()?, [32.0]);
///     exit.write(AppExit::Success);
///     Ok(())
/// }
///
/// let exit = App::new()
///     .add_plugins((AnywherePlugins::headless(), TensorComputePlugin::default()))
///     .add_systems(Startup, set_up)
///     .add_systems(Update, compare)
///     .run();
/// assert_eq!(exit, AppExit::Success);
/// ```
#[derive(Clone)]
#[must_use = "a description does nothing until it is registered"]
pub struct CustomKernel {
    name: &'static str,
    source: Source,
    entry: &'static str,
    inputs: Vec<&'static str>,
    outputs: Vec<Output>,
    scratch: Vec<(&'static str, OutputShape)>,
    params: Option<(&'static str, ParamsType)>,
    dispatch: Dispatch,
    elementwise: bool,
    trusted: bool,
    loop_bound: u32,
    cpu: Option<CpuFunction>,
    cpu_element: Option<CpuElementFunction>,
}

/// Where the WGSL comes from.
/// Default of [`CustomKernel::loop_bound`].
const DEFAULT_LOOP_BOUND: u32 = 1 << 24;

#[derive(Clone)]
enum Source {
    Wgsl(Cow<'static, str>),
    Shader(Handle<Shader>),
}

#[derive(Clone)]
struct Output {
    name: &'static str,
    shape: OutputShape,
    zeroed: bool,
}

impl CustomKernel {
    /// Creates a kernel from WGSL text. Errors, reports and labels use the name. The entry point is `main` unless [set
    /// otherwise](Self::entry).
    pub fn wgsl(name: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(name, Source::Wgsl(text.into()))
    }

    /// Creates a kernel from a shader asset. It can be recorded once the asset is loaded (see
    /// [`TensorKernel::is_ready`]). When the asset changes, the next frame runs the new code. A version that does not
    /// compile is reported as [`TensorFault::Kernel`](crate::error::TensorFault::Kernel), and the previous version
    /// stays in use.
    pub fn shader(name: &'static str, shader: Handle<Shader>) -> Self {
        Self::new(name, Source::Shader(shader))
    }

    /// Creates an elementwise kernel: WGSL with a function called `name` that takes up to four numbers (`f32`, `i32` or
    /// `u32`) and returns one, such as `fn leaky(x: f32, slope: f32) -> f32 { return select(slope * x, x, x > 0.0); }`.
    ///
    /// It is applied to every element of its operands. These broadcast, may have a narrower type of the same kind, and
    /// may be numbers. The function is fused into generated kernels together with the elementwise ops around it, so it
    /// has no bindings, no entry point and no dispatch.
    pub fn elementwise(name: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self { elementwise: true, entry: name, ..Self::wgsl(name, text) }
    }

    /// Like [`CustomKernel::elementwise`], from a shader asset.
    pub fn elementwise_shader(name: &'static str, shader: Handle<Shader>) -> Self {
        Self { elementwise: true, entry: name, ..Self::shader(name, shader) }
    }

    fn new(name: &'static str, source: Source) -> Self {
        Self {
            name,
            source,
            entry: "main",
            inputs: Vec::new(),
            outputs: Vec::new(),
            scratch: Vec::new(),
            params: None,
            dispatch: Dispatch::Elements,
            elementwise: false,
            trusted: false,
            loop_bound: DEFAULT_LOOP_BOUND,
            cpu: None,
            cpu_element: None,
        }
    }

    /// Sets the entry point, or the function of an elementwise kernel. A text may have several entry points. Each is
    /// registered as a separate kernel and need not use every variable of the text.
    pub fn entry(mut self, entry: &'static str) -> Self {
        self.entry = entry;
        self
    }

    /// Adds the variables of the inputs, in the order in which operands will be passed.
    pub fn inputs(mut self, names: impl IntoIterator<Item = &'static str>) -> Self {
        self.inputs.extend(names);
        self
    }

    /// Adds the variable of an output and its shape. The element type is that of the variable. Elements that the kernel
    /// does not write are undefined.
    pub fn output(mut self, name: &'static str, shape: OutputShape) -> Self {
        self.outputs.push(Output { name, shape, zeroed: false });
        self
    }

    /// Like [`CustomKernel::output`], but filled with zeros before the kernel runs. Use this for atomic accumulation
    /// and for kernels that do not write every element.
    pub fn zeroed_output(mut self, name: &'static str, shape: OutputShape) -> Self {
        self.outputs.push(Output { name, shape, zeroed: true });
        self
    }

    /// Adds a variable of scratch memory that the kernel may use while it runs. Its initial content is undefined.
    pub fn scratch(mut self, name: &'static str, shape: OutputShape) -> Self {
        self.scratch.push((name, shape));
        self
    }

    /// Declares params of this type, in a variable called `params` (`var<uniform>` or `var<storage, read>`) whose
    /// struct has the same members. Members are [`ParamValue`]s and arrays of these. Values that change from frame to
    /// frame cause neither planning nor pipeline creation.
    pub fn params<P: Reflect + Typed>(self) -> Self {
        self.params_in::<P>("params")
    }

    /// Like [`CustomKernel::params`], for a variable of another name.
    pub fn params_in<P: Reflect + Typed>(mut self, name: &'static str) -> Self {
        self.params = Some((name, ParamsType { id: TypeId::of::<P>(), info: P::type_info() }));
        self
    }

    /// Sets the number of workgroups. The default is one thread per element of the first output.
    pub fn dispatch(mut self, dispatch: Dispatch) -> Self {
        self.dispatch = dispatch;
        self
    }

    /// Sets the CPU implementation of this kernel.
    pub fn cpu(
        mut self,
        run: impl Fn(&mut CpuKernelCall) -> Result<(), bevy::ecs::error::BevyError> + Send + Sync + 'static,
    ) -> Self {
        self.cpu = Some(CpuFunction(Arc::new(run)));
        self
    }

    /// Sets the CPU implementation of this elementwise kernel: a function of the same numbers, such as `|x: f32, slope:
    /// f32| …`.
    pub fn cpu_element<T>(mut self, function: impl CpuElement<T>) -> Self {
        self.cpu_element = Some(CpuElementFunction::new(function));
        self
    }

    /// Sets how many iterations of its loops a thread of the kernel may run in total, 16,777,216 by default.
    /// The check of the condition that ends a loop counts as an iteration.
    ///
    /// A thread that reaches the bound leaves its loops, and the launch is reported as
    /// [`RunError::LoopBound`](crate::error::RunError::LoopBound) in a [`TensorFault`](crate::error::TensorFault). The
    /// results of the launch are then undefined. Without a bound, a loop that does not end would block the device until
    /// the driver resets it. Loops that contain barriers are counted separately. A kernel with loops needs one storage
    /// binding more than it declares, for the report.
    ///
    /// Mesa's llvmpipe ends the loops of a thread after 65,535 iterations. There, innermost loops are unrolled up to 64
    /// times, and iterations beyond what the driver runs are reported in the same way.
    pub fn loop_bound(mut self, turns: u32) -> Self {
        self.loop_bound = turns;
        self
    }

    /// Removes the runtime checks: bounds of arrays, the [bound of loops](Self::loop_bound), and zeros in workgroup
    /// memory. Kernels that are not trusted have all of them.
    ///
    /// # Safety
    ///
    /// For every possible input, the kernel must stay within its bindings and arrays, end every loop, and not read
    /// workgroup memory that it has not written. This must hold for every version of the text: a shader asset is
    /// trusted with all its edits.
    pub unsafe fn trusted(mut self) -> Self {
        self.trusted = true;
        self
    }
}

impl fmt::Debug for CustomKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs: Vec<_> = self.outputs.iter().map(|output| output.name).collect();
        f.debug_struct("CustomKernel")
            .field("name", &self.name)
            .field("entry", &self.entry)
            .field("inputs", &self.inputs)
            .field("outputs", &outputs)
            .field("elementwise", &self.elementwise)
            .field("trusted", &self.trusted)
            .finish_non_exhaustive()
    }
}
