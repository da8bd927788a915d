//! The elementwise part of a step, and how two of them are joined.

use smallvec::SmallVec;

use super::meets;
use crate::figures::UnfusedReason;
use crate::ir::{Expr, Layout, Operand, Program, Shape, Source};
use crate::kernel::{Fused, MapKernel, Step, merge_axes};
use crate::plan::values::find_or_push;

/// The elementwise work of a step: a whole map, or what a kernel applies to each of its values, which is then input 0.
#[derive(Clone, Debug)]
pub(super) struct Body {
    shape: Shape,
    program: Program,
    pub inputs: SmallVec<[Operand; 4]>,
    pub outputs: SmallVec<[Operand; 1]>,
    scalars: SmallVec<[u32; 4]>,
}

impl Body {
    /// The body of a map, or of a kernel with its current epilogue.
    pub(super) fn of(step: &Step) -> Self {
        let (map, inputs, scalars) = match (step.kernel.as_map(), &step.epilogue) {
            (Some(map), _) => (map, &step.inputs, &step.scalars),
            (None, Some(Fused { map, inputs, scalars })) => (map, inputs, scalars),
            (None, None) => return Self::of_value(&step.outputs[0]),
        };
        Self {
            shape: map.shape.clone(),
            program: map.program.clone(),
            inputs: inputs.clone(),
            outputs: step.outputs.clone(),
            scalars: scalars.clone(),
        }
    }

    /// A body that passes a kernel's value through unchanged.
    fn of_value(output: &Operand) -> Self {
        let shape = Shape::from([output.layout.elements()]);
        let layout = Layout::contiguous(shape.clone());
        let output = Operand { layout: Layout { offset: output.layout.offset, ..layout.clone() }, ..output.clone() };
        let mut program = Program::default();
        let value = program.push(Expr::Input(0, output.dtype.class()));
        program.outputs.push(value);
        let input = Operand { source: Source::Fused, dtype: output.dtype, layout };
        Self {
            shape,
            program,
            inputs: SmallVec::from_iter([input]),
            outputs: SmallVec::from_iter([output]),
            scalars: SmallVec::new(),
        }
    }

    /// Number of expressions in the program.
    pub(super) fn length(&self) -> usize {
        self.program.exprs.len()
    }

    fn layouts(&mut self) -> impl Iterator<Item = &mut Layout> {
        self.inputs.iter_mut().chain(&mut self.outputs).map(|operand| &mut operand.layout)
    }

    /// Iterates over the elements in the order in which a kernel writes `output`, if the body reads all of it. Each
    /// value is then consumed right after it was computed. Elementwise work has no order of its own.
    pub(super) fn follow(&mut self, output: &Operand) {
        if let Some(turned) = self.turned(output) {
            *self = turned;
        }
    }

    fn turned(&self, output: &Operand) -> Option<Self> {
        let leaf = self.inputs.iter().find(|input| meets(input, output))?;
        let (read, written) = (memory_order(&leaf.layout)?, memory_order(&output.layout)?);
        // First in memory order, then in the order in which the kernel visits them.
        let mut turned = self.clone();
        turned.permute(&read);
        let lies = Shape::new(written.iter().map(|&axis| output.layout.shape[axis]));
        let axes = common_axes(&turned.shape, &lies)?;
        turned.cut(&axes)?;
        // The axes of this body that make up each axis of the kernel's order.
        let mut order: SmallVec<[usize; 6]> = SmallVec::new();
        for axis in 0..written.len() {
            let place = written.iter().position(|&w| w == axis)?;
            let (outside, whole) = (lies[..place].iter().product::<usize>(), lies[..=place].iter().product::<usize>());
            let inside = |i: &usize| {
                let before: usize = axes[..*i].iter().product();
                outside <= before && before < whole
            };
            order.extend((0..axes.rank()).filter(inside));
        }
        turned.permute(&order);
        Some(turned)
    }

    fn permute(&mut self, order: &[usize]) {
        self.shape = Shape::new(order.iter().map(|&axis| self.shape[axis]));
        self.layouts().for_each(|layout| *layout = layout.permute(order));
    }

    /// Splits the axes as in `shape`, without changing the order of elements.
    fn cut(&mut self, shape: &Shape) -> Option<()> {
        for layout in self.layouts() {
            *layout = layout.reshape(shape)?;
        }
        self.shape = shape.clone();
        Some(())
    }

    /// Joins this body with `next`, over the same elements. Values that `next` reads from an output of this body stay
    /// in registers. Outputs for which `keeps` returns true stay outputs.
    pub(super) fn join(mut self, mut next: Body, keeps: impl Fn(&Operand) -> bool) -> Result<Joined, UnfusedReason> {
        let shape = common_axes(&self.shape, &next.shape).ok_or(UnfusedReason::Order)?;
        self.cut(&shape).and(next.cut(&shape)).ok_or(UnfusedReason::Order)?;
        let forwarded: SmallVec<[Option<usize>; 4]> =
            next.inputs.iter().map(|input| self.outputs.iter().position(|output| output == input)).collect();
        let elsewhere = |(input, forwarded): (&Operand, &Option<usize>)| {
            forwarded.is_none() && self.outputs.iter().any(|output| meets(input, output))
        };
        if next.inputs.iter().zip(&forwarded).any(elsewhere) {
            return Err(UnfusedReason::Order);
        }

        let Self { program, inputs, outputs, scalars, .. } = &mut self;
        let written = program.outputs.clone();
        let regs = program.absorb(
            &next.program,
            |program, i, class| match forwarded[i as usize] {
                Some(at) => {
                    let output = &outputs[at];
                    // Inside a chain, halves keep extra precision. A value read back from a tensor is rounded as
                    // stored.
                    let rounds = output.dtype.is_half() && matches!(output.source, Source::Slot(_));
                    if rounds { program.push(Expr::Cast(written[at], output.dtype)) } else { written[at] }
                }
                None => {
                    let at = find_or_push(inputs, &next.inputs[i as usize]);
                    program.push(Expr::Input(at as u16, class))
                }
            },
            |program, i, class| {
                let at = find_or_push(scalars, &next.scalars[i as usize]);
                program.push(Expr::Scalar(at as u16, class))
            },
        );
        program.outputs.clear();
        let mut kept: SmallVec<[Operand; 1]> = SmallVec::new();
        for (output, reg) in outputs.drain(..).zip(written) {
            if keeps(&output) {
                program.outputs.push(reg);
                kept.push(output);
            }
        }
        program.outputs.extend(next.program.outputs.iter().map(|reg| regs[reg.0 as usize]));
        kept.extend(next.outputs);
        self.outputs = kept;
        Ok(Joined { body: self, forwards: forwarded.iter().any(Option::is_some) })
    }

    /// Turns the body into a kernel over as few axes as possible, with its inputs, outputs and scalars.
    fn finish(mut self) -> (Fused, SmallVec<[Operand; 1]>) {
        let shape = self.shape.clone();
        let mut layouts: Vec<&mut Layout> = self.layouts().collect();
        let shape = merge_axes(&shape, &mut layouts);
        let map = MapKernel { shape, program: self.program, dynamic_out: None };
        (Fused { map, inputs: self.inputs, scalars: self.scalars }, self.outputs)
    }

    /// The step that runs this body in place of the elementwise work of `step`.
    pub(super) fn into_step(self, step: &Step) -> Step {
        let (fused, outputs) = self.finish();
        if step.kernel.as_map().is_none() {
            return Step { epilogue: Some(fused), outputs, ..step.clone() };
        }
        let Fused { map, inputs, scalars } = fused;
        Step { kernel: map.into(), inputs, scalars, outputs, ..step.clone() }
    }
}

/// The result of joining two bodies.
pub(super) struct Joined {
    pub body: Body,
    /// Whether the second body reads what the first one writes.
    pub forwards: bool,
}

/// The axes of a layout ordered by decreasing stride, if they cover a range of memory without gaps.
fn memory_order(layout: &Layout) -> Option<SmallVec<[usize; 6]>> {
    let mut order: SmallVec<[usize; 6]> = (0..layout.rank()).collect();
    order.sort_by_key(|&axis| core::cmp::Reverse(layout.strides[axis]));
    layout.permute(&order).is_contiguous().then_some(order)
}

/// The shape with the fewest axes from which both shapes can be formed by merging neighbouring axes. `None` if the
/// element counts differ or no such shape exists.
fn common_axes(a: &Shape, b: &Shape) -> Option<Shape> {
    if a.elements() != b.elements() || a.elements() == 0 {
        return None;
    }
    // Number of elements inside each axis, from the innermost outwards.
    let mut sizes: SmallVec<[usize; 12]> = SmallVec::from_iter([1]);
    for shape in [a, b] {
        let mut size = 1;
        sizes.extend(shape.iter().rev().map(|n| {
            size *= n;
            size
        }));
    }
    sizes.sort_unstable();
    sizes.dedup();
    let whole = sizes.windows(2).all(|pair| pair[1].is_multiple_of(pair[0]));
    whole.then(|| Shape::new(sizes.windows(2).rev().map(|pair| pair[1] / pair[0])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_share_axes_where_their_cuts_nest() {
        let common = |a: &[usize], b: &[usize]| common_axes(&Shape::from(a), &Shape::from(b));
        assert_eq!(common(&[24], &[6, 4]), Some(Shape::from([6, 4])));
        assert_eq!(common(&[6, 4], &[2, 12]), Some(Shape::from([2, 3, 4])));
        assert_eq!(common(&[4, 6], &[6, 4]), None);
        assert_eq!(common(&[4], &[5]), None);
        assert_eq!(common(&[], &[1]), Some(Shape::default()));
    }
}
