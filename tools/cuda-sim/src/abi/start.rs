//! Functions of initialization, devices and contexts.

use std::ffi::{c_char, c_int};

use super::raw::Buffer;
use super::{OutPtr, export, number, put};
use crate::client::{ask, contexts, current, devices, init};
use crate::codes;
use crate::wire::{Call, DeviceInfo, Value};

/// Passes the device with this number in this process to `look`. Returns an error if the number is invalid.
fn device<T>(number: c_int, look: impl FnOnce(&DeviceInfo) -> T) -> Result<T, u32> {
    let look = |devices: &[DeviceInfo]| {
        usize::try_from(number).ok().and_then(|number| devices.get(number)).map(look)
    };
    devices(look)?.ok_or(codes::INVALID_DEVICE)
}

/// Converts a device number. Returns an error if the number is invalid.
pub(super) fn checked(number: c_int) -> Result<u32, u32> {
    device(number, |_| ())?;
    u32::try_from(number).map_err(|_| codes::INVALID_DEVICE)
}

fn text(code: u32) -> *const c_char {
    codes::name(code).map_or(std::ptr::null(), std::ffi::CStr::as_ptr)
}

fn known(text: *const c_char) -> Result<(), u32> {
    if text.is_null() { Err(codes::INVALID_VALUE) } else { Ok(()) }
}

export! {
    fn cuInit(flags: u32) {
        if flags == 0 { init() } else { Err(codes::INVALID_VALUE) }
    }

    fn cuDriverGetVersion(version: OutPtr<'_, c_int>) {
        // Version of the first device's profile. Without a session, version of the newest profile.
        let seen = devices(|devices| devices.first().map(|d| d.attribute(1000) * 1000 + d.attribute(1001)));
        put(version, seen.ok().flatten().unwrap_or(12_080))
    }

    fn cuGetErrorName(code: u32, name: OutPtr<'_, *const c_char>) {
        put(name, text(code))?;
        known(text(code))
    }

    fn cuGetErrorString(code: u32, description: OutPtr<'_, *const c_char>) {
        put(description, text(code))?;
        known(text(code))
    }

    fn cuDeviceGetCount(count: OutPtr<'_, c_int>) {
        put(count, c_int::try_from(devices(<[_]>::len)?).unwrap_or(0))
    }

    fn cuDeviceGet(to: OutPtr<'_, c_int>, ordinal: c_int) {
        checked(ordinal)?;
        put(to, ordinal)
    }

    fn cuDeviceGetName(name: Buffer, length: c_int, number: c_int) {
        let mut bytes = device(number, |device| device.name.clone().into_bytes())?;
        let length = usize::try_from(length).map_err(|_| codes::INVALID_VALUE)?;
        let room = length.checked_sub(1).ok_or(codes::INVALID_VALUE)?;
        bytes.truncate(room);
        bytes.push(0);
        name.write(&bytes)
    }

    fn cuDeviceGetUuid(uuid: OutPtr<'_, [u8; 16]>, number: c_int) {
        put(uuid, device(number, |device| device.uuid)?)
    }

    fn cuDeviceGetUuid_v2(uuid: OutPtr<'_, [u8; 16]>, number: c_int) {
        put(uuid, device(number, |device| device.uuid)?)
    }

    fn cuDeviceTotalMem_v2(bytes: OutPtr<'_, usize>, number: c_int) {
        put(bytes, usize::try_from(device(number, |device| device.bytes)?).unwrap_or(usize::MAX))
    }

    fn cuDeviceGetAttribute(value: OutPtr<'_, c_int>, attribute: c_int, number: c_int) {
        if !(1..1000).contains(&attribute) {
            return Err(codes::INVALID_VALUE);
        }
        put(value, device(number, |device| device.attribute(attribute))?)
    }

    fn cuDeviceCanAccessPeer(can: OutPtr<'_, c_int>, number: c_int, peer: c_int) {
        let (one, other) = (checked(number)?, checked(peer)?);
        let apart = device(peer, |device| device.attribute(DeviceInfo::APART))? != 0;
        put(can, c_int::from(one != other && !apart))
    }

    fn cuDevicePrimaryCtxRetain(context: OutPtr<'_, u64>, number_seen: c_int) {
        let context = context.ok_or(codes::INVALID_VALUE)?;
        context.write(number(ask(Call::PrimaryRetain { device: checked(number_seen)? })?)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(number_seen: c_int) {
        ask(Call::PrimaryRelease { device: checked(number_seen)? }).map(|_| ())
    }

    fn cuCtxGetCurrent(context: OutPtr<'_, u64>) {
        put(context, current())
    }

    fn cuCtxSetCurrent(context: u64) {
        contexts(|contexts| {
            contexts.pop();
            if context != 0 {
                contexts.push(context);
            }
        })
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        if context == 0 {
            return Err(codes::INVALID_CONTEXT);
        }
        contexts(|contexts| contexts.push(context))
    }

    fn cuCtxPopCurrent_v2(context: OutPtr<'_, u64>) {
        let popped = contexts(Vec::pop)?.ok_or(codes::INVALID_CONTEXT)?;
        if let Some(context) = context {
            context.write(popped);
        }
        Ok(())
    }

    fn cuCtxGetDevice(to: OutPtr<'_, c_int>) {
        put(to, c_int::try_from(number(ask(Call::ContextDevice)?)?).unwrap_or(0))
    }

    fn cuCtxSynchronize() {
        ask(Call::ContextSynchronize).map(|_| ())
    }

    fn cuMemGetInfo_v2(free: OutPtr<'_, usize>, total: OutPtr<'_, usize>) {
        let Value::Pair(now, all) = ask(Call::MemInfo)?.0 else { return Err(codes::UNKNOWN) };
        put(free, usize::try_from(now).unwrap_or(usize::MAX))?;
        put(total, usize::try_from(all).unwrap_or(usize::MAX))
    }
}
