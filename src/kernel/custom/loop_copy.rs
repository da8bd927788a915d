//! Copies the body of a loop. Expressions belong to one place of a function, so a copy has its own.

use bevy::platform::collections::HashMap;
use naga::{Arena, AtomicFunction, Block, Expression, Handle, Statement, SwitchCase};

/// The expressions of a copy, by those of the original.
#[derive(Default)]
pub(super) struct Copies(HashMap<Handle<Expression>, Handle<Expression>>);

impl Copies {
    /// The copy of an expression, or the expression itself if it is outside of the loop.
    pub(super) fn of(&self, expression: Handle<Expression>) -> Handle<Expression> {
        self.0.get(&expression).copied().unwrap_or(expression)
    }

    /// Copies a block. `None` if it has statements that no copy is made of: images, barriers, subgroups, inner loops.
    pub(super) fn block(&mut self, block: &Block, expressions: &mut Arena<Expression>) -> Option<Block> {
        let mut out = Block::new();
        for (statement, span) in block.span_iter() {
            let statement = match statement {
                Statement::Emit(range) => {
                    let before = expressions.len();
                    for handle in range.clone() {
                        let copy = self.expression(&expressions[handle])?;
                        let copy = expressions.append(copy, *span);
                        self.0.insert(handle, copy);
                    }
                    Statement::Emit(expressions.range_from(before))
                }
                Statement::Block(block) => Statement::Block(self.block(block, expressions)?),
                Statement::If { condition, accept, reject } => Statement::If {
                    condition: self.of(*condition),
                    accept: self.block(accept, expressions)?,
                    reject: self.block(reject, expressions)?,
                },
                Statement::Switch { selector, cases } => {
                    let case = |case: &SwitchCase| {
                        let body = self.block(&case.body, expressions)?;
                        Some(SwitchCase { value: case.value, body, fall_through: case.fall_through })
                    };
                    let cases = cases.iter().map(case).collect::<Option<_>>()?;
                    Statement::Switch { selector: self.of(*selector), cases }
                }
                Statement::Break => Statement::Break,
                Statement::Continue => Statement::Continue,
                Statement::Return { value } => Statement::Return { value: value.map(|value| self.of(value)) },
                Statement::Store { pointer, value } => {
                    Statement::Store { pointer: self.of(*pointer), value: self.of(*value) }
                }
                Statement::Atomic { pointer, fun, value, result } => Statement::Atomic {
                    pointer: self.of(*pointer),
                    fun: match fun {
                        AtomicFunction::Exchange { compare } => {
                            AtomicFunction::Exchange { compare: compare.map(|compare| self.of(compare)) }
                        }
                        other => *other,
                    },
                    value: self.of(*value),
                    result: result.map(|result| self.result(result, expressions)),
                },
                Statement::Call { function, arguments, result } => Statement::Call {
                    function: *function,
                    arguments: arguments.iter().map(|&argument| self.of(argument)).collect(),
                    result: result.map(|result| self.result(result, expressions)),
                },
                _ => return None,
            };
            out.push(statement, *span);
        }
        Some(out)
    }

    /// Copies the expression that stands for the result of a statement.
    fn result(&mut self, result: Handle<Expression>, expressions: &mut Arena<Expression>) -> Handle<Expression> {
        let (expression, span) = (expressions[result].clone(), expressions.get_span(result));
        let copy = expressions.append(expression, span);
        self.0.insert(result, copy);
        copy
    }

    fn expression(&self, expression: &Expression) -> Option<Expression> {
        let of = |handle: Handle<Expression>| self.of(handle);
        Some(match *expression {
            Expression::Compose { ty, ref components } => {
                Expression::Compose { ty, components: components.iter().map(|&component| of(component)).collect() }
            }
            Expression::Access { base, index } => Expression::Access { base: of(base), index: of(index) },
            Expression::AccessIndex { base, index } => Expression::AccessIndex { base: of(base), index },
            Expression::Splat { size, value } => Expression::Splat { size, value: of(value) },
            Expression::Swizzle { size, vector, pattern } => Expression::Swizzle { size, vector: of(vector), pattern },
            Expression::Load { pointer } => Expression::Load { pointer: of(pointer) },
            Expression::Unary { op, expr } => Expression::Unary { op, expr: of(expr) },
            Expression::Binary { op, left, right } => Expression::Binary { op, left: of(left), right: of(right) },
            Expression::Select { condition, accept, reject } => {
                Expression::Select { condition: of(condition), accept: of(accept), reject: of(reject) }
            }
            Expression::Relational { fun, argument } => Expression::Relational { fun, argument: of(argument) },
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                Expression::Math { fun, arg: of(arg), arg1: arg1.map(of), arg2: arg2.map(of), arg3: arg3.map(of) }
            }
            Expression::As { expr, kind, convert } => Expression::As { expr: of(expr), kind, convert },
            Expression::ArrayLength(array) => Expression::ArrayLength(of(array)),
            _ => return None,
        })
    }
}
