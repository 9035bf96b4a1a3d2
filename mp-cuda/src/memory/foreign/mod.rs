//! Selects the way in which other processes open memory that another library of this process has allocated.
//!
//! | attributes of the address, as reported by the driver | how the memory is shared |
//! |---|---|
//! | capable of legacy handles (`cuMemAlloc`) | by a handle and an offset, as long as this process lives |
//! | mapped by `cuMemMap`, created for descriptors | by a descriptor, like memory that this library allocated |
//! | memory of a pool (`cuMemAllocAsync`), managed memory, memory of the host, memory without a handle, or memory in several mappings | by a copy |
//!
//! Memory of a pool is not exported, because the driver limits its importers: a process that imports one
//! pointer twice unmaps it with the first free, and importers have to free before the exporter.

pub(super) mod owners;

use crate::codes;
use crate::device::Device;
use crate::driver::calls::PointerAttribute;
use crate::driver::context::BoundContext;
use crate::error::{Error, Result};
use owners::ForeignRange;

/// Way in which memory of another library is shared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SharePlan {
    /// Other processes open the memory itself, which begins at byte `begins` of `range`.
    Open { range: ForeignRange, begins: u64 },
    /// The memory at address `from` is copied, for the reason `why`.
    Copy { from: u64, why: &'static str },
}

impl SharePlan {
    /// Returns `true` if the memory is opened by a legacy handle.
    pub(crate) fn is_legacy(&self) -> bool {
        matches!(self, Self::Open { range, .. } if range.handle.is_some())
    }
}

/// `CU_MEMORYTYPE_DEVICE`.
const ON_DEVICE: u64 = 2;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const BY_DESCRIPTOR: u64 = 1;

/// Returns the way to share `bytes` bytes at the address `at`, which the device must be able to access.
pub(crate) fn plan(device: &Device, at: u64, bytes: u64) -> Result<SharePlan> {
    let bound = device.bind()?;
    let query = |attribute| Ok::<_, Error>(bound.pointer(attribute, at)?.unwrap_or(0));
    let Some(kind) = bound.pointer(PointerAttribute::MemoryType, at)? else {
        let why = "the driver does not know the address: it is pageable memory of the host, of which \
                   `from_slice` makes a tensor, or of another process";
        return Err(Error::NotShareable { why });
    };
    let why = if kind & 0xffff_ffff != ON_DEVICE {
        Some("it is memory of the host")
    } else if query(PointerAttribute::IsManaged)? & 1 != 0 {
        Some("it is managed memory, which the driver moves")
    } else if query(PointerAttribute::Pool)? != 0 {
        Some("it is of a memory pool (cuMemAllocAsync), as all memory of cudarc is")
    } else {
        None
    };
    if let Some(why) = why {
        let from = bound.pointer(PointerAttribute::DevicePointer, at)?.unwrap_or(at);
        return Ok(SharePlan::Copy { from, why });
    }
    let number = query(PointerAttribute::Ordinal)?;
    if u64::from(device.number().unsigned_abs()) != number & 0xffff_ffff {
        return Err(invalid(format!(
            "the memory at {at:#x} is of device {number}, and the stream of device {}: pass a stream \
             of the memory's device",
            device.number()
        )));
    }
    if query(PointerAttribute::IsLegacyCapable)? & 1 != 0 {
        by_handle(&bound, at, bytes)
    } else {
        by_descriptor(&bound, at, bytes)
    }
}

fn by_handle(bound: &BoundContext<'_>, at: u64, bytes: u64) -> Result<SharePlan> {
    let (base, size) = bound.address_range(at)?;
    let Some(begins) = offset_within(base, size, at, bytes) else {
        return Err(invalid(format!(
            "{bytes} bytes from {at:#x} on are more than the allocation has there: {size} from {base:#x} on"
        )));
    };
    match bound.ipc_handle(base) {
        Ok(handle) => {
            Ok(SharePlan::Open { range: ForeignRange { base, bytes: size, handle: Some(handle) }, begins })
        }
        Err(Error::Driver { code: codes::NOT_SUPPORTED, .. }) => {
            Ok(SharePlan::Copy { from: at, why: "the device's driver gives no handles of memory" })
        }
        Err(error) => Err(error),
    }
}

fn by_descriptor(bound: &BoundContext<'_>, at: u64, bytes: u64) -> Result<SharePlan> {
    let query = |attribute| Ok::<_, Error>(bound.pointer(attribute, at)?.unwrap_or(0));
    if query(PointerAttribute::HandleTypes)? & BY_DESCRIPTOR == 0 {
        return Ok(SharePlan::Copy { from: at, why: "it was made without a handle for other processes" });
    }
    let (base, size) = (query(PointerAttribute::MappingBase)?, query(PointerAttribute::MappingSize)?);
    Ok(match offset_within(base, size, at, bytes) {
        Some(begins) => SharePlan::Open { range: ForeignRange { base, bytes: size, handle: None }, begins },
        None => SharePlan::Copy {
            from: at,
            why: "it lies in several mappings, of which each is apart in another process",
        },
    })
}

/// Returns the offset of `bytes` bytes at address `at` in the range of `size` bytes at `base`, or `None` if
/// they exceed the range.
fn offset_within(base: u64, size: u64, at: u64, bytes: u64) -> Option<u64> {
    let begins = at.checked_sub(base)?;
    begins.checked_add(bytes).filter(|end| *end <= size).map(|_| begins)
}

fn invalid(why: String) -> Error {
    mp_core::Error::InvalidArgument(why).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_offset_is_computed_only_inside_its_range() {
        assert_eq!(offset_within(100, 50, 100, 50), Some(0));
        assert_eq!(offset_within(100, 50, 149, 1), Some(49));
        for (at, bytes) in [(99, 1), (100, 51), (149, 2), (150, 1), (u64::MAX, 2), (120, u64::MAX)] {
            assert_eq!(offset_within(100, 50, at, bytes), None, "{at} {bytes}");
        }
    }
}
