//! Functions of the driver, with the names and types that programs call.
//!
//! The bodies are safe: outputs are references that may be null, and other pointers of callers are [`raw`]
//! types.
//!
//! # Safety
//! Unsafe, because it exports names that the linker gives to other code. Sound, because
//! - the exported names are those of the CUDA driver, which this library replaces, and hooks whose names
//!   begin with `mp_sim_`;
//! - callers keep the contract of the driver's manual: pointers are null, or valid for the documented reads
//!   and writes.
#![allow(unsafe_code)]

mod data;
mod memory;
mod raw;
mod start;
mod streams;

use std::mem::MaybeUninit;

use crate::codes;
use crate::wire::Value;

/// Output pointer that a caller passed. `None` if it is null.
type OutPtr<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes an output value to the pointer that the caller passed. Returns an error if the pointer is null.
fn put<T>(to: OutPtr<'_, T>, value: T) -> Result<(), u32> {
    to.ok_or(codes::INVALID_VALUE)?.write(value);
    Ok(())
}

/// Returns the number that the engine's answer contains.
fn number(answer: (Value, Option<std::os::fd::OwnedFd>)) -> Result<u64, u32> {
    match answer.0 {
        Value::Number(number) => Ok(number),
        _ => Err(codes::UNKNOWN),
    }
}

/// Defines functions of the driver. The body of a function returns `Ok`, or the code of an error.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> u32 {
            crate::client::run(stringify!($name), || $body)
        }
    )*};
}
use export;
