//! Functions of copies, registered memory, queries about addresses, modules and kernels.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use super::raw::{Arguments, Buffer, Text};
use super::{OutPtr, export, number, put};
use crate::client::{Pinned, ask, ask_with, file_of, note, pin, with_registered};
use crate::codes;
use crate::wire::{Call, INLINE, Source, Value};

/// Sizes of the parameters of each kernel in bytes, by the handle of the function.
static SIZES: Mutex<Option<HashMap<u64, Vec<u32>>>> = Mutex::new(None);

/// Returns `true` if a range of this process's memory is registered, so that the device can access it.
fn is_registered(address: u64, bytes: usize) -> Result<bool, u32> {
    let end = address.checked_add(bytes as u64).ok_or(codes::INVALID_VALUE)?;
    with_registered(|all| all.iter().any(|(start, length)| *start <= address && end <= start + length))
}

fn to_device(to: u64, from: Buffer, bytes: usize, stream: u64, wait: bool) -> Result<(), u32> {
    if bytes == 0 {
        return Ok(());
    }
    let length = bytes as u64;
    let call = |from| Call::HostToDevice { to, from, bytes: length, stream, wait };
    // The driver copies unregistered memory before it returns.
    if !wait && is_registered(from.address(), bytes)? {
        return ask(call(Source::Host(from.address()))).map(|_| ());
    }
    let all = from.read(bytes)?;
    if bytes <= INLINE {
        return ask(call(Source::Inline(all))).map(|_| ());
    }
    let file = || -> std::io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("mp-cuda-sim", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(file);
        file.write_all(&all)?;
        std::io::Seek::rewind(&mut file)?;
        Ok(file.into())
    };
    let file = file().map_err(|_| codes::OUT_OF_MEMORY)?;
    ask_with(call(Source::File(length)), Some(file.as_fd())).map(|_| ())
}

fn to_host(to: Buffer, from: u64, bytes: usize, stream: u64, wait: bool) -> Result<(), u32> {
    if bytes == 0 {
        return Ok(());
    }
    if !wait && is_registered(to.address(), bytes)? {
        let host = Some(to.address());
        return ask(Call::DeviceToHost { from, bytes: bytes as u64, stream, host }).map(|_| ());
    }
    match ask(Call::DeviceToHost { from, bytes: bytes as u64, stream, host: None })? {
        (Value::Bytes(all), _) if all.len() == bytes => to.write(&all),
        (Value::File, Some(file)) => {
            let mut file = std::fs::File::from(file);
            let mut all = Vec::with_capacity(bytes);
            std::io::Seek::rewind(&mut file)
                .and_then(|()| file.read_to_end(&mut all))
                .map_err(|_| codes::UNKNOWN)?;
            if all.len() == bytes { to.write(&all) } else { Err(codes::UNKNOWN) }
        }
        _ => Err(codes::UNKNOWN),
    }
}

fn on_device(to: u64, from: u64, bytes: usize, stream: u64, wait: bool) -> Result<(), u32> {
    if bytes == 0 {
        return Ok(());
    }
    ask(Call::DeviceToDevice { to, from, bytes: bytes as u64, stream, wait }).map(|_| ())
}

fn set(to: u64, pattern: &[u8], count: usize, stream: u64, wait: bool) -> Result<(), u32> {
    if count == 0 {
        return Ok(());
    }
    ask(Call::Set { to, pattern: pattern.to_vec(), count: count as u64, stream, wait }).map(|_| ())
}

fn unregister(address: u64) -> Result<(), u32> {
    ask(Call::HostUnregister { address })?;
    with_registered(|all| all.retain(|(start, _)| *start != address))
}

export! {
    fn cuMemcpyHtoD_v2(to: u64, from: Buffer, bytes: usize) { to_device(to, from, bytes, 0, true) }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: Buffer, bytes: usize, stream: u64) {
        to_device(to, from, bytes, stream, false)
    }
    fn cuMemcpyDtoH_v2(to: Buffer, from: u64, bytes: usize) { to_host(to, from, bytes, 0, true) }
    fn cuMemcpyDtoHAsync_v2(to: Buffer, from: u64, bytes: usize, stream: u64) {
        to_host(to, from, bytes, stream, false)
    }
    // By the manual's rules of synchronisation, the host doesn't wait for copies within a device.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) { on_device(to, from, bytes, 0, false) }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        on_device(to, from, bytes, stream, false)
    }
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) { set(to, &[value], count, 0, false) }
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) {
        set(to, &[value], count, stream, false)
    }
    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) { set(to, &value.to_le_bytes(), count, 0, false) }
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) {
        set(to, &value.to_le_bytes(), count, stream, false)
    }

    fn cuMemHostRegister_v2(address: Buffer, bytes: usize, _flags: u32) {
        let (address, length) = (address.address(), bytes as u64);
        if address == 0 || bytes == 0 {
            return Err(codes::INVALID_VALUE);
        }
        let overlaps = |(start, end): (u64, u64)| address < end && start < address + length;
        if with_registered(|all| all.iter().any(|(start, length)| overlaps((*start, start + length))))? {
            return Err(codes::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let Some((file, offset)) = file_of(address, length) else {
            note(
                "only memory of a file (a memfd) that this process has open can be registered here; a driver \
                 takes any",
            );
            return Err(codes::NOT_SUPPORTED);
        };
        ask_with(Call::HostRegister { address, bytes: length, offset }, Some(file))?;
        with_registered(|all| all.push((address, length)))
    }

    fn cuMemHostUnregister(address: Buffer) { unregister(address.address()) }

    fn cuMemHostGetDevicePointer_v2(to: OutPtr<'_, u64>, address: Buffer, flags: u32) {
        if flags != 0 {
            return Err(codes::INVALID_VALUE);
        }
        put(to, number(ask(Call::HostDevicePointer { address: address.address() })?)?)
    }

    fn cuMemHostAlloc(to: OutPtr<'_, u64>, bytes: usize, _flags: u32) {
        let to = to.filter(|_| bytes > 0).ok_or(codes::INVALID_VALUE)?;
        let bytes = bytes.next_multiple_of(4096);
        let Pinned { address, file } = pin(bytes).map_err(|_| codes::OUT_OF_MEMORY)?;
        let register = Call::HostRegister { address, bytes: bytes as u64, offset: 0 };
        if let Err(code) = ask_with(register, Some(file.as_fd())) {
            Pinned::free(address);
            return Err(code);
        }
        to.write(address);
        with_registered(|all| all.push((address, bytes as u64)))
    }

    fn cuMemFreeHost(address: Buffer) {
        let address = address.address();
        unregister(address)?;
        if Pinned::free(address) { Ok(()) } else { Err(codes::INVALID_VALUE) }
    }

    fn cuPointerGetAttribute(to: Buffer, attribute: i32, address: u64) {
        let value = number(ask(Call::PointerAttribute { attribute, address })?)?;
        // 32-bit numbers, booleans, or addresses.
        match attribute {
            2 | 9 | 14 => to.write(&value.to_le_bytes()[..4]),
            8 | 10 | 13 => to.write(&value.to_le_bytes()[..1]),
            _ => to.write(&value.to_le_bytes()),
        }
    }

    fn cuModuleLoadData(module: OutPtr<'_, u64>, image: Text) {
        let module = module.ok_or(codes::INVALID_VALUE)?;
        module.write(number(ask(Call::ModuleLoad { image: image.get()? })?)?);
        Ok(())
    }

    fn cuModuleLoadDataEx(
        module: OutPtr<'_, u64>, image: Text, _options: u32, _names: Buffer, _values: Buffer
    ) {
        let module = module.ok_or(codes::INVALID_VALUE)?;
        module.write(number(ask(Call::ModuleLoad { image: image.get()? })?)?);
        Ok(())
    }

    fn cuModuleUnload(module: u64) { ask(Call::ModuleUnload { module }).map(|_| ()) }

    fn cuModuleGetFunction(function: OutPtr<'_, u64>, module: u64, name: Text) {
        let answer = ask(Call::ModuleFunction { module, name: name.get()? })?.0;
        let Value::Function { handle, sizes } = answer else { return Err(codes::UNKNOWN) };
        SIZES.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(handle, sizes);
        put(function, handle)
    }

    fn cuLaunchKernel(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        _shared_bytes: u32, stream: u64, arguments: Arguments, _extra: Buffer,
    ) {
        let sizes = {
            let sizes = SIZES.lock().unwrap_or_else(PoisonError::into_inner);
            sizes.as_ref().and_then(|sizes| sizes.get(&function)).cloned().ok_or(codes::INVALID_HANDLE)?
        };
        let arguments = arguments.read(&sizes)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        ask(Call::Launch { function, grid, block, arguments, stream }).map(|_| ())
    }
}
