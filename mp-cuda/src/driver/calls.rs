//! Driver calls of this crate, a function each: results become errors, and values written by pointer are
//! returned.
//!
//! # Safety
//! Unsafe, because the driver's functions are. Sound, because
//! - a call writes to a variable of the calling function, which has the type that the call writes;
//! - the driver checks numbers of devices, and returns an error;
//! - functions that take objects of the driver are `unsafe`: their callers guarantee that the objects are
//!   alive.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use super::api::DriverHandle;
use super::load::Driver;
use crate::codes;
use crate::error::Result;

/// `CU_STREAM_NON_BLOCKING`: the stream and the default stream don't wait for each other.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// Makes a call whose last argument is the address for a value of this type.
macro_rules! value {
    ($driver:ident.$name:ident($($argument:expr),*), $initial:expr) => {{
        let mut value = $initial;
        let arguments = ($($argument,)*);
        let code = value!(@call $driver.$name, arguments, &raw mut value, $($argument),*);
        $driver.check(stringify!($name), code)?;
        value
    }};
    (@call $driver:ident.$name:ident, $arguments:ident, $value:expr,) => {{
        let () = $arguments;
        // SAFETY: it writes a value of this type to the variable.
        unsafe { ($driver.api.$name)($value) }
    }};
    (@call $driver:ident.$name:ident, $arguments:ident, $value:expr, $one:expr) => {{
        let (one,) = $arguments;
        // SAFETY: it writes a value of this type to the variable; a wrong number of a device is an error.
        unsafe { ($driver.api.$name)($value, one) }
    }};
    (@call $driver:ident.$name:ident, $arguments:ident, $value:expr, $one:expr, $two:expr) => {{
        let (one, two) = $arguments;
        // SAFETY: likewise.
        unsafe { ($driver.api.$name)($value, one, two) }
    }};
}

impl Driver {
    /// Converts a result to an error.
    pub(crate) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        if code == codes::SUCCESS { Ok(()) } else { Err(self.api.error(call, code)) }
    }

    pub(crate) fn device_count(&self) -> Result<u32> {
        let count: c_int = value!(self.cuDeviceGetCount(), 0);
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Returns the driver's number of a device, by its index among the devices that this process sees.
    pub(crate) fn device_get(&self, ordinal: u32) -> Result<c_int> {
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        Ok(value!(self.cuDeviceGet(ordinal), 0))
    }

    pub(crate) fn device_name(&self, device: c_int) -> Result<String> {
        let mut bytes = [0_u8; 256];
        let length = c_int::try_from(bytes.len() - 1).unwrap_or(0);
        let to = bytes.as_mut_ptr().cast::<c_char>();
        // SAFETY: it writes at most `length` bytes to an array that has one more.
        self.check("cuDeviceGetName", unsafe { (self.api.cuDeviceGetName)(to, length, device) })?;
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Returns the identity of a device. A MIG instance has its own, if the driver can report it.
    pub(crate) fn device_uuid(&self, device: c_int) -> Result<[u8; 16]> {
        let (name, function) = match (self.api.cuDeviceGetUuid_v2, self.api.cuDeviceGetUuid) {
            (Some(function), _) => ("cuDeviceGetUuid_v2", function),
            (None, old) => ("cuDeviceGetUuid", self.optional("cuDeviceGetUuid", old)?),
        };
        let mut uuid = [0; 16];
        // SAFETY: it writes 16 bytes to an array of 16.
        self.check(name, unsafe { function(&raw mut uuid, device) })?;
        Ok(uuid)
    }

    pub(crate) fn total_memory(&self, device: c_int) -> Result<u64> {
        Ok(value!(self.cuDeviceTotalMem_v2(device), 0_usize) as u64)
    }

    pub(crate) fn attribute(&self, attribute: c_int, device: c_int) -> Result<i32> {
        Ok(value!(self.cuDeviceGetAttribute(attribute, device), 0))
    }

    pub(crate) fn can_access_peer(&self, device: c_int, peer: c_int) -> Result<bool> {
        Ok(value!(self.cuDeviceCanAccessPeer(device, peer), 0) != 0)
    }

    /// Retains the device's primary context, which lives until it was released as often.
    pub(crate) fn retain_primary(&self, device: c_int) -> Result<DriverHandle> {
        Ok(value!(self.cuDevicePrimaryCtxRetain(device), DriverHandle::NULL))
    }

    /// # Safety
    /// Each call matches a call of [`retain_primary`](Self::retain_primary), whose context is not used any
    /// more.
    pub(crate) unsafe fn release_primary(&self, device: c_int) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuDevicePrimaryCtxRelease_v2", unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(device) })
    }

    pub(crate) fn current(&self) -> Result<DriverHandle> {
        Ok(value!(self.cuCtxGetCurrent(), DriverHandle::NULL))
    }

    /// # Safety
    /// The context is alive until it is popped.
    pub(crate) unsafe fn push(&self, context: DriverHandle) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuCtxPushCurrent_v2", unsafe { (self.api.cuCtxPushCurrent_v2)(context) })
    }

    /// Pops the current context, and makes the previous one current.
    pub(crate) fn pop(&self) -> Result<DriverHandle> {
        Ok(value!(self.cuCtxPopCurrent_v2(), DriverHandle::NULL))
    }

    /// Returns the device of the current context.
    pub(crate) fn current_device(&self) -> Result<c_int> {
        Ok(value!(self.cuCtxGetDevice(), 0))
    }

    /// Returns the free and the total bytes of the current context's device.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: it writes two numbers to variables of this function.
        let code = unsafe { (self.api.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo_v2", code)?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn stream_create(&self) -> Result<DriverHandle> {
        let mut stream = DriverHandle::NULL;
        // SAFETY: it writes a pointer to a variable of this function.
        let code = unsafe { (self.api.cuStreamCreate)(&raw mut stream, NON_BLOCKING) };
        self.check("cuStreamCreate", code)?;
        Ok(stream)
    }

    /// # Safety
    /// The stream is alive, and is not used any more.
    pub(crate) unsafe fn stream_destroy(&self, stream: DriverHandle) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuStreamDestroy_v2", unsafe { (self.api.cuStreamDestroy_v2)(stream) })
    }

    /// Returns `true` if all work of the stream has run.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn stream_is_complete(&self, stream: DriverHandle) -> Result<bool> {
        // SAFETY: the caller's.
        match self.beside_captures(|| unsafe { (self.api.cuStreamQuery)(stream) }) {
            codes::NOT_READY => Ok(false),
            code => self.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn stream_synchronize(&self, stream: DriverHandle) -> Result<()> {
        // SAFETY: the caller's.
        let code = self.beside_captures(|| unsafe { (self.api.cuStreamSynchronize)(stream) });
        self.check("cuStreamSynchronize", code)
    }

    /// Makes a call that would invalidate captures in the mode `GLOBAL`, also captures of other libraries and
    /// threads. The call is made in the relaxed mode, because this crate's calls are not part of a capture.
    pub(crate) fn beside_captures(&self, call: impl FnOnce() -> u32) -> u32 {
        let Some(exchange) = self.api.cuThreadExchangeStreamCaptureMode else { return call() };
        let mut mode = RELAXED;
        // SAFETY: it reads and writes a variable of this function.
        let is_set = unsafe { exchange(&raw mut mode) } == codes::SUCCESS;
        let code = call();
        if is_set {
            // SAFETY: likewise; it is what the thread had before.
            _ = unsafe { exchange(&raw mut mode) };
        }
        code
    }

    /// Returns `true` if the stream's work is being captured into a graph, instead of run.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn stream_is_capturing(&self, stream: DriverHandle) -> Result<bool> {
        let mut status: c_int = 0;
        // SAFETY: the stream is the caller's; the number is written to a variable of this function.
        let code = unsafe { (self.api.cuStreamIsCapturing)(stream, &raw mut status) };
        self.check("cuStreamIsCapturing", code)?;
        Ok(status != 0)
    }

    /// Returns the context of a stream.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn stream_context(&self, stream: DriverHandle) -> Result<DriverHandle> {
        let mut context = DriverHandle::NULL;
        // SAFETY: the stream is the caller's; the pointer is written to a variable of this function.
        let code = unsafe { (self.api.cuStreamGetCtx)(stream, &raw mut context) };
        self.check("cuStreamGetCtx", code)?;
        Ok(context)
    }
}
