//! Generates code from the list of kernels: the enum, its dispatch, and the mapping from ops to kernels.

use std::sync::Arc;

use super::Kernel;
use super::spec::Inputs;
use crate::ir::{BinaryOp, CustomCall, ElementFunction, Layout, UnaryOp, View};

/// Generates the enum [`Kernel`] and everything else that depends on the list of kernels.
///
/// A line of `kernels` is `Name(Type)`, or `Name(Type) for Op { fields }` for the kernel of an op. In the latter case,
/// `Type::describe(node, inputs, fields…)` creates the kernel from the recorded node and its inputs, which have the
/// form that `Type::need` asks for. Ops that the planner handles itself are listed in `planner`. An op in neither list
/// does not compile.
macro_rules! kernels {
    (
        kernels { $( $(#[$attribute:meta])* $name:ident($kernel:ty) $(for $op:ident $({ $($field:ident),* })?)?, )* }
        planner { $( $pattern:pat => $lowering:expr, )* }
    ) => {
        /// One kernel launch, without its operands. All fields are part of the structure by which plans are cached.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Kernel {
            $( $(#[$attribute])* $name($kernel), )*
        }

        $( impl From<$kernel> for Kernel {
            fn from(kernel: $kernel) -> Self {
                Kernel::$name(kernel)
            }
        } )*

        impl Kernel {
            /// The kernel's description of itself.
            pub(crate) fn spec(&self) -> &dyn KernelSpec {
                match self {
                    $( Kernel::$name(kernel) => kernel, )*
                }
            }
        }

        #[cfg(test)]
        impl Kernel {
            /// The names of all kernels in the list.
            pub(crate) const LIST: &[&str] = &[$(stringify!($name)),*];

            /// The kernel's name in the list.
            pub(crate) fn listed_as(&self) -> &'static str {
                match self {
                    $( Kernel::$name(_) => stringify!($name), )*
                }
            }
        }

        /// Decides how a node is lowered. `bring` returns an input in the form that a kernel needs. Other ops fetch
        /// their inputs themselves.
        pub(crate) fn lowering<'a>(
            node: &'a Node,
            bring: &mut dyn FnMut(NodeId, Need) -> Operand,
        ) -> Lowering<'a> {
            match &node.op {
                $( $( Op::$op $({ $($field),* })? => {
                    let need = <$kernel as KernelSpec>::need;
                    let inputs = node.inputs.iter().enumerate();
                    let mut inputs: Inputs = inputs.map(|(i, &input)| bring(input, need(i))).collect();
                    let kernel = <$kernel>::describe(node, &mut inputs $( $(, $field)* )?);
                    Lowering::Kernel(kernel.into(), inputs)
                } )? )*
                $( $pattern => $lowering, )*
            }
        }
    };
}
pub(super) use kernels;

/// How an op is lowered, with its attributes.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub(crate) enum Lowering<'a> {
    /// A kernel, over these inputs.
    Kernel(Kernel, Inputs),
    Load {
        slot: u32,
        layout: &'a Layout,
    },
    Host {
        index: u32,
    },
    Const {
        words: &'a Arc<[u32]>,
    },
    /// A map, fused with the elementwise ops around it.
    Elementwise(Elementwise<'a>),
    View(&'a View),
    Assemble {
        places: &'a [Layout],
        fill: bool,
    },
    Custom(&'a CustomCall),
    CustomOutput {
        index: usize,
    },
    Store {
        slot: u32,
        layout: &'a Layout,
        at: Option<usize>,
    },
    Read {
        request: u32,
    },
}

/// An op that computes each element from the same elements of its inputs.
#[derive(Clone, Copy)]
pub(crate) enum Elementwise<'a> {
    Scalar,
    Iota,
    Unary(UnaryOp),
    Binary(BinaryOp),
    Select,
    Cast,
    Function(&'a Arc<ElementFunction>),
}
