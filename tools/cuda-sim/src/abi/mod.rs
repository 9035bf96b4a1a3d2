//! The driver's functions, under the names and with the types that programs call.
//!
//! Bodies are safe: what a function writes to is a reference that may be null, and what else callers point to is a
//! [`raw`] type.
//!
//! # Safety
//! Unsafe, because each name is one that the linker gives to other code; sound, because
//! - they are the names of the CUDA driver, for which this library stands in, and of hooks that begin with `mp_sim_`;
//! - callers keep the contract that the driver's manual states: pointers are null, or valid for what is read and written there.
#![allow(unsafe_code)]

mod data;
mod memory;
mod raw;
mod start;
mod streams;

use std::mem::MaybeUninit;

use crate::codes;
use crate::wire::Value;

/// Where a call writes a value; `None` is a null pointer.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a value that a call returns by a pointer.
fn put<T>(to: Out<'_, T>, value: T) -> Result<(), u32> {
    to.ok_or(codes::INVALID_VALUE)?.write(value);
    Ok(())
}

/// The number that the engine has answered.
fn number(answer: (Value, Option<std::os::fd::OwnedFd>)) -> Result<u64, u32> {
    match answer.0 {
        Value::Number(number) => Ok(number),
        _ => Err(codes::UNKNOWN),
    }
}

/// Functions of the driver: a result is `Ok`, or the code of an error.
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
