//! Checks that no barrier sits in control flow that invocations of a workgroup may leave apart. Naga does not check this yet, and a driver
//! that meets such a barrier may hang.
//!
//! A value is uniform if all invocations of a workgroup have the same: constants, the parameter block, workgroup numbers, and what is computed
//! from these. A local variable is uniform while everything ever stored to it is, in uniform control flow. The analysis is
//! conservative: what it does not know is not uniform.

use naga::{AddressSpace, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module, Statement};

/// The first barrier in non-uniform control flow, as a sentence.
pub(crate) fn check(module: &Module) -> Result<(), String> {
    for entry in &module.entry_points {
        let uniform: Vec<bool> =
            entry.function.arguments.iter().map(|a| is_uniform_builtin(a.binding.as_ref())).collect();
        Checker { module, name: &entry.name, function: &entry.function, arguments: &uniform, varying: Vec::new() }
            .run(true)?;
    }
    Ok(())
}

/// Whether all invocations of a workgroup see the same built-in value.
fn is_uniform_builtin(binding: Option<&Binding>) -> bool {
    matches!(
        binding,
        Some(Binding::BuiltIn(
            BuiltIn::WorkGroupId | BuiltIn::NumWorkGroups | BuiltIn::WorkGroupSize | BuiltIn::NumSubgroups
        ))
    )
}

/// One function under check.
struct Checker<'m> {
    module: &'m Module,
    name: &'m str,
    function: &'m Function,
    /// Which arguments are uniform.
    arguments: &'m [bool],
    /// Locals that something non-uniform was stored to, at any point.
    varying: Vec<Handle<LocalVariable>>,
}

/// How control may leave a block other than at its end, in non-uniform flow.
#[derive(Clone, Copy, Default)]
struct Leaves {
    /// Out of the loop or switch around, or to its next round.
    break_or_continue: bool,
    /// Out of the function.
    returns: bool,
}

impl Checker<'_> {
    /// Checks the function, entered by all invocations or not. Whether it may return early to some of them does not matter to its
    /// caller, where they meet again.
    fn run(&mut self, uniform: bool) -> Result<(), String> {
        // Stores found late make earlier loads non-uniform, so first all stores are found; each round can only add to them.
        loop {
            let before = self.varying.len();
            self.block(&self.function.body, uniform, false)?;
            if self.varying.len() == before {
                break;
            }
        }
        self.block(&self.function.body, uniform, true).map(|_| ())
    }

    /// Walks a block. With `report`, barriers in non-uniform flow are errors.
    fn block(&mut self, block: &Block, mut uniform: bool, report: bool) -> Result<Leaves, String> {
        let mut leaves = Leaves::default();
        for statement in block {
            let left = self.statement(statement, uniform, report)?;
            leaves.break_or_continue |= left.break_or_continue;
            leaves.returns |= left.returns;
            // Some invocations are gone; those that remain are not together.
            uniform &= !(left.break_or_continue || left.returns);
        }
        Ok(leaves)
    }

    fn statement(&mut self, statement: &Statement, uniform: bool, report: bool) -> Result<Leaves, String> {
        let mut leaves = Leaves::default();
        match statement {
            Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } if report && !uniform => {
                return Err(format!("a barrier of `{}` is in non-uniform control flow", self.name));
            }
            Statement::Block(block) => leaves = self.block(block, uniform, report)?,
            Statement::If { condition, accept, reject } => {
                let inside = uniform && self.is_uniform(*condition);
                for block in [accept, reject] {
                    let left = self.block(block, inside, report)?;
                    leaves.break_or_continue |= left.break_or_continue;
                    leaves.returns |= left.returns;
                }
            }
            Statement::Switch { selector, cases } => {
                let inside = uniform && self.is_uniform(*selector);
                for case in cases {
                    let left = self.block(&case.body, inside, report)?;
                    leaves.returns |= left.returns;
                    // A `continue` is not told from a `break`, which would end at the switch.
                    leaves.break_or_continue |= left.break_or_continue;
                }
            }
            Statement::Loop { body, continuing, break_if } => {
                leaves.returns = self.repeat(body, continuing, *break_if, uniform, report)?;
            }
            Statement::Break | Statement::Continue => leaves.break_or_continue = !uniform,
            Statement::Return { .. } | Statement::Kill => leaves.returns = !uniform,
            Statement::Store { pointer, value } => {
                let same = uniform && self.is_uniform(*value) && self.indices_uniform(*pointer);
                if !same && let Some(local) = self.root(*pointer) {
                    self.mark(local);
                }
            }
            Statement::Call { function, arguments, .. } => {
                let callee = &self.module.functions[*function];
                let uniform_arguments: Vec<bool> = arguments.iter().map(|&a| self.is_uniform(a)).collect();
                // What a callee may store through a pointer is not followed.
                for &argument in arguments {
                    if let Some(local) = self.root(argument) {
                        self.mark(local);
                    }
                }
                if report {
                    let name = callee.name.as_deref().unwrap_or("a function");
                    Checker {
                        module: self.module,
                        name,
                        function: callee,
                        arguments: &uniform_arguments,
                        varying: Vec::new(),
                    }
                    .run(uniform)?;
                }
            }
            _ => {}
        }
        Ok(leaves)
    }

    /// A loop. If invocations may leave it at different rounds, its later rounds are not uniform from the start. Gives whether some may return.
    fn repeat(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
        uniform: bool,
        report: bool,
    ) -> Result<bool, String> {
        let mut inside = uniform;
        loop {
            // A first walk that does not report tells whether the rounds stay together.
            let left = self.block(body, inside, false)?;
            let mut apart = left.break_or_continue || left.returns;
            let rest = self.block(continuing, inside && !apart, false)?;
            apart |= rest.break_or_continue || rest.returns;
            apart |= break_if.is_some_and(|condition| !self.is_uniform(condition));
            if inside && apart {
                inside = false;
                continue;
            }
            if report {
                self.block(body, inside, true)?;
                self.block(continuing, inside, true)?;
            }
            return Ok(left.returns || rest.returns);
        }
    }

    fn mark(&mut self, local: Handle<LocalVariable>) {
        if !self.varying.contains(&local) {
            self.varying.push(local);
        }
    }

    /// The local variable that a pointer leads into.
    fn root(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(local) => Some(local),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.root(base),
            _ => None,
        }
    }

    /// Whether the indices on the way to a place are uniform.
    fn indices_uniform(&self, pointer: Handle<Expression>) -> bool {
        match self.function.expressions[pointer] {
            Expression::Access { base, index } => self.is_uniform(index) && self.indices_uniform(base),
            Expression::AccessIndex { base, .. } => self.indices_uniform(base),
            _ => true,
        }
    }

    /// Whether all invocations of the workgroup have the same value here.
    fn is_uniform(&self, expression: Handle<Expression>) -> bool {
        let all = |handles: &[Handle<Expression>]| handles.iter().all(|&h| self.is_uniform(h));
        match &self.function.expressions[expression] {
            Expression::Literal(_) | Expression::Constant(_) | Expression::Override(_) | Expression::ZeroValue(_) => {
                true
            }
            Expression::FunctionArgument(i) => self.arguments.get(*i as usize).copied().unwrap_or(false),
            Expression::GlobalVariable(global) => {
                matches!(self.module.global_variables[*global].space, AddressSpace::Uniform | AddressSpace::Immediate)
            }
            Expression::LocalVariable(local) => {
                let initial = self.function.local_variables[*local].init;
                !self.varying.contains(local) && initial.is_none_or(|value| self.is_uniform(value))
            }
            Expression::Load { pointer } => self.is_uniform(*pointer),
            Expression::Compose { components, .. } => all(components),
            Expression::Access { base, index } => all(&[*base, *index]),
            Expression::AccessIndex { base, .. } => self.is_uniform(*base),
            Expression::Splat { value, .. } => self.is_uniform(*value),
            Expression::Swizzle { vector, .. } => self.is_uniform(*vector),
            Expression::Unary { expr, .. } | Expression::As { expr, .. } => self.is_uniform(*expr),
            Expression::Binary { left, right, .. } => all(&[*left, *right]),
            Expression::Select { condition, accept, reject } => all(&[*condition, *accept, *reject]),
            Expression::Relational { argument, .. } => self.is_uniform(*argument),
            Expression::Math { arg, arg1, arg2, arg3, .. } => {
                [Some(*arg), *arg1, *arg2, *arg3].into_iter().flatten().all(|h| self.is_uniform(h))
            }
            Expression::ArrayLength(_) | Expression::WorkGroupUniformLoadResult { .. } => true,
            Expression::CallResult(_) => self.call_is_uniform(expression),
            _ => false,
        }
    }

    /// Whether the result of a call is uniform: a function of uniform arguments that reads nothing else that varies.
    fn call_is_uniform(&self, result: Handle<Expression>) -> bool {
        fn find(block: &Block, result: Handle<Expression>) -> Option<&[Handle<Expression>]> {
            block.iter().find_map(|statement| match statement {
                Statement::Call { arguments, result: Some(r), .. } if *r == result => Some(arguments.as_slice()),
                Statement::Block(block) => find(block, result),
                Statement::If { accept, reject, .. } => find(accept, result).or_else(|| find(reject, result)),
                Statement::Switch { cases, .. } => cases.iter().find_map(|case| find(&case.body, result)),
                Statement::Loop { body, continuing, .. } => find(body, result).or_else(|| find(continuing, result)),
                _ => None,
            })
        }
        let Expression::CallResult(function) = self.function.expressions[result] else { return false };
        let Some(arguments) = find(&self.function.body, result) else { return false };
        arguments.iter().all(|&a| self.is_uniform(a)) && self.reads_only_arguments(&self.module.functions[function])
    }

    /// Whether a function's result depends on its arguments and uniform memory alone.
    fn reads_only_arguments(&self, function: &Function) -> bool {
        function.expressions.iter().all(|(_, expression)| match expression {
            Expression::GlobalVariable(global) => {
                matches!(self.module.global_variables[*global].space, AddressSpace::Uniform | AddressSpace::Immediate)
            }
            Expression::CallResult(inner) => self.reads_only_arguments(&self.module.functions[*inner]),
            Expression::AtomicResult { .. }
            | Expression::SubgroupBallotResult
            | Expression::SubgroupOperationResult { .. } => false,
            _ => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    fn checked(body: &str) -> Result<(), String> {
        let text = format!(
            "struct Params {{ n: u32, }}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
var<workgroup> shared_word: u32;
fn twice(x: u32) -> u32 {{ return x * 2u; }}
fn word(i: u32) -> u32 {{ return y[i]; }}
fn wait() {{ workgroupBarrier(); }}
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{ {body} }}"
        );
        check(&naga::front::wgsl::parse_str(&text).expect("the test's text parses"))
    }

    #[test]
    fn barriers_that_all_invocations_reach_pass() {
        for body in [
            "workgroupBarrier();",
            "if (wid.x > params.n) { return; } workgroupBarrier();",
            "for (var k = 0u; k < params.n; k += 16u) { if (lid < 3u) { y[lid] = k; } workgroupBarrier(); }",
            "for (var s = 32u; s > 0u; s = s / 2u) { if (lid < s) { shared_word = s; } workgroupBarrier(); }",
            "let a = twice(wid.x); if (a < 3u) { wait(); }",
            "var i = lid; loop { if (i >= params.n) { break; } i += 64u; } workgroupBarrier();",
            "let v = workgroupUniformLoad(&shared_word); if (v == 0u) { return; } workgroupBarrier();",
        ] {
            assert_eq!(checked(body), Ok(()), "{body}");
        }
    }

    #[test]
    fn barriers_that_some_invocations_miss_do_not() {
        for body in [
            "if (lid < 3u) { workgroupBarrier(); }",
            "if (lid >= params.n) { return; } workgroupBarrier();",
            "for (var k = lid; k < params.n; k += 64u) { workgroupBarrier(); }",
            "for (var k = 0u; k < params.n; k += 1u) { if (y[lid] == k) { break; } workgroupBarrier(); }",
            "for (var k = 0u; k < params.n; k += 1u) { workgroupBarrier(); if (lid == k) { continue; } }",
            "var a = 0u; if (lid == 3u) { a = 1u; } if (a == 0u) { workgroupBarrier(); }",
            "if (word(3u) == 0u) { workgroupBarrier(); }",
            "if (twice(lid) == 0u) { wait(); }",
            "if (lid == 0u) { let v = workgroupUniformLoad(&shared_word); y[0] = v; }",
            "for (var k = 0u; k < params.n; k += 1u) { if (lid == k) { return; } } workgroupBarrier();",
        ] {
            assert!(checked(body).is_err(), "{body}");
        }
    }
}
