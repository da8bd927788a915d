//! Values while a plan is built: in memory, or still an expression that a later kernel will compute.

use smallvec::SmallVec;

use crate::ir::{DType, Expr, Layout, NodeId, Operand, Program, Reg, Shape, Source, View};
use crate::kernel::{MapKernel, merge_axes};

/// An elementwise expression over operands that all have its shape.
#[derive(Clone, Debug)]
pub(super) struct Lazy {
    pub shape: Shape,
    pub dtype: DType,
    pub program: Program,
    pub result: Reg,
    pub leaves: SmallVec<[Operand; 4]>,
    /// Indices into the batch's scalars.
    pub scalars: SmallVec<[u32; 4]>,
    /// The recorded nodes that the expression contains.
    pub nodes: SmallVec<[NodeId; 4]>,
}

/// The value of a node.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one per node while a plan is built; a box would cost one allocation each"
)]
pub(super) enum Value {
    Memory(Operand),
    Lazy(Lazy),
    /// Host data that has not been uploaded yet.
    Host {
        index: u32,
        shape: Shape,
        dtype: DType,
    },
}

impl Lazy {
    pub(super) fn new(shape: Shape, dtype: DType) -> Self {
        Self {
            shape,
            dtype,
            program: Program::default(),
            result: Reg(0),
            leaves: SmallVec::new(),
            scalars: SmallVec::new(),
            nodes: SmallVec::new(),
        }
    }

    /// Loads the elements of an operand.
    pub(super) fn load(operand: Operand) -> Self {
        let mut lazy = Self::new(operand.layout.shape.clone(), operand.dtype);
        lazy.result = lazy.program.push(Expr::Input(0, operand.dtype.class()));
        lazy.leaves.push(operand);
        lazy
    }

    /// The register that holds scalar `scalar` of the batch.
    pub(super) fn scalar(&mut self, scalar: u32, class: crate::ir::Class) -> Reg {
        let at = find_or_push(&mut self.scalars, &scalar);
        self.program.push(Expr::Scalar(at as u16, class))
    }

    /// Adds another expression of the same shape. Returns the register of its result in this program.
    pub(super) fn absorb(&mut self, other: &Lazy) -> Reg {
        let Self { leaves, scalars, program, .. } = self;
        let regs = program.absorb(
            &other.program,
            |program, i, class| {
                let at = find_or_push(leaves, &other.leaves[i as usize]);
                program.push(Expr::Input(at as u16, class))
            },
            |program, i, class| {
                let at = find_or_push(scalars, &other.scalars[i as usize]);
                program.push(Expr::Scalar(at as u16, class))
            },
        );
        for &node in &other.nodes {
            if !self.nodes.contains(&node) {
                self.nodes.push(node);
            }
        }
        regs.get(other.result.0 as usize).copied().unwrap_or(Reg(0))
    }

    /// Applies a view. Returns `None` if strides cannot express it for some operand.
    pub(super) fn view(&self, view: &View, shape: &Shape) -> Option<Lazy> {
        let mut lazy = self.clone();
        for leaf in &mut lazy.leaves {
            leaf.layout = apply(view, &leaf.layout, shape)?;
        }
        lazy.shape = shape.clone();
        Some(lazy)
    }

    /// The different memories that the expression reads.
    pub(super) fn sources(&self) -> SmallVec<[Source; 8]> {
        let mut sources: SmallVec<[Source; 8]> =
            self.leaves.iter().map(|l| l.source).filter(|s| s.has_memory()).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// The kernel that computes this into `output`, and its operands. Axes are merged as far as all operands allow.
    pub(super) fn into_map(self, mut output: Operand) -> (MapKernel, SmallVec<[Operand; 4]>, Operand) {
        let mut leaves = self.leaves;
        let mut program = self.program;
        program.outputs = vec![self.result];
        let shape = {
            let mut layouts: Vec<&mut Layout> = leaves.iter_mut().map(|l| &mut l.layout).collect();
            layouts.push(&mut output.layout);
            merge_axes(&self.shape, &mut layouts)
        };
        (MapKernel { shape, program, dynamic_out: None }, leaves, output)
    }
}

/// The index of an element in a list. Appends the element if it is missing.
pub(super) fn find_or_push<T: Clone + PartialEq, const N: usize>(list: &mut SmallVec<[T; N]>, element: &T) -> usize
where
    [T; N]: smallvec::Array<Item = T>,
{
    list.iter().position(|e| e == element).unwrap_or_else(|| {
        list.push(element.clone());
        list.len() - 1
    })
}

/// Applies a view to a layout. Returns `None` if strides cannot express it.
pub(super) fn apply(view: &View, layout: &Layout, shape: &Shape) -> Option<Layout> {
    match view {
        View::Reshape => layout.reshape(shape),
        View::Broadcast => layout.broadcast_to(shape),
        View::Permute(order) => Some(layout.permute(order)),
        View::Slice { axis, start, step } => Some(layout.slice(*axis, *start, shape[*axis], *step)),
    }
}
