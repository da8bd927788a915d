//! Kernels that users write, as plain data: the checked code and what is known about it. `kernel::custom` makes it from text.

use core::any::TypeId;
use core::fmt;
use core::hash::{Hash, Hasher};
use std::sync::Arc;

use bevy::ecs::error::BevyError;
use smallvec::SmallVec;

use super::{Class, DType, Shape};

/// The rule of a shape by the shapes of the inputs.
type ShapeRule = dyn Fn(&[Shape]) -> Result<Shape, String> + Send + Sync;

/// The shape of an output, or of scratch memory.
#[derive(Clone)]
pub struct OutputShape(Rule);

#[derive(Clone)]
enum Rule {
    Like(&'static str),
    Fixed(Shape),
    By(Arc<ShapeRule>),
}

impl OutputShape {
    /// That of an input, by its name.
    pub fn like(input: &'static str) -> Self {
        Self(Rule::Like(input))
    }

    /// Always this.
    pub fn fixed(shape: impl Into<Shape>) -> Self {
        Self(Rule::Fixed(shape.into()))
    }

    /// By the shapes of the inputs, in order. What it says against them becomes an [`OpError::Shape`](crate::OpError::Shape) of the call.
    pub fn by(rule: impl Fn(&[Shape]) -> Result<Shape, String> + Send + Sync + 'static) -> Self {
        Self(Rule::By(Arc::new(rule)))
    }

    /// The shape for inputs of these shapes, whose names are `names`.
    pub(crate) fn resolve(&self, names: &[&'static str], inputs: &[Shape]) -> Result<Shape, String> {
        match &self.0 {
            Rule::Like(name) => names
                .iter()
                .position(|n| n == name)
                .and_then(|i| inputs.get(i).cloned())
                .ok_or_else(|| format!("there is no input `{name}`")),
            Rule::Fixed(shape) => Ok(shape.clone()),
            Rule::By(rule) => rule(inputs),
        }
    }
}

impl fmt::Debug for OutputShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rule::Like(input) => f.debug_tuple("Like").field(input).finish(),
            Rule::Fixed(shape) => f.debug_tuple("Fixed").field(shape).finish(),
            Rule::By(_) => f.write_str("By(..)"),
        }
    }
}

/// The rule of a dispatch by the shapes of the inputs and of the outputs.
type DispatchRule = dyn Fn(&[Shape], &[Shape]) -> [u32; 3] + Send + Sync;

/// How many workgroups of a kernel run. The size of a workgroup is in the text.
#[derive(Clone, Default)]
pub enum Dispatch {
    /// A thread for each element of the first output, along x, and as many more as fill the last workgroup: guard against those. Where x cannot hold
    /// them all (65,535 workgroups by WebGPU's default) the workgroups fold into y as well, for entry points that take `num_workgroups` and so
    /// can tell their place, by `thread_index` of `tensor::indexing`; others get an error.
    #[default]
    Elements,
    /// A thread for each element of the first output, its last axis along x, the one before along y, all others together along z.
    Axes,
    /// Always these.
    Workgroups([u32; 3]),
    /// By the shapes of the inputs and of the outputs.
    By(Arc<DispatchRule>),
}

impl Dispatch {
    /// By the shapes of the inputs and of the outputs.
    pub fn by(rule: impl Fn(&[Shape], &[Shape]) -> [u32; 3] + Send + Sync + 'static) -> Self {
        Self::By(Arc::new(rule))
    }
}

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elements => f.write_str("Elements"),
            Self::Axes => f.write_str("Axes"),
            Self::Workgroups(workgroups) => f.debug_tuple("Workgroups").field(workgroups).finish(),
            Self::By(_) => f.write_str("By(..)"),
        }
    }
}
/// A kernel that can run: its text, and all that there is to know about it.
pub(crate) struct KernelCode {
    pub(crate) id: u64,
    pub name: &'static str,
    pub entry: &'static str,
    pub trusted: bool,
    pub inputs: Vec<BindingInfo>,
    pub outputs: Vec<BindingInfo>,
    pub scratch: Vec<BindingInfo>,
    pub params: Option<ParamsLayout>,
    pub(crate) cpu: Option<CpuFunction>,
    pub(crate) dispatch: Dispatch,
    /// Whether the entry point knows how many workgroups there are, and so can find its place in a folded grid.
    pub(crate) folds: bool,
    pub(crate) workgroup: [u32; 3],
    /// Bytes of workgroup memory.
    pub(crate) workgroup_memory: u32,
    pub(crate) place: Option<SourcePlace>,
    /// Without numbers of bindings.
    pub(crate) text: String,
    /// Variables that are no input: where they begin, and their numbers.
    pub(crate) others: Vec<(usize, u32)>,
}

/// An input, output or scratch memory.
#[derive(Clone, Debug)]
pub(crate) struct BindingInfo {
    pub name: &'static str,
    pub dtype: DType,
    /// Numbers to an element of the array.
    pub lanes: usize,
    /// Elements of the tensor that the array must have.
    pub least: usize,
    /// Outputs: whether they begin as zeros.
    pub zeroed: bool,
    /// Outputs and scratch.
    pub(crate) shape: Option<OutputShape>,
    /// Where the declaration begins.
    pub(crate) at: usize,
}

/// One call of a kernel: structure of a recording, and the kernel of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CustomCall {
    pub code: Arc<KernelCode>,
    pub workgroups: [u32; 3],
    /// Elements of each scratch memory.
    pub scratch: SmallVec<[usize; 2]>,
}

impl PartialEq for KernelCode {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for KernelCode {}

impl Hash for KernelCode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl core::fmt::Debug for KernelCode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("KernelCode").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}

impl KernelCode {
    /// Words of the params.
    pub(crate) fn param_words(&self) -> usize {
        self.params.as_ref().map_or(0, |params| params.words)
    }

    /// Whether the CPU backend can run it.
    pub(crate) fn has_cpu_function(&self) -> bool {
        self.cpu.is_some()
    }
}

/// The most arguments a function may take.
pub(crate) const MAX_ARGUMENTS: usize = 4;

/// A function that can be part of any text.
pub(crate) struct ElementFunction {
    pub(crate) id: u64,
    pub name: &'static str,
    pub trusted: bool,
    pub arguments: SmallVec<[Class; MAX_ARGUMENTS]>,
    pub result: Class,
    /// What the function is called in `text`, where every name has a prefix that no other text has.
    pub function: String,
    pub text: String,
    pub cpu: Option<CpuElementFunction>,
}

impl PartialEq for ElementFunction {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for ElementFunction {}

impl Hash for ElementFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl core::fmt::Debug for ElementFunction {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ElementFunction").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}

/// An elementwise function with its types.
#[derive(Clone)]
pub(crate) struct CpuElementFunction {
    pub arguments: &'static [Class],
    pub result: Class,
    pub(crate) apply: Arc<ApplyElements>,
}

/// The CPU function of a kernel.
#[derive(Clone)]
pub(crate) struct CpuFunction(pub Arc<RunCall>);

/// A kernel's whole work on the CPU.
pub(crate) type RunCall = dyn Fn(&mut CpuKernelCall) -> Result<(), BevyError> + Send + Sync;

/// An elementwise function over columns of its arguments' words.
pub(crate) type ApplyElements = dyn Fn(&[&[u32]], &mut [u32]) + Send + Sync;

/// What the CPU function of a kernel works on: the same inputs, outputs and params, by their order and names.
pub struct CpuKernelCall<'a> {
    pub(crate) code: &'a KernelCode,
    pub(crate) inputs: Vec<(&'a [u32], Shape)>,
    pub(crate) outputs: Vec<(&'a mut [u32], Shape)>,
    pub(crate) params: &'a [u32],
}

impl fmt::Debug for CpuKernelCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuKernelCall").field("kernel", &self.code.name).finish_non_exhaustive()
    }
}

/// Where the members of a params struct lie.
#[derive(Clone, Debug)]
pub(crate) struct ParamsLayout {
    /// The Rust type.
    pub type_id: TypeId,
    pub type_path: &'static str,
    /// Words of the whole struct.
    pub words: usize,
    /// Whether it is bound as storage, not as a uniform.
    pub storage: bool,
    pub(crate) members: Vec<Member>,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Word of the first number.
    pub(crate) offset: usize,
    pub(crate) element: Numbers,
    /// Elements of an array, and words from one to the next.
    pub(crate) array: Option<(usize, usize)>,
}

/// A number, a vector (rows) or a matrix (columns of rows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) class: Class,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// A place in the text of a kernel as its author wrote it, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourcePlace {
    /// The line.
    pub line: u32,
    /// The character of the line.
    pub column: u32,
}
