//! What callers can get wrong: numbers at their limits, code that panics, what safe code must not be able to do. (Errors, which
//! change limits of their process: `errors.rs`, a program of its own.)

mod forged;
mod numbers;
mod panics;
mod soundness;
mod times;
