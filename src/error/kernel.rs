//! Errors of registering custom kernels.

use thiserror::Error;

use crate::ir::SourcePlace;

/// The start of a message: the name of the kernel, and the place in its source if it is known.
fn in_kernel(kernel: &str, place: Option<SourcePlace>) -> String {
    match place {
        Some(SourcePlace { line, column }) => format!("kernel {kernel}, line {line}, column {column}"),
        None => format!("kernel {kernel}"),
    }
}

/// The error of registering a [`CustomKernel`](crate::kernels::CustomKernel), or of reloading its shader. After a
/// failed reload the kernel keeps its previous shader.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The source is not valid WGSL.
    #[error("{}: {message}", in_kernel(kernel, *place))]
    Wgsl {
        /// The kernel.
        kernel: &'static str,
        /// The place in the source, if known.
        place: Option<SourcePlace>,
        /// The message of naga, the WGSL compiler.
        message: String,
    },
    /// An `#import` names an unknown module.
    #[error("{}: unknown module {module}; known modules: {known}", in_kernel(kernel, Some(*place)))]
    Import {
        /// The kernel.
        kernel: &'static str,
        /// The place of the import.
        place: SourcePlace,
        /// The unknown module.
        module: String,
        /// The known modules.
        known: String,
    },
    /// The source has no entry point of this name. For elementwise kernels: no function of this name.
    #[error("kernel {kernel}: {entry} not found; found: {}", found.join(", "))]
    EntryPoint {
        /// The kernel.
        kernel: &'static str,
        /// The expected name.
        entry: &'static str,
        /// The names in the source.
        found: Vec<String>,
    },
    /// The source does not declare a binding of the kernel.
    #[error("kernel {kernel}: the source does not declare the {role} `{binding}`")]
    MissingBinding {
        /// The kernel.
        kernel: &'static str,
        /// The expected variable.
        binding: &'static str,
        /// Input, output, scratch or params.
        role: &'static str,
    },
    /// The entry point uses a variable that is not an input, output, scratch or params of the kernel.
    #[error("{}: `{binding}` is used but is not an input, output, scratch or params of the kernel", in_kernel(kernel, *place))]
    UnknownBinding {
        /// The kernel.
        kernel: &'static str,
        /// The place of its declaration.
        place: Option<SourcePlace>,
        /// The variable.
        binding: String,
    },
    /// The type of a binding does not match the tensor.
    #[error("{}: the {role} `{binding}` {reason}", in_kernel(kernel, *place))]
    BindingType {
        /// The kernel.
        kernel: &'static str,
        /// The place of its declaration.
        place: Option<SourcePlace>,
        /// The variable.
        binding: &'static str,
        /// Input, output, scratch or params.
        role: &'static str,
        /// The reason.
        reason: String,
    },
    /// A binding has the wrong access mode, or is not used as its role requires.
    #[error("{}: the {role} `{binding}` must be {expected} but is {found}", in_kernel(kernel, *place))]
    BindingAccess {
        /// The kernel.
        kernel: &'static str,
        /// The place of its declaration.
        place: Option<SourcePlace>,
        /// The variable.
        binding: &'static str,
        /// Input, output, scratch or params.
        role: &'static str,
        /// The required access.
        expected: &'static str,
        /// The actual access.
        found: &'static str,
    },
    /// The params struct does not match the Rust type.
    #[error("{}: {reason}", in_kernel(kernel, *place))]
    Params {
        /// The kernel.
        kernel: &'static str,
        /// The place of the struct.
        place: Option<SourcePlace>,
        /// The difference, with the name of the member.
        reason: String,
    },
    /// A barrier is in non-uniform control flow: some threads of a workgroup may not reach it, and the device could
    /// hang.
    #[error("{}: a barrier of `{function}` is in non-uniform control flow", in_kernel(kernel, *place))]
    Barrier {
        /// The kernel.
        kernel: &'static str,
        /// The place of the barrier.
        place: Option<SourcePlace>,
        /// The function that contains it.
        function: String,
    },
    /// The kernel needs more than the device allows: threads per workgroup, workgroup memory, or bindings.
    #[error("{}: {what} {requested} but the device allows {available}", in_kernel(kernel, *place))]
    Limit {
        /// The kernel.
        kernel: &'static str,
        /// The place of the entry point.
        place: Option<SourcePlace>,
        /// The exceeded limit.
        what: &'static str,
        /// The value that the kernel needs.
        requested: u32,
        /// The value that the device allows.
        available: u32,
    },
    /// An explicit dispatch has no workgroups.
    #[error("kernel {kernel}: a dispatch of {workgroups:?} workgroups is empty")]
    ZeroWorkgroups {
        /// The kernel.
        kernel: &'static str,
        /// The number of workgroups.
        workgroups: [u32; 3],
    },
    /// The function of an elementwise kernel does not take and return single numbers, or does not match the CPU
    /// function.
    #[error("{}: {reason}", in_kernel(kernel, *place))]
    Elementwise {
        /// The kernel.
        kernel: &'static str,
        /// The place of the function.
        place: Option<SourcePlace>,
        /// The reason.
        reason: String,
    },
    /// The description of the kernel contradicts itself.
    #[error("kernel {kernel}: {reason}")]
    Description {
        /// The kernel.
        kernel: &'static str,
        /// The reason.
        reason: String,
    },
    /// Another kernel already has this name.
    #[error("kernel {kernel}: another kernel already has this name")]
    NameTaken {
        /// The name.
        kernel: &'static str,
    },
    /// The shader asset is not loaded yet, or failed to load.
    #[error("kernel {kernel}: the shader is not loaded")]
    NotLoaded {
        /// The kernel.
        kernel: &'static str,
    },
}

impl KernelError {
    /// The place in the source of the kernel, if known.
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
