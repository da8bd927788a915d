//! Checks that barriers are only in uniform control flow, which all invocations of a workgroup follow together. Naga
//! does not check this yet, and a driver may hang at a barrier that some invocations do not reach.
//!
//! A value is uniform if it is the same for all invocations of a workgroup: constants, the parameter block, read-only
//! memory at a uniform position, workgroup ids, and everything computed from these. A local variable is uniform if
//! everything ever stored to it is uniform and stored in uniform control flow. The analysis is conservative: everything
//! else counts as non-uniform. Since the text may come from users, run time is bounded: a function is walked a few
//! times for each distinct way it is called, never once per path.

use std::collections::HashSet;

use bevy::platform::collections::HashMap;
use naga::{
    AddressSpace, Binding, Block, BuiltIn, EntryPoint, Expression, Function, Handle, LocalVariable, Module, Span,
    Statement, StorageAccess, TypeInner,
};

/// A barrier that some invocations of a workgroup may not reach.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StrayBarrier {
    /// The function that contains it.
    pub function: String,
    pub span: Span,
}

impl core::fmt::Display for StrayBarrier {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a barrier of `{}` is in non-uniform control flow", self.function)
    }
}

/// Finds the first barrier in non-uniform control flow that is reachable from an entry point.
pub(crate) fn check(module: &Module, entry: &EntryPoint) -> Result<(), StrayBarrier> {
    let mut shared = Shared { module, pure: pure_functions(module), seen: HashSet::new() };
    let arguments = entry.function.arguments.iter().map(|a| is_uniform_builtin(a.binding.as_ref())).collect();
    Checker::new(&mut shared, &entry.name, &entry.function, arguments, true).run(true)
}

/// Finds the first barrier reachable from a function, assuming that not all invocations call it.
pub(crate) fn any_barrier(module: &Module, function: &Function) -> Option<StrayBarrier> {
    let mut shared = Shared { module, pure: pure_functions(module), seen: HashSet::new() };
    let arguments = vec![false; function.arguments.len()];
    let name = function.name.as_deref().unwrap_or("a function");
    Checker::new(&mut shared, name, function, arguments, false).run(false).err()
}

/// Whether a built-in value is the same for all invocations of a workgroup.
fn is_uniform_builtin(binding: Option<&Binding>) -> bool {
    matches!(
        binding,
        Some(Binding::BuiltIn(
            BuiltIn::WorkGroupId | BuiltIn::NumWorkGroups | BuiltIn::WorkGroupSize | BuiltIn::NumSubgroups
        ))
    )
}

/// Whether a read at the same position gives the same value to all invocations.
fn is_uniform_memory(space: AddressSpace) -> bool {
    match space {
        AddressSpace::Uniform | AddressSpace::Immediate => true,
        // Read-only memory.
        AddressSpace::Storage { access } => access == StorageAccess::LOAD,
        _ => false,
    }
}

/// For each function, whether its result depends only on its arguments and uniform memory. Callees come before their
/// callers.
fn pure_functions(module: &Module) -> Vec<bool> {
    let mut pure: Vec<bool> = Vec::with_capacity(module.functions.len());
    for (_, function) in module.functions.iter() {
        let all = function.expressions.iter().all(|(_, expression)| match expression {
            Expression::GlobalVariable(global) => is_uniform_memory(module.global_variables[*global].space),
            Expression::CallResult(inner) => pure.get(inner.index()).copied().unwrap_or(false),
            Expression::AtomicResult { .. }
            | Expression::SubgroupBallotResult
            | Expression::SubgroupOperationResult { .. } => false,
            _ => true,
        });
        pure.push(all);
    }
    pure
}

/// State shared by the checks of all functions.
struct Shared<'m> {
    module: &'m Module,
    pure: Vec<bool>,
    /// Calls already checked: the function, which arguments are uniform, and whether all invocations make the call.
    seen: HashSet<(Handle<Function>, Vec<bool>, bool)>,
}

/// The check of one function.
struct Checker<'m, 's> {
    shared: &'s mut Shared<'m>,
    name: &'m str,
    function: &'m Function,
    /// Which arguments are uniform.
    arguments: Vec<bool>,
    /// Whether this is the entry point. Members of its struct arguments may be built-in values.
    entry: bool,
    /// The arguments of every call, by result expression.
    calls: HashMap<Handle<Expression>, &'m [Handle<Expression>]>,
    /// Local variables to which a non-uniform value is stored anywhere.
    varying: HashSet<Handle<LocalVariable>>,
    /// Loops, by their bodies, that invocations may leave in different iterations.
    apart: HashSet<*const Block>,
    /// Whether each expression is uniform, given what is known about the local variables.
    uniform: Vec<bool>,
    /// Whether to report barriers.
    report: bool,
}

/// How non-uniform control flow may leave a block before its end.
#[derive(Clone, Copy, Default)]
struct Leaves {
    /// By leaving the enclosing loop or switch, or by continuing with the next iteration.
    break_or_continue: bool,
    /// By returning from the function.
    returns: bool,
}

impl Leaves {
    fn add(&mut self, other: Leaves) {
        self.break_or_continue |= other.break_or_continue;
        self.returns |= other.returns;
    }

    fn any(self) -> bool {
        self.break_or_continue || self.returns
    }
}

impl<'m, 's> Checker<'m, 's> {
    fn new(
        shared: &'s mut Shared<'m>,
        name: &'m str,
        function: &'m Function,
        arguments: Vec<bool>,
        entry: bool,
    ) -> Self {
        let mut calls = HashMap::default();
        collect_calls(&function.body, &mut calls);
        Self {
            shared,
            name,
            function,
            arguments,
            entry,
            calls,
            varying: HashSet::new(),
            apart: HashSet::new(),
            uniform: Vec::new(),
            report: false,
        }
    }

    /// Checks the function, called by all invocations or by some. Early returns do not affect the caller, where the
    /// invocations reconverge.
    fn run(&mut self, uniform: bool) -> Result<(), StrayBarrier> {
        // Later code can change what is known about earlier code, so barriers are only checked once nothing new is
        // found. Every round can only add facts, so this terminates.
        loop {
            let before = (self.varying.len(), self.apart.len());
            self.uniform = self.values();
            self.block(&self.function.body, uniform)?;
            if (self.varying.len(), self.apart.len()) == before {
                break;
            }
        }
        self.report = true;
        self.block(&self.function.body, uniform).map(|_| ())
    }

    /// Checks a block. `uniform` is whether all invocations enter it together.
    fn block(&mut self, block: &'m Block, mut uniform: bool) -> Result<Leaves, StrayBarrier> {
        let mut leaves = Leaves::default();
        for (statement, span) in block.span_iter() {
            let left = self.statement(statement, *span, uniform)?;
            leaves.add(left);
            // Some invocations have left the block, so the remaining control flow is not uniform.
            uniform &= !left.any();
        }
        Ok(leaves)
    }

    fn statement(&mut self, statement: &'m Statement, span: Span, uniform: bool) -> Result<Leaves, StrayBarrier> {
        let mut leaves = Leaves::default();
        match statement {
            Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } if self.report && !uniform => {
                return Err(StrayBarrier { function: self.name.to_owned(), span });
            }
            Statement::Block(block) => leaves = self.block(block, uniform)?,
            Statement::If { condition, accept, reject } => {
                let inside = uniform && self.is_uniform(*condition);
                for block in [accept, reject] {
                    leaves.add(self.block(block, inside)?);
                }
            }
            Statement::Switch { selector, cases } => {
                let inside = uniform && self.is_uniform(*selector);
                for case in cases {
                    // A `continue` is treated like a `break`, although the latter would end at the switch.
                    leaves.add(self.block(&case.body, inside)?);
                }
            }
            Statement::Loop { body, continuing, break_if } => {
                let key: *const Block = body;
                // If invocations may leave the loop in different iterations, later iterations are non-uniform from
                // their start.
                let inside = uniform && !self.apart.contains(&key);
                let mut left = self.block(body, inside)?;
                left.add(self.block(continuing, inside && !left.any())?);
                if left.any() || break_if.is_some_and(|condition| !self.is_uniform(condition)) {
                    self.apart.insert(key);
                }
                leaves.returns = left.returns;
            }
            Statement::Break | Statement::Continue => leaves.break_or_continue = !uniform,
            Statement::Return { .. } | Statement::Kill => leaves.returns = !uniform,
            Statement::Store { pointer, value } => {
                let same = uniform && self.is_uniform(*value) && self.indices_uniform(*pointer);
                if !same && let Some(local) = self.root(*pointer) {
                    self.varying.insert(local);
                }
            }
            Statement::Call { function, arguments, .. } => {
                let flags: Vec<bool> = arguments.iter().map(|&a| self.is_uniform(a)).collect();
                // Stores of the callee through a pointer are not tracked, so the variable counts as varying.
                for &argument in arguments {
                    if let Some(local) = self.root(argument) {
                        self.varying.insert(local);
                    }
                }
                if self.report && self.shared.seen.insert((*function, flags.clone(), uniform)) {
                    let callee = &self.shared.module.functions[*function];
                    let name = callee.name.as_deref().unwrap_or("a function");
                    Checker::new(self.shared, name, callee, flags, false).run(uniform)?;
                }
            }
            _ => {}
        }
        Ok(leaves)
    }

    /// The local variable that a pointer refers to.
    fn root(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(local) => Some(local),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.root(base),
            _ => None,
        }
    }

    /// Whether all indices of a pointer are uniform.
    fn indices_uniform(&self, pointer: Handle<Expression>) -> bool {
        match self.function.expressions[pointer] {
            Expression::Access { base, index } => self.is_uniform(index) && self.indices_uniform(base),
            Expression::AccessIndex { base, .. } => self.indices_uniform(base),
            _ => true,
        }
    }

    /// Whether an expression has the same value for all invocations of the workgroup.
    fn is_uniform(&self, expression: Handle<Expression>) -> bool {
        self.uniform.get(expression.index()).copied().unwrap_or(false)
    }

    /// Whether each expression is uniform. Operands come before the expressions that use them.
    fn values(&self) -> Vec<bool> {
        let mut values: Vec<bool> = Vec::with_capacity(self.function.expressions.len());
        for (handle, expression) in self.function.expressions.iter() {
            let value = self.value(handle, expression, |h| values.get(h.index()).copied().unwrap_or(false));
            values.push(value);
        }
        values
    }

    fn value(
        &self,
        handle: Handle<Expression>,
        expression: &Expression,
        known: impl Fn(Handle<Expression>) -> bool,
    ) -> bool {
        let all = |handles: &[Handle<Expression>]| handles.iter().all(|&h| known(h));
        match expression {
            Expression::Literal(_) | Expression::Constant(_) | Expression::Override(_) | Expression::ZeroValue(_) => {
                true
            }
            Expression::FunctionArgument(i) => self.arguments.get(*i as usize).copied().unwrap_or(false),
            Expression::GlobalVariable(global) => is_uniform_memory(self.shared.module.global_variables[*global].space),
            // Initial values are constants.
            Expression::LocalVariable(local) => !self.varying.contains(local),
            Expression::Load { pointer } => known(*pointer),
            Expression::Compose { components, .. } => all(components),
            Expression::Access { base, index } => all(&[*base, *index]),
            Expression::AccessIndex { base, index } => known(*base) || self.is_uniform_member(*base, *index),
            Expression::Splat { value, .. } => known(*value),
            Expression::Swizzle { vector, .. } => known(*vector),
            Expression::Unary { expr, .. } | Expression::As { expr, .. } => known(*expr),
            Expression::Binary { left, right, .. } => all(&[*left, *right]),
            Expression::Select { condition, accept, reject } => all(&[*condition, *accept, *reject]),
            Expression::Relational { argument, .. } => known(*argument),
            Expression::Math { arg, arg1, arg2, arg3, .. } => {
                [Some(*arg), *arg1, *arg2, *arg3].into_iter().flatten().all(known)
            }
            Expression::ArrayLength(_) | Expression::WorkGroupUniformLoadResult { .. } => true,
            Expression::CallResult(function) => {
                let pure = self.shared.pure.get(function.index()).copied().unwrap_or(false);
                pure && self.calls.get(&handle).is_some_and(|arguments| all(arguments))
            }
            _ => false,
        }
    }

    /// Whether a member of an entry point's argument is a uniform built-in value.
    fn is_uniform_member(&self, base: Handle<Expression>, index: u32) -> bool {
        let Expression::FunctionArgument(i) = self.function.expressions[base] else { return false };
        let Some(argument) = self.function.arguments.get(i as usize).filter(|_| self.entry) else { return false };
        match &self.shared.module.types[argument.ty].inner {
            TypeInner::Struct { members, .. } => {
                members.get(index as usize).is_some_and(|member| is_uniform_builtin(member.binding.as_ref()))
            }
            _ => false,
        }
    }
}

/// Collects the arguments of every call with a result, by result expression.
fn collect_calls<'m>(block: &'m Block, calls: &mut HashMap<Handle<Expression>, &'m [Handle<Expression>]>) {
    for statement in block {
        match statement {
            Statement::Call { arguments, result: Some(result), .. } => {
                calls.insert(*result, arguments);
            }
            Statement::Block(block) => collect_calls(block, calls),
            Statement::If { accept, reject, .. } => {
                collect_calls(accept, calls);
                collect_calls(reject, calls);
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| collect_calls(&case.body, calls)),
            Statement::Loop { body, continuing, .. } => {
                collect_calls(body, calls);
                collect_calls(continuing, calls);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{StrayBarrier, check};

    fn checked(body: &str) -> Result<(), StrayBarrier> {
        let text = format!(
            "struct Params {{ n: u32, }}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<u32>;
var<workgroup> shared_word: u32;
fn twice(x: u32) -> u32 {{ return x * 2u; }}
fn word(i: u32) -> u32 {{ return y[i]; }}
fn wait() {{ workgroupBarrier(); }}
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{ {body} }}"
        );
        let module = naga::front::wgsl::parse_str(&text).expect("the test's text parses");
        check(&module, &module.entry_points[0])
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
            "if (x[wid.x] == 0u) { workgroupBarrier(); }",
            "for (var i = 0u; i < params.n; i++) { for (var j = i; j < params.n; j++) { workgroupBarrier(); } }",
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
            "if (x[lid] == 0u) { workgroupBarrier(); }",
            "var a = 0u; loop { workgroupBarrier(); if (a > 3u) { break; } a = lid; }",
            "if (twice(lid) == 0u) { wait(); }",
            "if (lid == 0u) { let v = workgroupUniformLoad(&shared_word); y[0] = v; }",
            "for (var k = 0u; k < params.n; k += 1u) { if (lid == k) { return; } } workgroupBarrier();",
        ] {
            assert!(checked(body).is_err(), "{body}");
        }
    }

    #[test]
    fn the_place_of_the_barrier_is_known() {
        let body = "if (lid < 3u) { workgroupBarrier(); }";
        let barrier = checked(body).expect_err("some miss it");
        assert_eq!(barrier.function, "main");
        assert_eq!(barrier.span.to_range().map(|range| range.len()), Some("workgroupBarrier".len()));
    }

    #[test]
    fn texts_with_many_paths_are_checked_in_no_time() {
        // Each line would double the work of a walk over paths.
        let mut body = String::from("let a0 = lid;");
        for i in 1..60 {
            body += &format!(" let a{i} = a{0} + a{0};", i - 1);
        }
        body += " if (a59 == 0u) { workgroupBarrier(); }";
        assert!(checked(&body).is_err());
        let nested = ["for (var i = 0u; i < params.n; i++) {"; 30].concat() + "workgroupBarrier();" + &"}".repeat(30);
        assert_eq!(checked(&nested), Ok(()));
    }
}
