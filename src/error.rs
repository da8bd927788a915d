//! What can go wrong, one enum per phase: making tensors, registering kernels, recording ops, reading back, running.

use crate::ir::{Backend, DType, Shape, SourcePlace};
use bevy::ecs::entity::Entity;
use thiserror::Error;

/// Making a tensor, a view of one, or host data.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of values is not what the shape asks for.
    #[error("a tensor of shape {shape} cannot be made of {values} values")]
    Length {
        /// The shape asked for.
        shape: Shape,
        /// The values given.
        values: usize,
    },
    /// Rows of different lengths.
    #[error("row {row} has {length} values but the first row has {expected}")]
    Ragged {
        /// The first row that differs.
        row: usize,
        /// Its length.
        length: usize,
        /// The length of the first row.
        expected: usize,
    },
    /// More elements than can be addressed.
    #[error("a tensor of shape {shape} and type {dtype} is too large to address")]
    TooLarge {
        /// The shape asked for.
        shape: Shape,
        /// The element type asked for.
        dtype: DType,
    },
    /// Host data is of another type than asked for.
    #[error("the values are {held}, not {asked}")]
    ElementType {
        /// What the data is.
        held: DType,
        /// What was asked for.
        asked: DType,
    },
    /// The constructor has no meaning for this element type.
    #[error("{constructor} makes no {dtype} tensors")]
    UnsupportedType {
        /// The constructor.
        constructor: &'static str,
        /// The element type asked for.
        dtype: DType,
    },
    /// Rows that are not made of whole blocks.
    #[error(
        "a {dtype} tensor of shape {shape} cannot be made: the last axis is not a multiple of {block}, the block of the type"
    )]
    Blocks {
        /// The shape asked for.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
        /// Elements of its blocks.
        block: usize,
    },
    /// The number of bytes is not what the blocks take.
    #[error("a {dtype} tensor of shape {shape} is made of {expected} bytes, not {bytes}")]
    BlockBytes {
        /// The shape asked for.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
        /// The bytes its blocks take.
        expected: usize,
        /// The bytes given.
        bytes: usize,
    },
    /// A view of a quantised tensor that is not a run of whole rows.
    #[error("a {dtype} tensor of shape {shape} can only be seen as a run of whole rows; dequantize it first")]
    QuantizedView {
        /// The shape of the tensor.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
    },
    /// An axis that the shape does not have.
    #[error("axis {axis} does not exist in shape {shape}")]
    Axis {
        /// The axis asked for.
        axis: isize,
        /// The shape.
        shape: Shape,
    },
    /// A range that leaves its axis, or a step of 0.
    #[error("{start}..{end} step {step} is not a range of axis {axis} of shape {shape}")]
    Range {
        /// Start asked for.
        start: isize,
        /// End asked for.
        end: isize,
        /// Step asked for.
        step: isize,
        /// The axis.
        axis: usize,
        /// The shape.
        shape: Shape,
    },
    /// The axes given are not each axis once.
    #[error("{order:?} does not list every axis of shape {shape} once")]
    Permutation {
        /// The order asked for.
        order: Vec<isize>,
        /// The shape.
        shape: Shape,
    },
    /// Shapes that hold different numbers of elements.
    #[error("shape {from} has {} elements and cannot become {to} with {}", .from.elements(), .to.elements())]
    Reshape {
        /// The shape there is.
        from: Shape,
        /// The shape asked for.
        to: Shape,
    },
    /// The view is strided in a way the new shape cannot express without copying.
    #[error("a strided view of shape {from} cannot be seen as {to} without a copy; record `ops.reshape` instead")]
    NeedsCopy {
        /// The shape there is.
        from: Shape,
        /// The shape asked for.
        to: Shape,
    },
    /// A shape that does not broadcast to another.
    #[error("shape {from} does not broadcast to {to}")]
    Broadcast {
        /// The shape there is.
        from: Shape,
        /// The shape asked for.
        to: Shape,
    },
    /// A window beyond the end of the tensor.
    #[error("{size} elements from {offset} do not lie within a tensor of {elements}")]
    Window {
        /// First element asked for.
        offset: usize,
        /// Elements asked for.
        size: usize,
        /// Elements there are.
        elements: usize,
    },
}

/// An operand as an error names it.
#[derive(Clone, Debug, PartialEq)]
pub struct OperandInfo {
    /// The tensor's name, its entity where it has none, or `value` for an unnamed intermediate.
    pub name: String,
    /// Sizes of its axes.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
}

impl core::fmt::Display for OperandInfo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} is {}", self.name, self.shape)
    }
}

fn list_shapes(operands: &[OperandInfo]) -> String {
    operands.iter().map(OperandInfo::to_string).collect::<Vec<_>>().join(" but ")
}

fn list_types(operands: &[OperandInfo]) -> String {
    operands.iter().map(|o| format!("{} is {}", o.name, o.dtype)).collect::<Vec<_>>().join(" but ")
}

/// The beginning of a message about a kernel: its name, and the place where there is one.
fn in_kernel(kernel: &str, place: Option<SourcePlace>) -> String {
    match place {
        Some(SourcePlace { line, column }) => format!("kernel {kernel}, line {line}, column {column}"),
        None => format!("kernel {kernel}"),
    }
}

/// Registering a [`CustomKernel`](crate::CustomKernel), or the edit of one. Nothing reached a device; an edit leaves the kernel as it was.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The text is no valid WGSL: its syntax, its types, a function that calls itself, a name defined twice.
    #[error("{}: {message}", in_kernel(kernel, *place))]
    Wgsl {
        /// The kernel.
        kernel: &'static str,
        /// Where, if that is known.
        place: Option<SourcePlace>,
        /// What naga said.
        message: String,
    },
    /// An `#import` of something that there is not.
    #[error("{}: there is no {module} to import; there are {known}", in_kernel(kernel, Some(*place)))]
    Import {
        /// The kernel.
        kernel: &'static str,
        /// Where.
        place: SourcePlace,
        /// What was to be imported.
        module: String,
        /// What can be.
        known: String,
    },
    /// The entry point (or, of elementwise kernels, the function) is not in the text.
    #[error("kernel {kernel}: there is no {entry}; there are: {}", found.join(", "))]
    EntryPoint {
        /// The kernel.
        kernel: &'static str,
        /// The name looked for.
        entry: &'static str,
        /// Those found.
        found: Vec<String>,
    },
    /// A binding that the kernel is to have is not in the text.
    #[error("kernel {kernel}: the {role} `{binding}` is not a variable of the text")]
    MissingBinding {
        /// The kernel.
        kernel: &'static str,
        /// The variable looked for.
        binding: &'static str,
        /// Input, output, scratch or params.
        role: &'static str,
    },
    /// The entry point uses a variable that the kernel does not declare as an input, output, scratch or params.
    #[error("{}: `{binding}` is used but is no input, output, scratch or params of the kernel", in_kernel(kernel, *place))]
    UnknownBinding {
        /// The kernel.
        kernel: &'static str,
        /// Where it is declared.
        place: Option<SourcePlace>,
        /// The variable.
        binding: String,
    },
    /// A binding's type is not one that the contents of a tensor can be seen as.
    #[error("{}: the {role} `{binding}` {reason}", in_kernel(kernel, *place))]
    BindingType {
        /// The kernel.
        kernel: &'static str,
        /// Where it is declared.
        place: Option<SourcePlace>,
        /// The variable.
        binding: &'static str,
        /// Input, output, scratch or params.
        role: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A binding is read where it should be written, or the other way round.
    #[error("{}: the {role} `{binding}` must be {expected} but is {found}", in_kernel(kernel, *place))]
    BindingAccess {
        /// The kernel.
        kernel: &'static str,
        /// Where it is declared.
        place: Option<SourcePlace>,
        /// The variable.
        binding: &'static str,
        /// Input, output, scratch or params.
        role: &'static str,
        /// How it must be declared or used.
        expected: &'static str,
        /// How it is.
        found: &'static str,
    },
    /// The params struct is not what the Rust type says.
    #[error("{}: {reason}", in_kernel(kernel, *place))]
    Params {
        /// The kernel.
        kernel: &'static str,
        /// Where the struct is.
        place: Option<SourcePlace>,
        /// What differs, with the member's name.
        reason: String,
    },
    /// A barrier that some threads of a workgroup may not reach, at which a device could hang.
    #[error("{}: a barrier of `{function}` is in non-uniform control flow", in_kernel(kernel, *place))]
    Barrier {
        /// The kernel.
        kernel: &'static str,
        /// Where.
        place: Option<SourcePlace>,
        /// The function it is in.
        function: String,
    },
    /// More than the device allows: threads of a workgroup, its memory, or bindings.
    #[error("{}: {what} {requested} but the device allows {available}", in_kernel(kernel, *place))]
    Limit {
        /// The kernel.
        kernel: &'static str,
        /// The entry point.
        place: Option<SourcePlace>,
        /// What there is too much of.
        what: &'static str,
        /// How much the kernel needs.
        requested: u32,
        /// How much there is.
        available: u32,
    },
    /// An explicit dispatch of no workgroups.
    #[error("kernel {kernel}: a dispatch of {workgroups:?} workgroups does nothing")]
    ZeroWorkgroups {
        /// The kernel.
        kernel: &'static str,
        /// The workgroups given.
        workgroups: [u32; 3],
    },
    /// The function of an elementwise kernel does not take and give single numbers, or its CPU function takes others.
    #[error("{}: {reason}", in_kernel(kernel, *place))]
    Elementwise {
        /// The kernel.
        kernel: &'static str,
        /// Where the function is.
        place: Option<SourcePlace>,
        /// What does not fit.
        reason: String,
    },
    /// The description of the kernel contradicts itself.
    #[error("kernel {kernel}: {reason}")]
    Description {
        /// The kernel.
        kernel: &'static str,
        /// How.
        reason: String,
    },
    /// Another kernel of this name is in use.
    #[error("kernel {kernel}: another kernel has this name")]
    NameTaken {
        /// The name.
        kernel: &'static str,
    },
    /// The shader asset has not been loaded yet, or not at all.
    #[error("kernel {kernel}: its shader has not been loaded yet")]
    NotLoaded {
        /// The kernel.
        kernel: &'static str,
    },
}

impl KernelError {
    /// Where in the kernel's text, if that is known.
    pub fn place(&self) -> Option<SourcePlace> {
        match self {
            Self::Import { place, .. } => Some(*place),
            Self::Wgsl { place, .. }
            | Self::UnknownBinding { place, .. }
            | Self::BindingType { place, .. }
            | Self::BindingAccess { place, .. }
            | Self::Params { place, .. }
            | Self::Barrier { place, .. }
            | Self::Limit { place, .. }
            | Self::Elementwise { place, .. } => *place,
            Self::EntryPoint { .. }
            | Self::MissingBinding { .. }
            | Self::ZeroWorkgroups { .. }
            | Self::Description { .. }
            | Self::NameTaken { .. }
            | Self::NotLoaded { .. } => None,
        }
    }
}

/// Recording an op. Nothing reached a device.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum OpError {
    /// The entity has no [`Tensor`](crate::Tensor): it was never spawned, is not spawned yet, or was despawned.
    #[error("{op}: entity {entity} has no tensor")]
    MissingTensor {
        /// The op.
        op: &'static str,
        /// The entity given.
        entity: Entity,
    },
    /// The tensor shares its name with another tensor of its model, so neither can be meant by it.
    #[error("{op}: model {model} has two tensors named \"{name}\"")]
    DuplicateName {
        /// The op.
        op: &'static str,
        /// The model.
        model: Entity,
        /// The name.
        name: String,
    },
    /// A value that another recording made: another system's, or an earlier frame's.
    #[error(
        "{op}: a value of another recording was given; values live for one run of one system, store them to keep them"
    )]
    ForeignValue {
        /// The op.
        op: &'static str,
    },
    /// Operands that live on different backends.
    #[error("{op}: {first} lives on the {first_backend} but {second} on the {second_backend}")]
    MixedBackends {
        /// The op.
        op: &'static str,
        /// An operand.
        first: String,
        /// Where it lives.
        first_backend: Backend,
        /// Another operand.
        second: String,
        /// Where that lives.
        second_backend: Backend,
    },
    /// Shapes that do not fit the op or each other.
    #[error("{op}: {}; {reason}", list_shapes(operands))]
    Shape {
        /// The op.
        op: &'static str,
        /// The operands concerned.
        operands: Vec<OperandInfo>,
        /// What does not fit.
        reason: String,
    },
    /// Element types that do not fit the op or each other.
    #[error("{op}: {}; {reason}", list_types(operands))]
    Type {
        /// The op.
        op: &'static str,
        /// The operands concerned.
        operands: Vec<OperandInfo>,
        /// What does not fit.
        reason: String,
    },
    /// An axis that the operand does not have, or one named twice.
    #[error("{op}: {operand}; axis {axis} {reason}")]
    Axis {
        /// The op.
        op: &'static str,
        /// The operand.
        operand: Box<OperandInfo>,
        /// The axis given.
        axis: isize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An argument (a size, a range, a number of groups) that the op cannot take.
    #[error("{op}: {reason}")]
    Argument {
        /// The op.
        op: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Host data that does not fit the tensor it is written to.
    #[error("{op}: {operand} of type {}; {reason}", operand.dtype)]
    Data {
        /// The op.
        op: &'static str,
        /// The tensor.
        operand: Box<OperandInfo>,
        /// What does not fit.
        reason: String,
    },
    /// The tensor cannot be written through this view: two of its indices are one element.
    #[error("{op}: {operand}; a broadcast view cannot be written")]
    ReadOnlyView {
        /// The op.
        op: &'static str,
        /// The view.
        operand: Box<OperandInfo>,
    },
    /// A custom kernel that cannot run: its shader is not there yet, or the device allows less than it needs.
    #[error("{0}")]
    Kernel(Box<KernelError>),
    /// A custom kernel without a CPU function was to run on the CPU.
    #[error("{op}: the kernel has no CPU function, and its tensors live on the CPU")]
    NoCpuFunction {
        /// The kernel.
        op: &'static str,
    },
    /// Tensor work is switched off in this app.
    #[error("{op}: tensor compute is disabled: {reason}")]
    Disabled {
        /// The op.
        op: &'static str,
        /// Why.
        reason: String,
    },
}

impl From<KernelError> for OpError {
    fn from(error: KernelError) -> Self {
        Self::Kernel(Box::new(error))
    }
}

/// A readback that brings no data.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The tensor's entity was despawned before its values could be announced.
    #[error("the tensor was despawned before its values arrived")]
    Despawned,
    /// The work that was to make the values failed.
    #[error("the work behind the values failed: {0}")]
    Failed(RunError),
    /// The device went away.
    #[error("the device was lost before the values arrived")]
    DeviceLost,
    /// The app, or the plugin, ended.
    #[error("tensor compute ended before the values arrived")]
    Disabled,
}

/// A tensor that takes memory, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryHolder {
    /// Its name, or the number of its storage.
    pub name: String,
    /// Bytes it takes on the device.
    pub bytes: u64,
    /// Whether it is pinned.
    pub pinned: bool,
}

fn list_holders(holders: &[MemoryHolder]) -> String {
    let list = holders.iter().map(|h| format!("{} {}{}", h.name, h.bytes, if h.pinned { " (pinned)" } else { "" }));
    let list = list.collect::<Vec<_>>().join(", ");
    if list.is_empty() { "none".to_owned() } else { list }
}

/// Running a batch of recorded work.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// A kernel did not become a pipeline.
    #[error("kernel {kernel} did not compile: {message}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// What the compiler said.
        message: String,
    },
    /// The CPU function of a custom kernel failed, or is missing where work had to move to the CPU.
    #[error("kernel {kernel} on the CPU: {message}")]
    CpuFunction {
        /// The kernel.
        kernel: &'static str,
        /// What it said.
        message: String,
    },
    /// A buffer beyond what the device allows.
    #[error("{what} needs {requested} bytes but the device allows {available}")]
    Limit {
        /// What asked.
        what: String,
        /// Bytes asked for.
        requested: u64,
        /// Bytes allowed.
        available: u64,
    },
    /// The device has no memory left.
    #[error("the device is out of memory: {what} asked for {requested} bytes")]
    OutOfMemory {
        /// What asked.
        what: String,
        /// Bytes asked for.
        requested: u64,
    },
    /// The work needs more than the budget has left, even with every tensor gone that may go.
    #[error(
        "{requested} bytes are needed but only {available} of the budget of {budget} can be had; largest holders: {}",
        list_holders(largest)
    )]
    Budget {
        /// Bytes the work needs beyond what it has on the device.
        requested: u64,
        /// Bytes that could be had for it.
        available: u64,
        /// The budget.
        budget: u64,
        /// The largest tensors that must stay: pinned ones, and those the work itself uses.
        largest: Vec<MemoryHolder>,
    },
    /// The work reads a tensor whose content a lost device took with it.
    #[error("the content of {tensor} was lost with the device; write it before reading it")]
    Lost {
        /// The tensor's name.
        tensor: String,
    },
    /// The device refused something; a bug worth reporting.
    #[error("the device reported: {0}")]
    Device(String),
    /// In debug mode: the first op of a batch that made a NaN or an infinity of operands without.
    #[error("{op} at {site} made {nans} NaNs and {infinities} infinities of operands that had none")]
    NonFinite {
        /// The op that the kernel is for.
        op: &'static str,
        /// All ops that share the kernel.
        ops: Vec<&'static str>,
        /// Where the last of them was recorded.
        site: &'static core::panic::Location<'static>,
        /// NaNs among the results.
        nans: u32,
        /// Infinities among the results.
        infinities: u32,
    },
    /// A kernel read positions from memory that lay outside the data; they were clamped.
    #[error("{op}: {count} indices out of range were clamped")]
    IndexOutOfRange {
        /// The op.
        op: &'static str,
        /// How many.
        count: u32,
    },
}
