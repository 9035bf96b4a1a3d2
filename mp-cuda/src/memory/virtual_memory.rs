//! Physical memory of a device: created, exported as a descriptor, imported, and mapped at addresses. Each
//! object of the driver has a Rust value, whose drop gives the object back.
//!
//! | value | meaning | calls of its drop |
//! |---|---|---|
//! | [`DeviceMemory`] | reference to physical memory of a device | `cuMemRelease` |
//! | [`MappedMemory`] | physical memory that is mapped at an address range of its own in this process | `cuMemUnmap`, `cuMemAddressFree` |
//!
//! The memory lives as long as a reference, a mapping or a descriptor of it exists in any process. So a
//! [`DeviceMemory`] is needed only until it is mapped and exported.
//!
//! # Safety
//! Unsafe, because the driver's functions are. Sound, because
//! - a call writes to a variable of the calling function, which has the type that the call writes;
//! - handles and addresses are in private fields, were returned by the driver, and are given back once, by a
//!   drop;
//! - a forked copy of the process gives nothing back, because it owns no objects of the driver;
//! - addresses of a device are invalid for the host, so no instruction of this process accesses them.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::device::Device;
use crate::driver::Driver;
use crate::driver::api::{AccessDesc, AllocationProp, Location};
use crate::driver::calls::optional_call as call;
use crate::driver::context::BoundContext;
use crate::error::Result;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const BY_DESCRIPTOR: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_AND_WRITE: c_int = 3;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const MINIMUM: c_int = 0;

/// Converts a number of bytes for the driver. The driver returns an error for a number beyond the address
/// space.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Reference to physical memory of a device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    device: Device,
    handle: u64,
    bytes: u64,
}

impl DeviceMemory {
    /// Returns the unit of device memory: each size is a multiple of it.
    pub(crate) fn granularity(device: &Device) -> Result<u64> {
        let driver = device.bind()?;
        let prop = AllocationProp::shareable(device.number());
        let mut unit = 0_usize;
        call!(driver.cuMemGetAllocationGranularity(&raw mut unit, &raw const prop, MINIMUM))?;
        Ok(unit.max(1) as u64)
    }

    /// Allocates memory of a device that can be exported. The contents are unspecified.
    pub(crate) fn create(device: &Device, bytes: u64) -> Result<Self> {
        let driver = device.bind()?;
        let prop = AllocationProp::shareable(device.number());
        let mut handle = 0;
        call!(driver.cuMemCreate(&raw mut handle, size(bytes), &raw const prop, 0))?;
        Ok(Self { device: device.clone(), handle, bytes })
    }

    /// Returns a descriptor by which other processes import the memory. The descriptor keeps the memory
    /// alive.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let driver = self.device.bind()?;
        let mut file: c_int = -1;
        let to = (&raw mut file).cast::<c_void>();
        call!(driver.cuMemExportToShareableHandle(to, self.handle, BY_DESCRIPTOR, 0))?;
        // SAFETY: the driver opened the descriptor for this function alone.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// Imports the memory to which another process's descriptor refers. The caller keeps the descriptor.
    pub(crate) fn import(device: &Device, file: BorrowedFd<'_>, bytes: u64) -> Result<Self> {
        let driver = device.bind()?;
        let mut handle = 0;
        // The number of the descriptor is passed as a pointer.
        let number = usize::try_from(file.as_raw_fd()).unwrap_or(usize::MAX);
        let from = ptr::without_provenance_mut::<c_void>(number);
        call!(driver.cuMemImportFromShareableHandle(&raw mut handle, from, BY_DESCRIPTOR))?;
        Ok(Self { device: device.clone(), handle, bytes })
    }

    /// Returns a reference to the memory that is mapped at `address` in this process. The mapping begins at
    /// the address, and has `bytes` bytes.
    pub(crate) fn mapped_at(device: &Device, address: u64, bytes: u64) -> Result<Self> {
        let driver = device.bind()?;
        let mut handle = 0;
        let at = ptr::without_provenance_mut::<c_void>(size(address));
        call!(driver.cuMemRetainAllocationHandle(&raw mut handle, at))?;
        Ok(Self { device: device.clone(), handle, bytes })
    }

    /// Maps the memory, and gives this device read and write access.
    pub(crate) fn map(&self, by: &Device) -> Result<MappedMemory> {
        let driver = by.bind()?;
        let addresses = AddressRange::reserve(by, self.bytes)?;
        call!(driver.cuMemMap(addresses.at, size(self.bytes), 0, self.handle, 0))?;
        let mapped = MappedMemory { addresses };
        mapped.allow(by)?;
        Ok(mapped)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let release = || give_back(&self.device, |driver| call!(driver.cuMemRelease(self.handle)));
        release();
    }
}

/// Reserved range of addresses.
#[derive(Debug)]
struct AddressRange {
    device: Device,
    at: u64,
    bytes: u64,
}

impl AddressRange {
    fn reserve(device: &Device, bytes: u64) -> Result<Self> {
        let driver = device.bind()?;
        let mut at = 0;
        call!(driver.cuMemAddressReserve(&raw mut at, size(bytes), 0, 0, 0))?;
        Ok(Self { device: device.clone(), at, bytes })
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        give_back(&self.device, |driver| call!(driver.cuMemAddressFree(self.at, size(self.bytes))));
    }
}

/// Memory mapped at addresses of this process. Dropping the value unmaps the memory, even if work that
/// accesses it is still running.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    addresses: AddressRange,
}

impl MappedMemory {
    /// Returns the address of the memory for devices.
    pub(crate) fn address(&self) -> u64 {
        self.addresses.at
    }

    /// Gives another device read and write access.
    pub(crate) fn allow(&self, device: &Device) -> Result<()> {
        let driver = device.bind()?;
        let location = Location { kind: ON_DEVICE, id: device.number() };
        let access = AccessDesc { location, flags: READ_AND_WRITE };
        let AddressRange { at, bytes, .. } = self.addresses;
        call!(driver.cuMemSetAccess(at, size(bytes), &raw const access, 1))
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        let AddressRange { device, at, bytes } = &self.addresses;
        let unmap = || give_back(device, |driver| call!(driver.cuMemUnmap(*at, size(*bytes))));
        unmap();
    }
}

/// Makes a call that gives an object back to the driver, unless this process is a forked copy. Ignores
/// errors, which mean that the device or the driver was lost together with its objects.
pub(super) fn give_back(device: &Device, call: impl FnOnce(&BoundContext<'_>) -> Result<()>) {
    if Driver::loaded().is_some()
        && let Ok(bound) = device.bind()
    {
        _ = call(&bound);
    }
}
