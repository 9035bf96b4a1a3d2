//! Driver calls of this crate. Each call is one function, which converts the result to an error and returns
//! the value that the driver wrote.
//!
//! # Safety
//! Unsafe, because the driver's functions are. Sound, because
//! - a call writes to a variable of the calling function, which has the type that the call writes;
//! - the driver checks numbers of devices, and returns an error;
//! - functions that take objects of the driver are `unsafe`: their callers guarantee that the objects are
//!   alive, and that the ranges of memory are valid;
//! - the driver finds addresses in its tables and does not dereference them: an unknown address is an error;
//! - streams call only functions of this crate, which take their argument as a number.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use super::api::{DriverHandle, IpcHandle};
use super::load::Driver;
use crate::codes;
use crate::error::Result;

/// `CU_STREAM_NON_BLOCKING`: the stream and the default stream don't wait for each other.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`: for all contexts, with addresses for
/// devices.
const PORTABLE_MAPPED: u32 = 3;
/// `CU_STREAM_WAIT_VALUE_GEQ`. The comparison is cyclic: the driver tests the sign of the difference.
const AT_LEAST: u32 = 0;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which is required.
const LAZY_PEER_ACCESS: u32 = 1;

/// Function that a stream calls: `CUhostFn`. It must not call the driver.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

/// Attribute of an address (`CUpointer_attribute`).
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum PointerAttribute {
    MemoryType = 2,
    DevicePointer = 3,
    IsManaged = 8,
    Ordinal = 9,
    IsLegacyCapable = 10,
    HandleTypes = 14,
    Pool = 17,
    MappingSize = 18,
    MappingBase = 19,
}

/// Calls a function of the driver that writes one value, and returns that value. The closure's parameter is
/// the address to write to.
macro_rules! value {
    ($initial:expr, |$to:ident| $driver:ident.$name:ident($($argument:expr),*)) => {{
        let mut value = $initial;
        let $to = &raw mut value;
        // SAFETY: the call writes a value of this type to the variable. The driver checks numbers, names and
        // addresses; callers guarantee that objects are alive.
        let code = unsafe { ($driver.api.$name)($($argument),*) };
        $driver.check(stringify!($name), code)?;
        value
    }};
}

/// Calls a function that old drivers lack. Returns an error if this driver lacks it.
macro_rules! optional_call {
    ($driver:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        let function = $driver.optional(stringify!($name), $driver.api.$name)?;
        // SAFETY: the call writes to variables of the caller, which have the right types; handles, streams
        // and addresses are the driver's.
        let code = unsafe { function($($argument),*) };
        $driver.check(stringify!($name), code)
    }};
}
pub(crate) use {optional_call, value};

impl Driver {
    /// Returns an error unless the result is [`SUCCESS`](codes::SUCCESS).
    pub(crate) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        if code == codes::SUCCESS { Ok(()) } else { Err(self.api.error(call, code)) }
    }

    pub(crate) fn device_count(&self) -> Result<u32> {
        Ok(u32::try_from(value!(0, |count| self.cuDeviceGetCount(count))).unwrap_or(0))
    }

    /// Returns the driver's number of a device, by its index among the devices that this process sees.
    pub(crate) fn device_get(&self, ordinal: u32) -> Result<c_int> {
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        Ok(value!(0, |device| self.cuDeviceGet(device, ordinal)))
    }

    pub(crate) fn device_name(&self, device: c_int) -> Result<String> {
        let mut bytes = [0_u8; 256];
        let length = c_int::try_from(bytes.len() - 1).unwrap_or(0);
        let to = bytes.as_mut_ptr().cast::<c_char>();
        // SAFETY: the call writes at most `length` bytes to an array with one byte more.
        self.check("cuDeviceGetName", unsafe { (self.api.cuDeviceGetName)(to, length, device) })?;
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Returns the identity of a device. Returns the identity of a MIG instance instead of its GPU, if the
    /// driver can report it.
    pub(crate) fn device_uuid(&self, device: c_int) -> Result<[u8; 16]> {
        let (name, function) = match (self.api.cuDeviceGetUuid_v2, self.api.cuDeviceGetUuid) {
            (Some(function), _) => ("cuDeviceGetUuid_v2", function),
            (None, old) => ("cuDeviceGetUuid", self.optional("cuDeviceGetUuid", old)?),
        };
        let mut uuid = [0; 16];
        // SAFETY: the call writes 16 bytes to an array of 16.
        self.check(name, unsafe { function(&raw mut uuid, device) })?;
        Ok(uuid)
    }

    pub(crate) fn total_memory(&self, device: c_int) -> Result<u64> {
        Ok(value!(0, |bytes| self.cuDeviceTotalMem_v2(bytes, device)) as u64)
    }

    pub(crate) fn attribute(&self, attribute: c_int, device: c_int) -> Result<i32> {
        Ok(value!(0, |value| self.cuDeviceGetAttribute(value, attribute, device)))
    }

    pub(crate) fn can_access_peer(&self, device: c_int, peer: c_int) -> Result<bool> {
        Ok(value!(0, |can| self.cuDeviceCanAccessPeer(can, device, peer)) != 0)
    }

    /// Retains the device's primary context, which lives until each retain has been released.
    pub(crate) fn retain_primary(&self, device: c_int) -> Result<DriverHandle> {
        Ok(value!(DriverHandle::NULL, |context| self.cuDevicePrimaryCtxRetain(context, device)))
    }

    /// Releases a retained primary context.
    ///
    /// # Safety
    /// Each call matches a call of [`retain_primary`](Self::retain_primary), whose context is no longer used.
    pub(crate) unsafe fn release_primary(&self, device: c_int) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("cuDevicePrimaryCtxRelease_v2", unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(device) })
    }

    pub(crate) fn current(&self) -> Result<DriverHandle> {
        Ok(value!(DriverHandle::NULL, |context| self.cuCtxGetCurrent(context)))
    }

    /// Makes a context current for this thread, until it is popped.
    ///
    /// # Safety
    /// The context is alive until it is popped.
    pub(crate) unsafe fn push(&self, context: DriverHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("cuCtxPushCurrent_v2", unsafe { (self.api.cuCtxPushCurrent_v2)(context) })
    }

    /// Pops the current context, and makes the previous one current.
    pub(crate) fn pop(&self) -> Result<DriverHandle> {
        Ok(value!(DriverHandle::NULL, |context| self.cuCtxPopCurrent_v2(context)))
    }

    /// Returns the device of the current context.
    pub(crate) fn current_device(&self) -> Result<c_int> {
        Ok(value!(0, |device| self.cuCtxGetDevice(device)))
    }

    /// Returns the free and the total bytes of the current context's device.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the call writes two numbers to variables of this function.
        let code = unsafe { (self.api.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo_v2", code)?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn stream_create(&self) -> Result<DriverHandle> {
        Ok(value!(DriverHandle::NULL, |stream| self.cuStreamCreate(stream, NON_BLOCKING)))
    }

    /// Destroys a stream. Its remaining work still runs.
    ///
    /// # Safety
    /// The stream is alive, and is no longer used.
    pub(crate) unsafe fn stream_destroy(&self, stream: DriverHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("cuStreamDestroy_v2", unsafe { (self.api.cuStreamDestroy_v2)(stream) })
    }

    /// Returns `true` if all work of the stream has run.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn stream_is_complete(&self, stream: DriverHandle) -> Result<bool> {
        // SAFETY: guaranteed by the caller.
        match self.in_relaxed_mode(|| unsafe { (self.api.cuStreamQuery)(stream) }) {
            codes::NOT_READY => Ok(false),
            code => self.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Blocks until all work of the stream has run.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn stream_synchronize(&self, stream: DriverHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let code = self.in_relaxed_mode(|| unsafe { (self.api.cuStreamSynchronize)(stream) });
        self.check("cuStreamSynchronize", code)
    }

    /// Runs `call` in the relaxed capture mode. In the mode `GLOBAL`, the call would invalidate captures of
    /// this and other threads, and of other libraries. Calls of this crate are not part of a capture.
    pub(crate) fn in_relaxed_mode(&self, call: impl FnOnce() -> u32) -> u32 {
        let Some(exchange) = self.api.cuThreadExchangeStreamCaptureMode else { return call() };
        let mut mode = RELAXED;
        // SAFETY: the call reads and writes a variable of this function.
        let is_set = unsafe { exchange(&raw mut mode) } == codes::SUCCESS;
        let code = call();
        if is_set {
            // SAFETY: likewise; the value is the thread's previous mode.
            _ = unsafe { exchange(&raw mut mode) };
        }
        code
    }

    /// Returns `true` if the stream's work is being captured into a graph, instead of run.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn stream_is_capturing(&self, stream: DriverHandle) -> Result<bool> {
        Ok(value!(0, |status| self.cuStreamIsCapturing(stream, status)) != 0)
    }

    /// Returns the context of a stream.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn stream_context(&self, stream: DriverHandle) -> Result<DriverHandle> {
        Ok(value!(DriverHandle::NULL, |context| self.cuStreamGetCtx(stream, context)))
    }
}

/// Words that streams write and wait for, functions that they call, and registered memory of the host.
impl Driver {
    /// Returns `true` if streams can call functions.
    pub(crate) fn has_host_calls(&self) -> bool {
        self.api.cuLaunchHostFunc.is_some()
    }

    /// Returns `true` if streams can write words and wait for them.
    pub(crate) fn has_stream_words(&self) -> bool {
        self.api.cuStreamWriteValue64_v2.is_some() && self.api.cuStreamWaitValue64_v2.is_some()
    }

    /// Submits a host function to a stream, which calls it with this number after all earlier work has run.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn launch_host(
        &self,
        stream: DriverHandle,
        function: HostFunction,
        number: u64,
    ) -> Result<()> {
        let number = std::ptr::without_provenance_mut(number as usize);
        optional_call!(self.cuLaunchHostFunc(stream, function, number))
    }

    /// Submits the write of a word to a stream. The write happens after all earlier work has run and its
    /// results are visible to all readers of the word.
    ///
    /// # Safety
    /// The stream is alive. The address is a device address of a word that stays registered until the write
    /// has run.
    pub(crate) unsafe fn stream_write(&self, stream: DriverHandle, address: u64, value: u64) -> Result<()> {
        // The flag 0 is a fence for the whole system before the write.
        optional_call!(self.cuStreamWriteValue64_v2(stream, address, value, 0))
    }

    /// Submits a wait to a stream: later work runs after the word is at least `value`.
    ///
    /// # Safety
    /// The stream is alive. The address is a device address of a word that stays registered until the wait
    /// has ended.
    pub(crate) unsafe fn stream_wait(&self, stream: DriverHandle, address: u64, value: u64) -> Result<()> {
        optional_call!(self.cuStreamWaitValue64_v2(stream, address, value, AT_LEAST))
    }

    /// Registers memory of this process with the driver, so that devices can access it. Registering memory
    /// twice is not an error.
    ///
    /// # Safety
    /// The memory stays mapped until the process ends.
    pub(crate) unsafe fn host_register(&self, address: *mut c_void, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let register = || unsafe { (self.api.cuMemHostRegister_v2)(address, bytes, PORTABLE_MAPPED) };
        match self.in_relaxed_mode(register) {
            codes::HOST_MEMORY_ALREADY_REGISTERED => Ok(()),
            code => self.check("cuMemHostRegister_v2", code),
        }
    }

    /// Returns the address of registered memory for the current context's device.
    pub(crate) fn host_device_address(&self, address: *mut c_void) -> Result<u64> {
        // The driver returns an error for memory that isn't registered.
        Ok(value!(0, |device| self.cuMemHostGetDevicePointer_v2(device, address, 0)))
    }
}

/// Attributes of addresses, and legacy handles of memory.
impl Driver {
    /// Returns an attribute of an address, or `None` if the address or the attribute is unknown to the
    /// driver.
    pub(crate) fn pointer(&self, attribute: PointerAttribute, address: u64) -> Result<Option<u64>> {
        // Some attributes are a byte, some a word, some an address.
        let mut value = 0_u64;
        let to = (&raw mut value).cast();
        // SAFETY: the call writes at most eight bytes to a variable of eight, which was zero.
        match unsafe { (self.api.cuPointerGetAttribute)(to, attribute as c_int, address) } {
            codes::INVALID_VALUE => Ok(None),
            code => self.check("cuPointerGetAttribute", code).map(|()| Some(value)),
        }
    }

    /// Returns the address and the bytes of the allocation that contains an address.
    pub(crate) fn address_range(&self, address: u64) -> Result<(u64, u64)> {
        let (mut base, mut size) = (0_u64, 0_usize);
        // SAFETY: the call writes an address and a size to variables of this function.
        let code = unsafe { (self.api.cuMemGetAddressRange_v2)(&raw mut base, &raw mut size, address) };
        self.check("cuMemGetAddressRange_v2", code)?;
        Ok((base, size as u64))
    }

    /// Returns the handle by which other processes open an allocation, by the allocation's address.
    pub(crate) fn ipc_handle(&self, base: u64) -> Result<IpcHandle> {
        Ok(value!(IpcHandle([0; 64]), |handle| self.cuIpcGetMemHandle(handle, base)))
    }

    /// Opens memory of another process for the current context's device. Returns its address.
    pub(crate) fn ipc_open(&self, handle: IpcHandle) -> Result<u64> {
        Ok(value!(0, |address| self.cuIpcOpenMemHandle_v2(address, handle, LAZY_PEER_ACCESS)))
    }

    /// Closes memory that [`ipc_open`](Self::ipc_open) has opened. Each opening is closed once.
    ///
    /// # Safety
    /// No stream accesses the memory.
    pub(crate) unsafe fn ipc_close(&self, address: u64) -> Result<()> {
        // SAFETY: guaranteed by the caller; an address that was not opened is an error.
        self.check("cuIpcCloseMemHandle", unsafe { (self.api.cuIpcCloseMemHandle)(address) })
    }
}

/// Copies and filling.
impl Driver {
    /// Copies bytes to a device, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive. The device may write that many bytes at `to`. The bytes do not change until the
    /// copy has run.
    pub(crate) unsafe fn copy_to_device(&self, to: u64, from: &[u8], stream: DriverHandle) -> Result<()> {
        let at = from.as_ptr().cast();
        // SAFETY: the slice is as long as the copy; the rest is the caller's.
        let code = unsafe { (self.api.cuMemcpyHtoDAsync_v2)(to, at, from.len(), stream) };
        self.check("cuMemcpyHtoDAsync_v2", code)
    }

    /// Copies bytes from a device to the host, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive. The device may read that many bytes at `from`. The bytes are not read before the
    /// copy has run.
    pub(crate) unsafe fn copy_to_host(&self, to: &mut [u8], from: u64, stream: DriverHandle) -> Result<()> {
        let at = to.as_mut_ptr().cast();
        // SAFETY: the slice is as long as the copy; the rest is the caller's.
        let code = unsafe { (self.api.cuMemcpyDtoHAsync_v2)(at, from, to.len(), stream) };
        self.check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Copies bytes between devices, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive. Its device may read that many bytes at `from`, and write them at `to`. The two
    /// ranges do not overlap.
    pub(crate) unsafe fn copy_on_device(
        &self,
        to: u64,
        from: u64,
        bytes: usize,
        stream: DriverHandle,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { (self.api.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream) };
        self.check("cuMemcpyDtoDAsync_v2", code)
    }

    /// Fills memory with a byte, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive, and its device may write that many bytes at `to`.
    pub(crate) unsafe fn fill_bytes(
        &self,
        to: u64,
        value: u8,
        count: usize,
        stream: DriverHandle,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("cuMemsetD8Async", unsafe { (self.api.cuMemsetD8Async)(to, value, count, stream) })
    }

    /// Fills memory with a pattern of four bytes, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive, and its device may write that many words at `to`, a multiple of four.
    pub(crate) unsafe fn fill_words(
        &self,
        to: u64,
        value: u32,
        count: usize,
        stream: DriverHandle,
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("cuMemsetD32Async", unsafe { (self.api.cuMemsetD32Async)(to, value, count, stream) })
    }

    /// Declares a piece of memory to the CUDA simulator, which reports work that exceeds the piece. If
    /// `shared` is set, the simulator accepts overlapping accesses. Does nothing for other drivers.
    #[cfg(feature = "inject")]
    pub(crate) fn declare(&self, address: u64, bytes: u64, shared: bool) {
        let hooks = [self.api.mp_sim_piece, self.api.mp_sim_shared.filter(|_| shared)];
        for hook in hooks.into_iter().flatten() {
            // SAFETY: the simulator's own; it records two numbers.
            unsafe { hook(address, bytes) };
        }
    }
}
