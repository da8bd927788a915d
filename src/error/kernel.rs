//! Errors of registering custom kernels.

use thiserror::Error;

use crate::ir::SourcePlace;

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
