//! Bounds the loops of custom kernels.
//!
//! A loop without an end would occupy the device until the driver resets it, and the app would lose its device. So each
//! thread of a kernel that is not trusted counts the iterations of its loops. When the bound is reached, the thread
//! leaves the loop, sets the second word of the launch's fault counters, and leaves every further loop at once. Threads
//! that start later see the word and do not begin.
//!
//! Loops with barriers have a counter of their own. All threads of a workgroup run such loops alike, so they all leave
//! them in the same iteration and no barrier is left with a part of the threads.
//!
//! Mesa's llvmpipe silently ends all loops of a thread after 65,535 iterations in total. There, innermost loops are
//! unrolled so that the driver sees fewer iterations, and the iterations that it does see are bounded below its limit.

use naga::{
    AddressSpace, Arena, ArraySize, BinaryOperator, Block, Expression, Function, GlobalVariable, Handle, Literal,
    LocalVariable, Module, ResourceBinding, Scalar, Span, Statement, StorageAccess, SwitchCase, Type, TypeInner,
};

use super::code::validator;
use super::loop_copy::Copies;
use crate::kernel::LoopBound;

/// Iterations after which llvmpipe ends the loops of a thread, less those of the generated code around a kernel.
const DRIVER_TURNS: u32 = 64_000;

/// Maximum number of copies of a loop's body.
const MOST_COPIES: usize = 64;

/// Maximum number of statements of all copies.
const MOST_STATEMENTS: usize = 1024;

/// What a function or a block does, itself or in the functions it calls.
#[derive(Clone, Copy, Default)]
pub(super) struct Facts {
    pub loops: bool,
    barriers: bool,
}

impl Facts {
    fn or(self, other: Self) -> Self {
        Self { loops: self.loops || other.loops, barriers: self.barriers || other.barriers }
    }

    fn of_block(block: &Block, functions: &[Self]) -> Self {
        block.iter().fold(Self::default(), |facts, statement| facts.or(Self::of_statement(statement, functions)))
    }

    fn of_statement(statement: &Statement, functions: &[Self]) -> Self {
        let of = |block: &Block| Self::of_block(block, functions);
        match statement {
            Statement::Block(block) => of(block),
            Statement::If { accept, reject, .. } => of(accept).or(of(reject)),
            Statement::Switch { cases, .. } => {
                cases.iter().fold(Self::default(), |facts, case| facts.or(of(&case.body)))
            }
            Statement::Loop { body, continuing, .. } => Self { loops: true, ..of(body).or(of(continuing)) },
            Statement::Call { function, .. } => functions.get(function.index()).copied().unwrap_or_default(),
            Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } => {
                Self { loops: false, barriers: true }
            }
            _ => Self::default(),
        }
    }

    /// The facts of all functions. Functions come after those they call.
    pub(super) fn of_functions(module: &Module) -> Vec<Self> {
        let mut facts = Vec::with_capacity(module.functions.len());
        for (_, function) in module.functions.iter() {
            facts.push(Self::of_block(&function.body, &facts));
        }
        facts
    }
}

/// Whether a function, or one that it calls, has a loop.
pub(super) fn has_loops(module: &Module, function: &Function) -> bool {
    Facts::of_block(&function.body, &Facts::of_functions(module)).loops
}

/// Parses a text and bounds its loops. `binding` is the number of the fault counters. `short` tells whether the driver
/// ends loops early, as llvmpipe does.
pub(crate) fn bounded_module(wgsl: &str, bound: LoopBound, binding: u32, short: bool) -> Result<Module, String> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| error.message().to_owned())?;
    if short {
        // An iteration that is used in the continuing block, for example, cannot be copied.
        let unrolled = bound_loops(module.clone(), bound, binding, Form::Unrolled);
        if validator(None).validate(&unrolled).is_ok() {
            return Ok(unrolled);
        }
        return Ok(bound_loops(module, bound, binding, Form::Short));
    }
    Ok(bound_loops(module, bound, binding, Form::Plain))
}

/// How loops are rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    /// For a driver that ends loops early.
    Short,
    /// For a driver that ends loops early, with several copies of each innermost body.
    Unrolled,
}

/// The variables that count.
#[derive(Clone, Copy)]
struct Counters {
    faults: Handle<GlobalVariable>,
    /// Iterations left to a thread.
    turns: Handle<GlobalVariable>,
    /// Iterations left in loops with barriers, the same in all threads of a workgroup.
    uniform: Handle<GlobalVariable>,
    /// Iterations left before the driver ends the thread's loops.
    driver: Handle<GlobalVariable>,
}

fn bound_loops(mut module: Module, bound: LoopBound, binding: u32, form: Form) -> Module {
    let facts = Facts::of_functions(&module);
    let entries = module.entry_points.iter().map(|entry| Facts::of_block(&entry.function.body, &facts));
    let barriers = entries.fold(Facts::default(), Facts::or).barriers;
    let number = module.types.insert(Type { name: None, inner: TypeInner::Scalar(Scalar::U32) }, Span::UNDEFINED);
    // With barriers, each of the two kinds of loops gets half of what the driver allows.
    let driver = if barriers { DRIVER_TURNS / 2 } else { DRIVER_TURNS };
    let uniform = if form == Form::Plain { bound.turns } else { bound.turns.min(driver) };
    let counters = Counters {
        faults: fault_counters(&mut module, binding),
        turns: counter(&mut module, number, "tensor_turns", bound.turns),
        uniform: counter(&mut module, number, "tensor_uniform_turns", uniform),
        driver: counter(&mut module, number, "tensor_driver_turns", driver),
    };
    for (_, function) in module.functions.iter_mut() {
        if bound.whole || function.name.as_deref().is_some_and(is_user_function) {
            Rewriter::new(function, &facts, counters, number, form).run();
        }
    }
    for entry in &mut module.entry_points {
        let mut rewriter = Rewriter::new(&mut entry.function, &facts, counters, number, form);
        if bound.whole {
            rewriter.run();
        }
        rewriter.begin();
    }
    module
}

/// Whether a function of a generated text is a user's: those have a prefix from a hash.
fn is_user_function(name: &str) -> bool {
    let hash = name.strip_prefix('u').and_then(|rest| rest.split_once('_')).map(|(hash, _)| hash);
    hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The fault counters of the launch: those that the text declares, or new ones.
fn fault_counters(module: &mut Module, binding: u32) -> Handle<GlobalVariable> {
    let binding = Some(ResourceBinding { group: 0, binding });
    if let Some((handle, _)) = module.global_variables.iter().find(|(_, variable)| variable.binding == binding) {
        return handle;
    }
    let mut insert = |inner: TypeInner| module.types.insert(Type { name: None, inner }, Span::UNDEFINED);
    let base = insert(TypeInner::Atomic(Scalar::U32));
    let ty = insert(TypeInner::Array { base, size: ArraySize::Dynamic, stride: 4 });
    let access = StorageAccess::LOAD | StorageAccess::STORE;
    let variable = GlobalVariable {
        name: Some("tensor_faults".to_owned()),
        space: AddressSpace::Storage { access },
        binding,
        ty,
        init: None,
        memory_decorations: Default::default(),
    };
    module.global_variables.append(variable, Span::UNDEFINED)
}

/// A counter of each thread.
fn counter(module: &mut Module, ty: Handle<Type>, name: &str, start: u32) -> Handle<GlobalVariable> {
    let init = module.global_expressions.append(Expression::Literal(Literal::U32(start)), Span::UNDEFINED);
    let variable = GlobalVariable {
        name: Some(name.to_owned()),
        space: AddressSpace::Private,
        binding: None,
        ty,
        init: Some(init),
        memory_decorations: Default::default(),
    };
    module.global_variables.append(variable, Span::UNDEFINED)
}

/// One iteration of a loop.
struct Iteration {
    body: Block,
    continuing: Block,
    break_if: Option<Handle<Expression>>,
}

/// Values of the variable that tells how an unrolled iteration has ended.
const CONTINUED: u32 = 1;
const BROKEN: u32 = 2;

/// Rewrites the loops of one function.
struct Rewriter<'a> {
    expressions: &'a mut Arena<Expression>,
    variables: &'a mut Arena<LocalVariable>,
    body: &'a mut Block,
    facts: &'a [Facts],
    counters: Counters,
    number: Handle<Type>,
    form: Form,
}

impl<'a> Rewriter<'a> {
    fn new(
        function: &'a mut Function,
        facts: &'a [Facts],
        counters: Counters,
        number: Handle<Type>,
        form: Form,
    ) -> Self {
        let Function { expressions, local_variables: variables, body, .. } = function;
        Self { expressions, variables, body, facts, counters, number, form }
    }

    fn run(&mut self) {
        let body = core::mem::take(self.body);
        *self.body = self.block(body);
    }

    /// At the start of an entry point: a thread does not begin its loops if an earlier one was ended.
    fn begin(&mut self) {
        let mut start = Block::new();
        let word = self.fault_word(&mut start);
        let [zero, turns] = [self.literal(0), self.global(self.counters.turns)];
        let ended = self.emit(&mut start, |expressions| {
            let count = expressions.append(Expression::Load { pointer: word }, Span::UNDEFINED);
            let compare = Expression::Binary { op: BinaryOperator::NotEqual, left: count, right: zero };
            expressions.append(compare, Span::UNDEFINED)
        });
        let accept = block_of([Statement::Store { pointer: turns, value: zero }]);
        push(&mut start, Statement::If { condition: ended, accept, reject: Block::new() });
        append(&mut start, core::mem::take(self.body));
        *self.body = start;
    }

    fn block(&mut self, block: Block) -> Block {
        let mut out = Block::new();
        for (statement, span) in block.span_into_iter() {
            let statement = match statement {
                Statement::Block(block) => Statement::Block(self.block(block)),
                Statement::If { condition, accept, reject } => {
                    Statement::If { condition, accept: self.block(accept), reject: self.block(reject) }
                }
                Statement::Switch { selector, cases } => {
                    let case = |case: SwitchCase| SwitchCase { body: self.block(case.body), ..case };
                    Statement::Switch { selector, cases: cases.into_iter().map(case).collect() }
                }
                Statement::Loop { body, continuing, break_if } => {
                    let inner = Facts::of_block(&body, self.facts).or(Facts::of_block(&continuing, self.facts));
                    let copies = MOST_STATEMENTS / (size(&body) + size(&continuing)).max(1);
                    let copies = copies.min(MOST_COPIES);
                    let (body, continuing) = (self.block(body), self.block(continuing));
                    let innermost = !inner.loops && !inner.barriers;
                    let unrolls = self.form == Form::Unrolled && innermost && copies > 1;
                    let copies = if unrolls { self.copies(&body, &continuing, break_if, copies) } else { None };
                    match copies {
                        Some(copies) => self.unrolled(copies),
                        None => Statement::Loop { body: self.counted(body, inner.barriers), continuing, break_if },
                    }
                }
                other => other,
            };
            out.push(statement, span);
        }
        out
    }

    /// The body of a loop, with its iterations counted.
    fn counted(&mut self, body: Block, barriers: bool) -> Block {
        let mut out = Block::new();
        let leave = || block_of([Statement::Break]);
        if barriers {
            self.tick(&mut out, self.counters.uniform, leave(), Block::new());
        } else {
            self.tick(&mut out, self.counters.turns, leave(), Block::new());
            if self.form != Form::Plain {
                self.tick(&mut out, self.counters.driver, leave(), Block::new());
            }
        }
        append(&mut out, body);
        out
    }

    /// An iteration and copies of it, `count` in total. `None` if it cannot be copied.
    fn copies(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
        count: usize,
    ) -> Option<Vec<Iteration>> {
        let mut all = vec![Iteration { body: body.clone(), continuing: continuing.clone(), break_if }];
        for _ in 1..count {
            let mut copies = Copies::default();
            let body = copies.block(body, self.expressions)?;
            let continuing = copies.block(continuing, self.expressions)?;
            all.push(Iteration { body, continuing, break_if: break_if.map(|condition| copies.of(condition)) });
        }
        Some(all)
    }

    /// Several iterations as one.
    fn unrolled(&mut self, iterations: Vec<Iteration>) -> Statement {
        let variable = LocalVariable { name: Some("tensor_left".to_owned()), ty: self.number, init: None };
        let variable = self.variables.append(variable, Span::UNDEFINED);
        let flag = self.expressions.append(Expression::LocalVariable(variable), Span::UNDEFINED);
        let mut all = Block::new();
        self.tick(&mut all, self.counters.driver, block_of([Statement::Break]), Block::new());
        for Iteration { body, continuing: mut end, break_if } in iterations {
            let mut copy = Block::new();
            self.set(&mut copy, flag, 0);
            let mut over = Block::new();
            self.set(&mut over, flag, BROKEN);
            let (iteration, _) = self.without_jumps(body, flag);
            self.tick(&mut copy, self.counters.turns, over, iteration);
            if let Some(condition) = break_if {
                let mut accept = Block::new();
                self.set(&mut accept, flag, BROKEN);
                push(&mut end, Statement::If { condition, accept, reject: Block::new() });
            }
            if !end.is_empty() {
                let condition = self.compare(&mut copy, flag, BinaryOperator::NotEqual, BROKEN);
                push(&mut copy, Statement::If { condition, accept: end, reject: Block::new() });
            }
            push(&mut all, Statement::Block(copy));
            let condition = self.compare(&mut all, flag, BinaryOperator::Equal, BROKEN);
            let accept = block_of([Statement::Break]);
            push(&mut all, Statement::If { condition, accept, reject: Block::new() });
        }
        Statement::Loop { body: all, continuing: Block::new(), break_if: None }
    }

    /// Replaces jumps out of an iteration: they set `flag`, and what follows them runs only if it is not set. Returns
    /// whether there were any.
    fn without_jumps(&mut self, block: Block, flag: Handle<Expression>) -> (Block, bool) {
        let mut out = Block::new();
        let mut statements = block.span_into_iter();
        while let Some((statement, span)) = statements.next() {
            let (statement, jumps) = match statement {
                Statement::Break | Statement::Continue => {
                    let value = if matches!(statement, Statement::Break) { BROKEN } else { CONTINUED };
                    self.set(&mut out, flag, value);
                    // What follows is unreachable.
                    return (out, true);
                }
                Statement::Block(block) => {
                    let (block, jumps) = self.without_jumps(block, flag);
                    (Statement::Block(block), jumps)
                }
                Statement::If { condition, accept, reject } => {
                    let (accept, first) = self.without_jumps(accept, flag);
                    let (reject, second) = self.without_jumps(reject, flag);
                    (Statement::If { condition, accept, reject }, first || second)
                }
                Statement::Switch { selector, cases } => self.switch_without_continue(selector, cases, flag),
                other => (other, false),
            };
            out.push(statement, span);
            if jumps {
                let mut rest = Block::new();
                statements.by_ref().for_each(|(statement, span)| rest.push(statement, span));
                let (accept, _) = self.without_jumps(rest, flag);
                if !accept.is_empty() {
                    let condition = self.compare(&mut out, flag, BinaryOperator::Equal, 0);
                    push(&mut out, Statement::If { condition, accept, reject: Block::new() });
                }
                return (out, true);
            }
        }
        (out, false)
    }

    /// A switch whose cases leave it instead of continuing the loop around it.
    fn switch_without_continue(
        &mut self,
        selector: Handle<Expression>,
        cases: Vec<SwitchCase>,
        flag: Handle<Expression>,
    ) -> (Statement, bool) {
        let mut jumps = false;
        let case = |case: SwitchCase| {
            let (body, continues) = self.case_without_continue(case.body, flag);
            jumps |= continues;
            SwitchCase { body, ..case }
        };
        let cases = cases.into_iter().map(case).collect();
        (Statement::Switch { selector, cases }, jumps)
    }

    fn case_without_continue(&mut self, block: Block, flag: Handle<Expression>) -> (Block, bool) {
        let (mut out, mut all) = (Block::new(), false);
        for (statement, span) in block.span_into_iter() {
            let (statement, jumps) = match statement {
                Statement::Continue => {
                    self.set(&mut out, flag, CONTINUED);
                    (Statement::Break, true)
                }
                Statement::Block(block) => {
                    let (block, jumps) = self.case_without_continue(block, flag);
                    (Statement::Block(block), jumps)
                }
                Statement::If { condition, accept, reject } => {
                    let (accept, first) = self.case_without_continue(accept, flag);
                    let (reject, second) = self.case_without_continue(reject, flag);
                    (Statement::If { condition, accept, reject }, first || second)
                }
                Statement::Switch { selector, cases } => {
                    let (switch, jumps) = self.switch_without_continue(selector, cases, flag);
                    out.push(switch, span);
                    if jumps {
                        let condition = self.compare(&mut out, flag, BinaryOperator::NotEqual, 0);
                        let accept = block_of([Statement::Break]);
                        push(&mut out, Statement::If { condition, accept, reject: Block::new() });
                    }
                    all |= jumps;
                    continue;
                }
                other => (other, false),
            };
            all |= jumps;
            out.push(statement, span);
        }
        (out, all)
    }

    /// Counts an iteration: at zero, marks the fault and runs `over`; otherwise runs `under`.
    fn tick(&mut self, to: &mut Block, counter: Handle<GlobalVariable>, over: Block, under: Block) {
        let [zero, one, pointer] = [self.literal(0), self.literal(1), self.global(counter)];
        let left = self.emit(to, |expressions| expressions.append(Expression::Load { pointer }, Span::UNDEFINED));
        let condition = self.emit(to, |expressions| {
            let compare = Expression::Binary { op: BinaryOperator::Equal, left, right: zero };
            expressions.append(compare, Span::UNDEFINED)
        });
        let mut accept = Block::new();
        let word = self.fault_word(&mut accept);
        push(&mut accept, Statement::Store { pointer: word, value: one });
        append(&mut accept, over);
        let mut reject = Block::new();
        let value = self.emit(&mut reject, |expressions| {
            let less = Expression::Binary { op: BinaryOperator::Subtract, left, right: one };
            expressions.append(less, Span::UNDEFINED)
        });
        push(&mut reject, Statement::Store { pointer, value });
        append(&mut reject, under);
        push(to, Statement::If { condition, accept, reject });
    }

    /// The word that tells that a thread was ended.
    fn fault_word(&mut self, to: &mut Block) -> Handle<Expression> {
        let base = self.global(self.counters.faults);
        self.emit(to, |expressions| expressions.append(Expression::AccessIndex { base, index: 1 }, Span::UNDEFINED))
    }

    fn set(&mut self, to: &mut Block, pointer: Handle<Expression>, value: u32) {
        let value = self.literal(value);
        push(to, Statement::Store { pointer, value });
    }

    fn compare(
        &mut self,
        to: &mut Block,
        pointer: Handle<Expression>,
        op: BinaryOperator,
        value: u32,
    ) -> Handle<Expression> {
        let right = self.literal(value);
        self.emit(to, |expressions| {
            let left = expressions.append(Expression::Load { pointer }, Span::UNDEFINED);
            expressions.append(Expression::Binary { op, left, right }, Span::UNDEFINED)
        })
    }

    fn literal(&mut self, value: u32) -> Handle<Expression> {
        self.expressions.append(Expression::Literal(Literal::U32(value)), Span::UNDEFINED)
    }

    fn global(&mut self, variable: Handle<GlobalVariable>) -> Handle<Expression> {
        self.expressions.append(Expression::GlobalVariable(variable), Span::UNDEFINED)
    }

    /// Appends expressions, and the statement that evaluates them.
    fn emit(
        &mut self,
        to: &mut Block,
        append: impl FnOnce(&mut Arena<Expression>) -> Handle<Expression>,
    ) -> Handle<Expression> {
        let before = self.expressions.len();
        let last = append(self.expressions);
        push(to, Statement::Emit(self.expressions.range_from(before)));
        last
    }
}

fn push(block: &mut Block, statement: Statement) {
    block.push(statement, Span::UNDEFINED);
}

fn append(block: &mut Block, more: Block) {
    more.span_into_iter().for_each(|(statement, span)| block.push(statement, span));
}

fn block_of<const N: usize>(statements: [Statement; N]) -> Block {
    let mut block = Block::new();
    statements.into_iter().for_each(|statement| push(&mut block, statement));
    block
}

/// Number of statements, with those inside of others.
fn size(block: &Block) -> usize {
    let of = |statement: &Statement| match statement {
        Statement::Block(block) => size(block),
        Statement::If { accept, reject, .. } => size(accept) + size(reject),
        Statement::Switch { cases, .. } => cases.iter().map(|case| size(&case.body)).sum(),
        Statement::Loop { body, continuing, .. } => size(body) + size(continuing),
        Statement::Emit(range) => range.clone().count(),
        _ => 0,
    };
    block.iter().map(|statement| 1 + of(statement)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPS: &str = "
        @group(0) @binding(1) var<storage, read_write> y: array<u32>;
        var<workgroup> shared_sum: u32;
        fn count(n: u32) -> u32 {
            var sum = 0u;
            for (var i = 0u; i < n; i++) {
                if (i % 3u == 0u) { continue; }
                switch (i % 4u) {
                    case 0u: { sum += 1u; }
                    case 1u: { if (i > 100u) { continue; } sum += 2u; }
                    default: { switch (i % 5u) { case 2u: { continue; } default: { sum += 3u; } } }
                }
                if (sum > 1000000u) { break; }
                while (sum > 5000u) { sum -= 17u; if (sum == 4999u) { return sum; } }
            }
            loop { sum += 1u; continuing { sum += 2u; break if sum > 10u; } }
            return sum;
        }
        @compute @workgroup_size(4)
        fn main(@builtin(local_invocation_index) lane: u32) {
            for (var round = 0u; round < 4u; round++) {
                if (lane == round) { shared_sum += count(lane); }
                workgroupBarrier();
            }
            loop { let step = y[0]; if (y[1] == 0u) { break; } continuing { y[1] = step; } }
            y[lane] = shared_sum;
        }";

    #[test]
    fn every_form_of_every_loop_is_valid() {
        for (short, whole) in [(false, true), (true, true), (true, false)] {
            let bound = LoopBound { turns: 1000, whole };
            let module = bounded_module(LOOPS, bound, 2, short).expect("parsed");
            if let Err(error) = validator(None).validate(&module) {
                panic!("short {short}, whole {whole}: {}", error.emit_to_string(LOOPS));
            }
        }
        let module = naga::front::wgsl::parse_str(LOOPS).expect("parsed");
        assert!(has_loops(&module, &module.entry_points[0].function));
        assert!(is_user_function("u0123456789abcdef_count") && !is_user_function("update_count"));
    }
}
