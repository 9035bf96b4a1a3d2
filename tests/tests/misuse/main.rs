//! Misuse by callers: numbers at their limits, code that panics, attempts at unsoundness. (Errors that
//! require changed process limits: `errors.rs`, a separate program.)

mod forged;
mod numbers;
mod panics;
mod soundness;
mod times;
