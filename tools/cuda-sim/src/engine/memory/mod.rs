//! Device memory and its addresses in each process.
//!
//! Memory exists as long as a handle of a process, a mapping or an exported descriptor refers to it.
//! Addresses differ between processes, and are outside of the kernel's range for programs: a host that
//! accesses one is ended by SIGSEGV.

pub(in crate::engine) mod host;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::engine::memory::host::HostMemory;
use crate::engine::races::shadow::Shadow;

/// Unit of physical memory in bytes: sizes are multiples of it.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// Size of the address range that one process can reserve.
const SPAN: u64 = 1 << 38;
const FIRST: u64 = 0x1000_0000_0000;

/// Physical memory of a device.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) id: u64,
    pub(crate) device: u32,
    pub(crate) size: u64,
    pub(crate) handle_types: i32,
    pub(crate) bytes: RefCell<Vec<u8>>,
    pub(crate) shadow: RefCell<Shadow>,
}

/// Memory to which an address refers.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Device(Rc<Allocation>),
    Host(Rc<HostMemory>),
}

/// Mapping of addresses to memory, from `offset` on, with the access rights of devices.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) target: Target,
    /// Access by device: 1 for reads, 3 for reads and writes. Devices that are not listed have no access.
    pub(crate) access: BTreeMap<u32, i32>,
    pub(crate) kind: Kind,
}

/// Call that created a mapping, which determines the call that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Created by `cuMemMap`.
    Mapped,
    /// Block of 2 MiB or more from which `cuMemAlloc` allocates pieces.
    Legacy,
    /// Memory of a pool, from `cuMemAllocAsync`.
    Pool,
    /// Created by `cuMemAllocManaged`.
    Managed,
    /// Created by `cuIpcOpenMemHandle`. The value is the number of openings.
    Opened(u32),
    /// Created by `cuMemHostRegister`.
    Registered,
}

impl Kind {
    /// Returns `true` if the mapping is divided into allocations (pieces) of any size.
    pub(crate) fn has_pieces(self) -> bool {
        matches!(self, Self::Legacy | Self::Pool | Self::Managed)
    }
}

/// Device addresses of one process.
#[derive(Debug)]
pub(crate) struct Addresses {
    next: u64,
    end: u64,
    /// Released ranges: begin and size. The last released range of a size is reused first.
    unused: Vec<(u64, u64)>,
    pub(crate) reserved: BTreeMap<u64, u64>,
    pub(crate) mapped: BTreeMap<u64, Mapping>,
    /// Allocations of `cuMemAlloc` and similar calls: address and number of bytes.
    pub(crate) pieces: BTreeMap<u64, u64>,
    /// Addresses of pieces that a stream will free after its earlier work.
    pub(crate) freeing: BTreeSet<u64>,
    /// Pieces that the tests' hook has declared: address and number of bytes.
    pub(crate) declared: BTreeMap<u64, u64>,
    /// Ranges in which unordered accesses are intended: address and number of bytes.
    pub(crate) shared: BTreeMap<u64, u64>,
}

/// Reason why a device can't access a range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// The address is not mapped.
    Unmapped,
    /// The range begins in a mapping, but ends outside of it.
    OutOfBounds,
    /// The mapping denies access to this device.
    NoAccess,
}

impl Addresses {
    pub(crate) fn of_process(number: u64) -> Self {
        let next = FIRST + number % 256 * SPAN;
        Self {
            next,
            end: next + SPAN,
            unused: Vec::new(),
            reserved: BTreeMap::new(),
            mapped: BTreeMap::new(),
            pieces: BTreeMap::new(),
            freeing: BTreeSet::new(),
            declared: BTreeMap::new(),
            shared: BTreeMap::new(),
        }
    }

    /// Returns the start of a reserved range of addresses. Reuses the most recently [released](Self::give)
    /// range of this size, so that a stale address leads to other memory. Ranges are separated by unmapped
    /// addresses.
    pub(crate) fn take(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let alignment = alignment.max(GRANULARITY);
        let fits = |&(at, bytes): &(u64, u64)| bytes == size && at.is_multiple_of(alignment);
        if let Some(known) = self.unused.iter().rposition(fits) {
            return Some(self.unused.remove(known).0);
        }
        let at = self.next.checked_next_multiple_of(alignment)?;
        let end = at.checked_add(size)?.checked_add(GRANULARITY)?;
        if end > self.end {
            return None;
        }
        self.next = end;
        Some(at)
    }

    /// Releases a range of addresses that [`take`](Self::take) returned.
    pub(crate) fn give(&mut self, at: u64, size: u64) {
        self.unused.push((at, size));
    }

    /// Removes a mapping and all declarations in it. The addresses stay reserved.
    pub(crate) fn unmap(&mut self, start: u64) -> Option<Mapping> {
        let mapping = self.mapped.remove(&start)?;
        let within = start..start + mapping.size;
        self.declared.retain(|at, _| !within.contains(at));
        self.shared.retain(|at, _| !within.contains(at));
        Some(mapping)
    }

    /// Removes a mapping and releases its addresses.
    pub(crate) fn end(&mut self, start: u64) {
        if let Some(mapping) = self.unmap(start) {
            self.give(start, mapping.size);
        }
    }

    pub(crate) fn mapping(&self, address: u64) -> Option<&Mapping> {
        self.mapped.range(..=address).next_back().map(|(_, m)| m).filter(|m| address < m.start + m.size)
    }

    /// Returns the mapping that contains a range. Returns an error unless `device` can read the range, or
    /// also write it if `writes` is set.
    pub(crate) fn reach(
        &self,
        address: u64,
        bytes: u64,
        device: u32,
        writes: bool,
    ) -> Result<&Mapping, Unreachable> {
        let mapping = self.mapping(address).ok_or(Unreachable::Unmapped)?;
        let end = address.checked_add(bytes).ok_or(Unreachable::OutOfBounds)?;
        if end > mapping.start + mapping.size {
            return Err(Unreachable::OutOfBounds);
        }
        let allowed = mapping.access.get(&device).copied().unwrap_or(0);
        if allowed & if writes { 2 } else { 1 } == 0 {
            return Err(Unreachable::NoAccess);
        }
        Ok(mapping)
    }

    /// Declares a piece, for the tests' hook. Removes earlier pieces and shared ranges that overlap the
    /// piece. With zero bytes, only removes them.
    pub(crate) fn declare(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes.max(1));
        for list in [&mut self.declared, &mut self.shared] {
            list.retain(|start, size| *start >= end || start.saturating_add(*size) <= address);
        }
        if bytes > 0 {
            self.declared.insert(address, bytes);
        }
    }

    /// Returns `true` if an access exceeds the piece in which it begins, or begins between the pieces of a
    /// divided mapping. Called when work is submitted, because the pieces may change before the work runs.
    pub(crate) fn leaves_its_piece(&self, address: u64, bytes: u64, device: u32, writes: bool) -> bool {
        let Ok(mapping) = self.reach(address, bytes, device, writes) else { return false };
        let pieces = if mapping.kind.has_pieces() { &self.pieces } else { &self.declared };
        let end = mapping.start + mapping.size;
        if !mapping.kind.has_pieces() && pieces.range(mapping.start..end).next().is_none() {
            return false;
        }
        let piece = pieces.range(mapping.start..=address).next_back();
        piece.is_none_or(|(start, size)| address + bytes > start + size)
    }

    pub(crate) fn is_shared(&self, address: u64, bytes: u64) -> bool {
        let piece = self.shared.range(..=address).next_back();
        piece.is_some_and(|(start, size)| address + bytes <= start + size)
    }

    /// Returns `true` if a range is reserved completely by one reservation.
    pub(crate) fn is_reserved(&self, address: u64, size: u64) -> bool {
        let around = self.reserved.range(..=address).next_back();
        around.is_some_and(|(start, bytes)| address.checked_add(size).is_some_and(|end| end <= start + bytes))
    }

    /// Returns the starts of the mappings by `cuMemMap` that together cover a range exactly. Returns `None`
    /// if there is a gap, or if the range begins or ends inside a mapping.
    pub(crate) fn exactly(&self, address: u64, size: u64) -> Option<Vec<u64>> {
        let end = address.checked_add(size)?;
        let mut at = address;
        let mut starts = Vec::new();
        while at < end {
            let mapping = self.mapped.get(&at).filter(|m| m.kind == Kind::Mapped)?;
            starts.push(at);
            at += mapping.size;
        }
        (at == end && !starts.is_empty()).then_some(starts)
    }

    pub(crate) fn overlaps(&self, address: u64, size: u64) -> bool {
        self.mapped.range(..address + size).next_back().is_some_and(|(start, m)| start + m.size > address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, size: u64) -> Mapping {
        let allocation = Allocation {
            id: 1,
            device: 0,
            size,
            handle_types: 1,
            bytes: RefCell::default(),
            shadow: RefCell::default(),
        };
        let access = BTreeMap::from([(0, 1)]);
        Mapping { start, size, target: Target::Device(Rc::new(allocation)), access, kind: Kind::Mapped }
    }

    #[test]
    fn device_access_requires_a_matching_mapping() {
        let mut addresses = Addresses::of_process(1);
        addresses.mapped.insert(4096, mapping(4096, 4096));
        addresses.mapped.insert(8192, mapping(8192, 4096));
        let reach = |at, bytes, device, writes| addresses.reach(at, bytes, device, writes).map(|m| m.start);
        assert_eq!(reach(5000, 10, 0, false), Ok(4096));
        assert_eq!(reach(5000, 10, 0, true), Err(Unreachable::NoAccess));
        assert_eq!(reach(5000, 10, 1, false), Err(Unreachable::NoAccess));
        assert_eq!(reach(100, 10, 0, false), Err(Unreachable::Unmapped));
        assert_eq!(reach(8190, 10, 0, false), Err(Unreachable::OutOfBounds));
        assert_eq!(addresses.exactly(4096, 8192), Some(vec![4096, 8192]));
        assert_eq!((addresses.exactly(4096, 100), addresses.exactly(4100, 4092)), (None, None));
        assert_eq!((addresses.overlaps(0, 4096), addresses.overlaps(0, 4097)), (false, true));
    }

    #[test]
    fn later_piece_declaration_replaces_earlier_pieces() {
        let mut addresses = Addresses::of_process(1);
        let mut both = mapping(4096, 4096);
        both.access.insert(0, 3);
        addresses.mapped.insert(4096, both);
        let leaves = |addresses: &Addresses, at, bytes| addresses.leaves_its_piece(at, bytes, 0, true);
        assert!(!leaves(&addresses, 4096, 4096), "nothing is declared");
        addresses.declare(4096, 1000);
        addresses.shared.insert(4096, 1000);
        assert!(!leaves(&addresses, 4100, 996) && leaves(&addresses, 4100, 997));
        assert!(leaves(&addresses, 5200, 1), "between pieces");
        addresses.declare(4608, 300);
        assert!(leaves(&addresses, 4096, 1), "the earlier piece is removed");
        assert!(!addresses.is_shared(4100, 1) && !leaves(&addresses, 4608, 300));
        addresses.declare(4096, 512);
        assert!(!leaves(&addresses, 4096, 512) && leaves(&addresses, 4096, 513));
        assert!(!leaves(&addresses, 4608, 300), "the neighbouring piece stays");
        addresses.declare(4608, 0);
        assert!(leaves(&addresses, 4608, 1));
        assert!(!leaves(&addresses, 100, 1), "an inaccessible address is a fault");
    }

    #[test]
    fn freed_addresses_of_a_size_are_reused_last_first() {
        let mut addresses = Addresses::of_process(7);
        let first = addresses.take(GRANULARITY, 0).unwrap();
        let second = addresses.take(1, 0).unwrap();
        assert!(second > first + GRANULARITY, "with a gap");
        assert_eq!(addresses.take(SPAN, 0), None);
        let third = addresses.take(GRANULARITY, 0).unwrap();
        addresses.give(first, GRANULARITY);
        addresses.give(third, GRANULARITY);
        assert!(addresses.take(2 * GRANULARITY, 0).unwrap() > third, "another size");
        assert_eq!(
            [addresses.take(GRANULARITY, 0), addresses.take(GRANULARITY, 0)],
            [Some(third), Some(first)]
        );
        assert_ne!(Addresses::of_process(8).take(1, 0), Some(first));
    }
}
