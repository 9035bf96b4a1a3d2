//! Functions of device memory: virtual memory, and `cuMemAlloc`.

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;

use super::raw::Buffer;
use super::start::checked;
use super::streams::{IpcHandle, handle};
use super::{OutPtr, export, number, put};
use crate::client::{ask, ask_with, descriptor};
use crate::codes;
use crate::wire::{Call, Value};

/// `CUmemLocation`: kind 1 is a device.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    fn device(self) -> Result<u32, u32> {
        if self.kind == 1 { checked(self.id) } else { Err(codes::INVALID_VALUE) }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Access {
    location: Location,
    flags: c_int,
}

/// Returns the device in the properties of an allocation. Returns an error unless the memory is pinned,
/// because no other kind is supported.
fn device(properties: Option<&Properties>) -> Result<(u32, c_int), u32> {
    let properties = properties.filter(|asked| asked.kind == 1).ok_or(codes::INVALID_VALUE)?;
    Ok((properties.location.device()?, properties.handle_types))
}

export! {
    fn cuMemGetAllocationGranularity(to: OutPtr<'_, usize>, properties: Option<&Properties>, option: c_int) {
        device(properties)?;
        if !matches!(option, 0 | 1) {
            return Err(codes::INVALID_VALUE);
        }
        put(to, 2 << 20)
    }

    fn cuMemAddressReserve(to: OutPtr<'_, u64>, size: usize, alignment: usize, at: u64, flags: u64) {
        if flags != 0 {
            return Err(codes::INVALID_VALUE);
        }
        put(to, number(ask(Call::Reserve { size: size as u64, alignment: alignment as u64, at })?)?)
    }

    fn cuMemAddressFree(address: u64, size: usize) {
        ask(Call::AddressFree { address, size: size as u64 }).map(|_| ())
    }

    fn cuMemCreate(to: OutPtr<'_, u64>, size: usize, properties: Option<&Properties>, flags: u64) {
        let (device, handle_types) = device(properties)?;
        let to = to.filter(|_| flags == 0).ok_or(codes::INVALID_VALUE)?;
        to.write(number(ask(Call::Create { size: size as u64, device, handle_types })?)?);
        Ok(())
    }

    fn cuMemRelease(handle: u64) {
        ask(Call::Release { handle }).map(|_| ())
    }

    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        if flags != 0 {
            return Err(codes::INVALID_VALUE);
        }
        ask(Call::Map { address, size: size as u64, offset: offset as u64, handle }).map(|_| ())
    }

    fn cuMemUnmap(address: u64, size: usize) {
        ask(Call::Unmap { address, size: size as u64 }).map(|_| ())
    }

    fn cuMemSetAccess(address: u64, size: usize, access: Buffer, count: usize) {
        for i in 0..count {
            let one = access.item::<Access>(i)?;
            let (device, flags) = (one.location.device()?, one.flags);
            ask(Call::SetAccess { address, size: size as u64, device, flags })?;
        }
        if count == 0 { Err(codes::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuMemGetAccess(flags: OutPtr<'_, u64>, location: Option<&Location>, address: u64) {
        let device = location.ok_or(codes::INVALID_VALUE)?.device()?;
        put(flags, number(ask(Call::GetAccess { address, device })?)?)
    }

    fn cuMemExportToShareableHandle(to: OutPtr<'_, c_int>, handle: u64, kind: c_int, flags: u64) {
        let to = to.filter(|_| kind == 1 && flags == 0).ok_or(codes::INVALID_VALUE)?;
        let (_, Some(file)) = ask(Call::Export { handle })? else { return Err(codes::UNKNOWN) };
        to.write(file.into_raw_fd());
        Ok(())
    }

    fn cuMemImportFromShareableHandle(to: OutPtr<'_, u64>, shareable: Buffer, kind: c_int) {
        let to = to.filter(|_| kind == 1).ok_or(codes::INVALID_VALUE)?;
        // The argument is the descriptor itself, passed as an address.
        let file = c_int::try_from(shareable.address()).map_err(|_| codes::INVALID_VALUE)?;
        let file = descriptor(file).ok_or(codes::INVALID_VALUE)?;
        to.write(number(ask_with(Call::Import, Some(file))?)?);
        Ok(())
    }

    fn cuMemRetainAllocationHandle(to: OutPtr<'_, u64>, address: Buffer) {
        put(to, number(ask(Call::RetainHandle { address: address.address() })?)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(to: OutPtr<'_, Properties>, handle: u64) {
        let Value::Pair(device, types) = ask(Call::HandleProperties { handle })?.0 else {
            return Err(codes::UNKNOWN);
        };
        let number = |value| c_int::try_from(value).unwrap_or(0);
        let location = Location { kind: 1, id: number(device) };
        let win32 = std::ptr::null_mut();
        put(to, Properties { kind: 1, handle_types: number(types), location, win32, flags: [0; 8] })
    }

    fn cuMemAlloc_v2(to: OutPtr<'_, u64>, size: usize) {
        let to = to.ok_or(codes::INVALID_VALUE)?;
        to.write(number(ask(Call::Alloc { size: size as u64, managed: false })?)?);
        Ok(())
    }

    fn cuMemFree_v2(address: u64) {
        ask(Call::Free { address }).map(|_| ())
    }

    fn cuMemAllocManaged(to: OutPtr<'_, u64>, size: usize, flags: u32) {
        // `CU_MEM_ATTACH_GLOBAL` or `…_HOST`.
        let to = to.filter(|_| matches!(flags, 1 | 2)).ok_or(codes::INVALID_VALUE)?;
        to.write(number(ask(Call::Alloc { size: size as u64, managed: true })?)?);
        Ok(())
    }

    fn cuMemAllocAsync(to: OutPtr<'_, u64>, size: usize, stream: u64) {
        let to = to.ok_or(codes::INVALID_VALUE)?;
        to.write(number(ask(Call::AllocAsync { size: size as u64, stream })?)?);
        Ok(())
    }

    fn cuMemFreeAsync(address: u64, stream: u64) {
        ask(Call::FreeAsync { address, stream }).map(|_| ())
    }

    fn cuMemGetAddressRange_v2(base: OutPtr<'_, u64>, size: OutPtr<'_, usize>, address: u64) {
        let Value::Pair(start, bytes) = ask(Call::AddressRange { address })?.0 else {
            return Err(codes::UNKNOWN);
        };
        if let Some(base) = base {
            base.write(start);
        }
        if let Some(size) = size {
            size.write(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        Ok(())
    }

    fn cuIpcGetMemHandle(to: OutPtr<'_, [u8; 64]>, address: u64) {
        put(to, handle(ask(Call::IpcGetMem { address })?.0)?)
    }

    fn cuIpcOpenMemHandle_v2(to: OutPtr<'_, u64>, handle: IpcHandle, flags: u32) {
        // `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS` is required.
        let to = to.filter(|_| flags == 1).ok_or(codes::INVALID_VALUE)?;
        to.write(number(ask(Call::IpcOpenMem { handle: handle.0.to_vec() })?)?);
        Ok(())
    }

    fn cuIpcCloseMemHandle(address: u64) {
        ask(Call::IpcCloseMem { address }).map(|_| ())
    }

    fn mp_sim_piece(address: u64, bytes: u64) {
        ask(Call::Piece { address, bytes }).map(|_| ())
    }

    fn mp_sim_shared(address: u64, bytes: u64) {
        ask(Call::Shared { address, bytes }).map(|_| ())
    }
}
