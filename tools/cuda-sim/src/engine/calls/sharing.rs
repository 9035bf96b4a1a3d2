//! Calls about memory of `cuMemAlloc`, and its handles for other processes. Small allocations are pieces of a
//! block of 2 MiB. A handle opens the whole block, and contains the offset of the piece. This module also
//! executes calls about memory of the device's pool and managed memory, which have no handles.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::codes;
use crate::engine::Engine;
use crate::engine::calls::{CallOutcome, CallResult, Caller, done, number};
use crate::engine::memory::{GRANULARITY, Kind, Mapping, Target};
use crate::engine::process::Process;
use crate::engine::streams::Step;
use crate::wire::{Call, DeviceInfo, Value};

/// Alignment of the pieces of a block, in bytes.
const UNIT: u64 = 512;
/// First bytes of a handle.
const MAGIC: &[u8; 8] = b"mpcusim\0";

/// Returns the 64 bytes of a handle that contains this id.
pub(in crate::engine) fn handle(id: u64) -> Vec<u8> {
    handle_from(id, 0)
}

/// Returns the handle that contains this id and this offset.
fn handle_from(id: u64, offset: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(id.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.resize(64, 0);
    bytes
}

/// Returns the offset that a handle contains.
fn offset(handle: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(handle.get(16..24)?.try_into().ok()?))
}

/// Returns the id that a handle contains, or `None` for an invalid handle.
pub(in crate::engine) fn named(handle: &[u8]) -> Option<u64> {
    let rest = handle.strip_prefix(MAGIC)?;
    Some(u64::from_le_bytes(rest.get(..8)?.try_into().ok()?))
}

impl Engine {
    pub(in crate::engine) fn sharing_call(&mut self, caller: &Caller, call: Call) -> CallResult {
        let device = self.context(caller)?.device;
        match call {
            Call::Alloc { size, managed: false } => self.alloc(caller, device, size),
            Call::Alloc { size, managed: true } => self.alloc_whole(caller, device, size, Kind::Managed),
            Call::AllocAsync { size, stream } => {
                // The piece is available at once: the pool owns its memory, and the memory was not used
                // before.
                self.stream(caller, stream)?;
                self.alloc_whole(caller, device, size, Kind::Pool)
            }
            Call::FreeAsync { address, stream } => {
                let stream = self.stream(caller, stream)?;
                let addresses = &mut self.process(caller.process)?.addresses;
                let is_pool = addresses.mapping(address).is_some_and(|mapping| mapping.kind == Kind::Pool);
                if !is_pool || !addresses.pieces.contains_key(&address) || !addresses.freeing.insert(address)
                {
                    return Err(codes::INVALID_VALUE);
                }
                self.enqueue(caller, stream, "cuMemFreeAsync", Step::Free(address))?;
                done()
            }
            Call::Free { address } => {
                if address != 0 {
                    let pieces = &self.process(caller.process)?.addresses.pieces;
                    pieces.get(&address).ok_or(codes::INVALID_VALUE)?;
                    self.free(caller.process, address);
                }
                done()
            }
            Call::AddressRange { address } => {
                let addresses = &self.process(caller.process)?.addresses;
                let piece = addresses.pieces.range(..=address).next_back();
                let piece = piece.filter(|(start, size)| address < **start + **size).map(|(a, b)| (*a, *b));
                let mapped =
                    addresses.mapping(address).filter(|m| m.kind != Kind::Legacy).map(|m| (m.start, m.size));
                let (start, size) = piece.or(mapped).ok_or(codes::INVALID_VALUE)?;
                Ok(CallOutcome::Now(Value::Pair(start, size), None))
            }
            Call::IpcGetMem { address } => {
                let addresses = &self.process(caller.process)?.addresses;
                let mapping = addresses.mapping(address).filter(|mapping| mapping.kind == Kind::Legacy);
                let Some(Target::Device(memory)) = mapping.map(|mapping| mapping.target.clone()) else {
                    return Err(codes::INVALID_VALUE);
                };
                let start = mapping.map_or(0, |mapping| mapping.start);
                let piece = addresses.pieces.range(start..=address).next_back().map_or(start, |(at, _)| *at);
                self.shared_memory.insert(memory.id, (caller.process, Rc::downgrade(&memory)));
                Ok(CallOutcome::Now(Value::Bytes(handle_from(memory.id, piece - start)), None))
            }
            Call::IpcOpenMem { handle } => self.open(caller, device, &handle),
            Call::IpcCloseMem { address } => {
                let addresses = &mut self.process(caller.process)?.addresses;
                let start = addresses.mapping(address).ok_or(codes::INVALID_VALUE)?.start;
                let mapping = addresses.mapped.get_mut(&start).ok_or(codes::INVALID_VALUE)?;
                match &mut mapping.kind {
                    Kind::Opened(1) => addresses.end(start),
                    Kind::Opened(times) => *times -= 1,
                    _ => return Err(codes::INVALID_VALUE),
                }
                done()
            }
            _ => Err(codes::UNKNOWN),
        }
    }

    fn alloc(&mut self, caller: &Caller, device: u32, size: u64) -> CallResult {
        if size == 0 {
            return Err(codes::INVALID_VALUE);
        }
        let addresses = &mut self.process(caller.process)?.addresses;
        let of_device = |m: &&Mapping| {
            m.kind == Kind::Legacy && matches!(&m.target, Target::Device(memory) if memory.device == device)
        };
        let gap = addresses.mapped.values().filter(of_device).find_map(|mapping| {
            let mut at = mapping.start;
            let end = mapping.start + mapping.size;
            for (start, bytes) in addresses.pieces.range(mapping.start..end) {
                if start - at >= size {
                    break;
                }
                at = (start + bytes).next_multiple_of(UNIT);
            }
            let next = addresses.pieces.range(at..end).next().map_or(end, |(start, _)| *start);
            (at + size <= next).then_some(at)
        });
        if let Some(at) = gap {
            addresses.pieces.insert(at, size);
            return number(at);
        }
        self.alloc_whole(caller, device, size, Kind::Legacy)
    }

    /// Allocates a block for a single piece.
    fn alloc_whole(&mut self, caller: &Caller, device: u32, size: u64, kind: Kind) -> CallResult {
        let whole = size.checked_next_multiple_of(GRANULARITY).filter(|_| size > 0);
        let whole = whole.ok_or(if size == 0 { codes::INVALID_VALUE } else { codes::OUT_OF_MEMORY })?;
        let memory = self.allocate(device, whole, 0).ok_or(codes::OUT_OF_MEMORY)?;
        let addresses = &mut self.process(caller.process)?.addresses;
        let start = addresses.take(whole, 0).ok_or(codes::OUT_OF_MEMORY)?;
        let access = BTreeMap::from([(device, 3)]);
        let target = Target::Device(memory);
        addresses.mapped.insert(start, Mapping { start, size: whole, target, access, kind });
        addresses.pieces.insert(start, size);
        number(start)
    }

    /// Frees a piece, after earlier work with it is done.
    pub(in crate::engine) fn free(&mut self, process: u64, address: u64) {
        let Some(owner) = self.processes.get_mut(&process) else { return };
        owner.addresses.pieces.remove(&address);
        owner.addresses.freeing.remove(&address);
        let Some(mapping) = owner.addresses.mapping(address).cloned() else { return };
        let pieces = owner.addresses.pieces.range(mapping.start..mapping.start + mapping.size);
        if pieces.count() == 0 {
            owner.addresses.end(mapping.start);
            let pid = owner.pid;
            self.report_open_elsewhere(pid, &mapping.target, "freed");
        }
    }

    /// Reports a finding if a process frees memory that other processes have opened, because the contents
    /// become undefined for those processes.
    pub(in crate::engine) fn report_open_elsewhere(&mut self, pid: u32, target: &Target, what: &str) {
        let Target::Device(memory) = target else { return };
        let is_it = |other: &Target| matches!(other, Target::Device(one) if Rc::ptr_eq(one, memory));
        let has = |m: &Mapping| matches!(m.kind, Kind::Opened(_)) && is_it(&m.target);
        let works = |process: u64| self.streams.values().any(|s| s.process == process && !s.queue.is_empty());
        // A dead process has nothing open, even if its end was not detected yet. Only its remaining work has
        // memory open.
        let holds = |number: u64, p: &Process| {
            p.addresses.mapped.values().any(has) && (!p.is_gone() || works(number))
        };
        let holders = self.processes.iter().filter(|(number, process)| holds(**number, process));
        let holders: Vec<u32> = holders.map(|(_, process)| process.pid).collect();
        for holder in holders {
            let text = format!("process {pid} {what} memory that process {holder} had opened by its handle");
            self.findings.add("freed-while-open", holder, &text);
        }
    }

    fn open(&mut self, caller: &Caller, device: u32, bytes: &[u8]) -> CallResult {
        let id = named(bytes).ok_or(codes::INVALID_HANDLE)?;
        let offset = offset(bytes).ok_or(codes::INVALID_HANDLE)?;
        let (owner, memory) = self.shared_memory.get(&id).ok_or(codes::INVALID_HANDLE)?;
        if *owner == caller.process {
            return Err(codes::INVALID_CONTEXT);
        }
        let memory = memory.upgrade().ok_or(codes::INVALID_HANDLE)?;
        let by = self.process(caller.process)?.devices.iter().find(|one| one.index == device);
        if memory.device != device && by.is_some_and(|by| by.attribute(DeviceInfo::APART) != 0) {
            return Err(codes::PEER_ACCESS_UNSUPPORTED);
        }
        let addresses = &mut self.process(caller.process)?.addresses;
        let is_it = |m: &&mut Mapping| {
            matches!(m.kind, Kind::Opened(_))
                && m.access.contains_key(&device)
                && matches!(&m.target, Target::Device(one) if Rc::ptr_eq(one, &memory))
        };
        if let Some(mapping) = addresses.mapped.values_mut().find(is_it) {
            if let Kind::Opened(times) = &mut mapping.kind {
                *times += 1;
            }
            return number(mapping.start + offset);
        }
        let size = memory.size;
        let start = addresses.take(size, 0).ok_or(codes::OUT_OF_MEMORY)?;
        let access = BTreeMap::from([(device, 3)]);
        let target = Target::Device(memory);
        addresses.mapped.insert(start, Mapping { start, size, target, access, kind: Kind::Opened(1) });
        number(start + offset)
    }
}
