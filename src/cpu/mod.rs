//! The same plan on threads: one twin per kernel.
