//! Attributes steps to models.

use bevy::ecs::entity::Entity;
use bevy::platform::collections::HashMap;

use super::Plan;
use crate::ir::Source;

/// The model that each step of a plan works for: the owner of a tensor it accesses, else that of the step that produced
/// its input.
pub(crate) fn step_models(plan: &Plan, owners: &[Option<Entity>]) -> Vec<Option<Entity>> {
    let mut makers: HashMap<u32, Option<Entity>> = HashMap::default();
    let mut models = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let operands = || step.reads().chain(&step.outputs);
        let owner = operands().find_map(|operand| match operand.source {
            Source::Slot(slot) => owners.get(slot as usize).copied().flatten(),
            _ => None,
        });
        let model = owner.or_else(|| {
            operands().find_map(|operand| match operand.source {
                Source::Scratch(value) => makers.get(&value).copied().flatten(),
                _ => None,
            })
        });
        for output in &step.outputs {
            if let Source::Scratch(value) = output.source {
                makers.insert(value, model);
            }
        }
        models.push(model);
    }
    models
}
