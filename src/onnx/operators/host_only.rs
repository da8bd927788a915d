//! Operators that only the host computes: their results' shapes depend on values, or they are about strings. Inputs that a
//! device computed are read back.

use super::Operator;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("NonMaxSuppression"),
    Operator::new("NonZero"),
    Operator::new("StringConcat"),
    Operator::new("Unique"),
];
