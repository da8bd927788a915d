//! Operators that only the host computes: their results' shapes depend on values, or they are about
//! strings and tokens. Inputs that a device computed are read back.

use super::Operator;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("NonMaxSuppression"),
    Operator::new("NonZero"),
    Operator::new("StringConcat"),
    Operator::new("StringNormalizer"),
    Operator::new("StringSplit"),
    Operator::new("TfIdfVectorizer"),
    Operator::new("Unique"),
];
