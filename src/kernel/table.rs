//! How the list of kernels becomes code: the enum, its dispatch, and who carries out which op.

use std::sync::Arc;

use super::Kernel;
use super::spec::Inputs;
use crate::ir::{BinaryOp, CustomCall, ElementFunction, Layout, UnaryOp, View};

/// Makes the enum [`Kernel`] and all that depends on the list of kernels.
///
/// A line of `kernels` is `Name(Type)`, or `Name(Type) for Op { fields }` for the kernel of an op: then
/// `Type::describe(node, inputs, fields…)` makes the kernel from the recorded node and its inputs, which were brought
/// as `Type::need` asks. Ops that the planner carries out itself are listed in `planner`. An op in neither list does
/// not compile.
macro_rules! kernels {
    (
        kernels { $( $(#[$attribute:meta])* $name:ident($kernel:ty) $(for $op:ident $({ $($field:ident),* })?)?, )* }
        planner { $( $pattern:pat => $lowering:expr, )* }
    ) => {
        /// One kernel launch, without its operands. Everything here is structure.
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
            /// What the kernel says about itself.
            pub(crate) fn spec(&self) -> &dyn KernelSpec {
                match self {
                    $( Kernel::$name(kernel) => kernel, )*
                }
            }
        }

        /// Who carries out a node. `bring` gives an input of a kernel as the kernel needs it; other ops bring theirs
        /// themselves.
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

/// Who carries out an op, with what the op says.
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
    /// A map, together with the elementwise ops around it.
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

/// An op that computes each element from the same element of its inputs.
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
