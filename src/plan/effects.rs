//! The effects of a plan on the storages it accesses.

use super::Plan;
use crate::ir::{Operand, Source};

/// The effect of a plan on one storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Whether the plan writes any of it.
    pub writes: bool,
    /// Whether the plan overwrites all of it before reading it, so that the previous content does not matter.
    pub replaces: bool,
    /// The host data that is the entire content afterwards.
    pub host: Option<u32>,
}

/// The effects of a plan on storages with the given numbers of elements.
pub(crate) fn effects(plan: &Plan, elements: &[usize]) -> Vec<Effect> {
    let mut effects = vec![Effect::default(); elements.len()];
    let mut read = vec![false; elements.len()];
    let whole = |operand: &Operand, slot: u32| {
        operand.layout.is_contiguous()
            && operand.layout.offset == 0
            && operand.layout.elements() == elements[slot as usize]
    };
    for upload in &plan.uploads {
        if let Source::Slot(slot) = upload.to.source {
            let effect = &mut effects[slot as usize];
            let whole = whole(&upload.to, slot);
            effect.replaces |= whole;
            effect.host = whole.then_some(upload.host);
            effect.writes = true;
        }
    }
    for step in &plan.steps {
        for input in step.reads() {
            if let Source::Slot(slot) = input.source {
                read[slot as usize] = true;
            }
        }
        for output in &step.outputs {
            if let Source::Slot(slot) = output.source {
                let effect = &mut effects[slot as usize];
                let all = step.kernel.spec().writes_all() && whole(output, slot);
                effect.replaces |= all && !read[slot as usize];
                (effect.writes, effect.host) = (true, None);
            }
        }
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{BinaryOp, DType, Layout, Shape};
    use crate::plan::{PlanLimits, lower};
    use crate::record::Part;
    use crate::tensor::{Initial, Storage};

    const LIMITS: PlanLimits =
        PlanLimits { buffers: 8, alignment: 4, binding: usize::MAX, passes: false, fuse: true, chain: 0 };

    #[test]
    fn whole_and_partial_writes_and_reads_before_them_are_told_apart() {
        let shape = Shape::from([2, 2]);
        let whole = Layout::contiguous(shape.clone());
        let storage = || Storage::new(DType::F32, 4, Initial::Zeros);
        let mut part = Part::default();
        let slots = [storage(), storage(), storage(), storage()].map(|storage| part.slot(&storage));
        // 0: whole host data. 1: one row of it. 2: read, then written. 3: written from another storage.
        let data = part.host([1, 2, 3, 4].into(), shape.clone(), DType::F32);
        part.store(data, slots[0], whole.clone());
        let row = part.host([1, 2].into(), Shape::from([1, 2]), DType::F32);
        part.store(row, slots[1], whole.slice(0, 1, 1, 1));
        let load = part.push(
            crate::ir::Op::Load { slot: slots[2], layout: whole.clone() },
            &[],
            shape.clone(),
            DType::F32,
            &[],
        );
        let sum = part.binary(BinaryOp::Add, load, load);
        part.store(sum, slots[2], whole.clone());
        part.store(sum, slots[3], whole.clone());
        let plan = lower::plan(&part.graph, &[4; 4], LIMITS);
        let effects = effects(&plan, &[4; 4]);
        assert_eq!(effects[0], Effect { writes: true, replaces: true, host: Some(0) });
        assert_eq!((effects[1].writes, effects[1].replaces, effects[1].host), (true, false, None));
        assert_eq!((effects[2].writes, effects[2].replaces, effects[2].host), (true, false, None));
        assert_eq!((effects[3].writes, effects[3].host), (true, None));
    }
}
