//! Host functions that a program has submitted to streams (`cuLaunchHostFunc`). A thread of this library
//! calls them, like a thread of the driver, when the stream has run its earlier work.
//!
//! # Safety
//! Unsafe, because it calls functions by their addresses. Sound, because the program passed each function to
//! `cuLaunchHostFunc` for this purpose, in the same process.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::Once;

use super::ask;
use crate::wire::{Call, Value};

/// `CUhostFn`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

pub(crate) fn address(function: HostFunction) -> u64 {
    (function as *const c_void).expose_provenance() as u64
}

/// Starts the thread that calls the functions.
pub(crate) fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| _ = std::thread::Builder::new().name("cuda-host-calls".to_owned()).spawn(call_all));
}

/// Calls functions until the session has ended.
fn call_all() {
    while let Ok((Value::Pair(function, data), _)) = ask(Call::NextFunction) {
        let (Ok(function), Ok(data)) = (usize::try_from(function), usize::try_from(data)) else { return };
        let function = ptr::with_exposed_provenance::<c_void>(function);
        // SAFETY: an address of a function, which `address` returned.
        let function = unsafe { std::mem::transmute::<*const c_void, HostFunction>(function) };
        // SAFETY: the program passed the function for this purpose, with this argument.
        unsafe { function(ptr::with_exposed_provenance_mut(data)) };
    }
}
