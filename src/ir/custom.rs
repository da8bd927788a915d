//! User-written kernels as plain data: the validated code and its metadata. `kernel::custom` builds it from source
//! text.

use core::any::TypeId;
use core::fmt;
use core::hash::{Hash, Hasher};
use std::sync::Arc;

use bevy::ecs::error::BevyError;
use smallvec::SmallVec;

use super::{Class, DType, Shape};

/// Computes a shape from the shapes of the inputs.
type ShapeRule = dyn Fn(&[Shape]) -> Result<Shape, String> + Send + Sync;

/// The shape of an output or of a scratch buffer.
#[derive(Clone)]
pub struct OutputShape(Rule);

#[derive(Clone)]
enum Rule {
    Like(&'static str),
    Fixed(Shape),
    By(Arc<ShapeRule>),
}

impl OutputShape {
    /// The same shape as the input with this name.
    pub fn like(input: &'static str) -> Self {
        Self(Rule::Like(input))
    }

    /// A fixed shape.
    pub fn fixed(shape: impl Into<Shape>) -> Self {
        Self(Rule::Fixed(shape.into()))
    }

    /// Computed from the input shapes, in order. If `rule` returns an error, the call fails with
    /// [`OpError::Shape`](crate::error::OpError::Shape).
    pub fn by(rule: impl Fn(&[Shape]) -> Result<Shape, String> + Send + Sync + 'static) -> Self {
        Self(Rule::By(Arc::new(rule)))
    }

    /// Resolves the shape for inputs with these names and shapes.
    pub(crate) fn resolve(&self, names: &[&'static str], inputs: &[Shape]) -> Result<Shape, String> {
        match &self.0 {
            Rule::Like(name) => names
                .iter()
                .position(|n| n == name)
                .and_then(|i| inputs.get(i).cloned())
                .ok_or_else(|| format!("the kernel has no input named `{name}`")),
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

/// Computes the number of workgroups from the shapes of the inputs and outputs.
type DispatchRule = dyn Fn(&[Shape], &[Shape]) -> [u32; 3] + Send + Sync;

/// How many workgroups of a kernel are dispatched. The workgroup size is declared in the WGSL source.
#[derive(Clone, Default)]
pub enum Dispatch {
    /// One thread per element of the first output, along x, rounded up to whole workgroups. The kernel must guard
    /// against the extra threads.
    ///
    /// If x cannot hold all workgroups (WebGPU allows 65,535 per dimension by default), they also extend along y. The
    /// entry point must then take `num_workgroups` and compute its index with `thread_index` from `tensor::indexing`.
    /// Other entry points return an error.
    #[default]
    Elements,
    /// One thread per element of the first output. The last axis runs along x, the second to last along y, and all
    /// others together along z.
    Axes,
    /// A fixed number of workgroups.
    Workgroups([u32; 3]),
    /// Computed from the shapes of the inputs and outputs.
    By(Arc<DispatchRule>),
}

impl Dispatch {
    /// Computes the number of workgroups from the shapes of the inputs and outputs.
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
/// A validated kernel: its source text and metadata.
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
    /// Whether the entry point takes `num_workgroups`, so that it can compute its index if workgroups extend along y.
    pub(crate) folds: bool,
    pub(crate) workgroup: [u32; 3],
    /// Maximum number of loop iterations of a thread. `None` if it has no loops or is trusted.
    pub loops: Option<u32>,
    /// Bytes of workgroup memory.
    pub(crate) workgroup_memory: u32,
    pub(crate) place: Option<SourcePlace>,
    /// The WGSL source, without binding numbers.
    pub(crate) text: String,
    /// Variables other than inputs: their byte position in the text, and their binding number.
    pub(crate) others: Vec<(usize, u32)>,
}

/// An input, an output or a scratch buffer.
#[derive(Clone, Debug)]
pub(crate) struct BindingInfo {
    pub name: &'static str,
    pub dtype: DType,
    /// Scalars per array element: 1, or the width of a vector.
    pub lanes: usize,
    /// Minimum number of tensor elements.
    pub least: usize,
    /// For outputs: whether they are cleared to zero before the kernel runs.
    pub zeroed: bool,
    /// For outputs and scratch buffers.
    pub(crate) shape: Option<OutputShape>,
    /// Byte position of the declaration in the text.
    pub(crate) at: usize,
}

/// One call of a kernel. Part of a recording's structure, and the kernel of a plan step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CustomCall {
    pub code: Arc<KernelCode>,
    pub workgroups: [u32; 3],
    /// Elements of each scratch buffer.
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
    /// Words of the params struct.
    pub(crate) fn param_words(&self) -> usize {
        self.params.as_ref().map_or(0, |params| params.words)
    }

    /// Whether the CPU backend can run it.
    pub(crate) fn has_cpu_function(&self) -> bool {
        self.cpu.is_some()
    }
}

/// Maximum number of arguments of an elementwise function.
pub(crate) const MAX_ARGUMENTS: usize = 4;

/// A user-written elementwise function that can be inserted into any generated kernel.
pub(crate) struct ElementFunction {
    pub(crate) id: u64,
    pub name: &'static str,
    pub trusted: bool,
    pub arguments: SmallVec<[Class; MAX_ARGUMENTS]>,
    pub result: Class,
    /// Name of the function in `text`. All names in `text` have a unique prefix.
    pub function: String,
    pub text: String,
    /// Maximum number of loop iterations of a thread. `None` if it has no loops or is trusted.
    pub loops: Option<u32>,
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

/// The CPU implementation of a kernel.
#[derive(Clone)]
pub(crate) struct CpuFunction(pub Arc<RunCall>);

/// Runs a whole kernel on the CPU.
pub(crate) type RunCall = dyn Fn(&mut CpuKernelCall) -> Result<(), BevyError> + Send + Sync;

/// Runs an elementwise function over columns of argument words.
pub(crate) type ApplyElements = dyn Fn(&[&[u32]], &mut [u32]) + Send + Sync;

/// The inputs, outputs and params of a kernel call, as the CPU implementation of the kernel sees them. They are
/// addressed by position or by name.
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

/// Memory layout of a params struct.
#[derive(Clone, Debug)]
pub(crate) struct ParamsLayout {
    /// The Rust type.
    pub type_id: TypeId,
    pub type_path: &'static str,
    /// Words of the whole struct.
    pub words: usize,
    /// Whether it is bound as a storage buffer instead of a uniform buffer.
    pub storage: bool,
    pub(crate) members: Vec<Member>,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Index of its first word.
    pub(crate) offset: usize,
    pub(crate) element: Numbers,
    /// For arrays: the number of elements, and the stride in words.
    pub(crate) array: Option<(usize, usize)>,
}

/// A scalar, a vector (rows) or a matrix (columns of rows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) class: Class,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// A position in the source text of a kernel, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourcePlace {
    /// Line number.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}
