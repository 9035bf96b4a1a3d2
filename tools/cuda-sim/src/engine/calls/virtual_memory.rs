//! Calls about virtual memory: creation, export as a descriptor, import, mapping, and access rights.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::codes;
use crate::engine::calls::{CallOutcome, CallResult, Caller, done, number};
use crate::engine::memory::{Allocation, GRANULARITY, Kind, Mapping, Target};
use crate::engine::{Engine, Export};
use crate::wire::{Call, DeviceInfo, Value};

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY: i32 = 102;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
const BY_DESCRIPTOR: i32 = 103;

fn is_granular(size: u64) -> bool {
    size > 0 && size.is_multiple_of(GRANULARITY)
}

impl Engine {
    pub(in crate::engine) fn memory_call(
        &mut self,
        caller: &Caller,
        call: Call,
        file: Option<OwnedFd>,
    ) -> CallResult {
        let has_it =
            self.process(caller.process)?.devices.iter().any(|device| device.attribute(VIRTUAL_MEMORY) != 0);
        if !has_it {
            return Err(codes::NOT_SUPPORTED);
        }
        match call {
            Call::Reserve { size, alignment, .. } => {
                if !is_granular(size) || alignment != 0 && !alignment.is_power_of_two() {
                    return Err(codes::INVALID_VALUE);
                }
                let addresses = &mut self.process(caller.process)?.addresses;
                let at = addresses.take(size, alignment).ok_or(codes::OUT_OF_MEMORY)?;
                addresses.reserved.insert(at, size);
                number(at)
            }
            Call::AddressFree { address, size } => {
                let addresses = &mut self.process(caller.process)?.addresses;
                if addresses.reserved.get(&address) != Some(&size) || addresses.overlaps(address, size) {
                    return Err(codes::INVALID_VALUE);
                }
                addresses.reserved.remove(&address);
                addresses.give(address, size);
                done()
            }
            Call::Create { size, device, handle_types } => self.create(caller, size, device, handle_types),
            Call::Release { handle } => {
                let process = self.process(caller.process)?;
                process.handles.remove(&handle).ok_or(codes::INVALID_VALUE)?;
                process.unused.memory.push(handle);
                done()
            }
            Call::Map { address, size, offset, handle } => {
                let process = self.process(caller.process)?;
                let memory = process.handles.get(&handle).ok_or(codes::INVALID_VALUE)?;
                let addresses = &process.addresses;
                if offset != 0 {
                    return Err(codes::NOT_SUPPORTED);
                }
                let is_wrong = !is_granular(size)
                    || size > memory.size
                    || !address.is_multiple_of(GRANULARITY)
                    || !addresses.is_reserved(address, size)
                    || addresses.overlaps(address, size);
                if is_wrong {
                    return Err(codes::INVALID_VALUE);
                }
                let target = Target::Device(Rc::clone(memory));
                let mapping =
                    Mapping { start: address, size, target, access: BTreeMap::new(), kind: Kind::Mapped };
                process.addresses.mapped.insert(address, mapping);
                done()
            }
            Call::Unmap { address, size } => {
                let addresses = &mut self.process(caller.process)?.addresses;
                let starts = addresses.exactly(address, size).ok_or(codes::INVALID_VALUE)?;
                starts.iter().for_each(|start| _ = addresses.unmap(*start));
                done()
            }
            Call::SetAccess { address, size, device, flags } => {
                let process = self.process(caller.process)?;
                let by = process.device(device).ok_or(codes::INVALID_DEVICE)?;
                let (index, apart) = (by.index, by.attribute(DeviceInfo::APART) != 0);
                let starts = process.addresses.exactly(address, size).ok_or(codes::INVALID_VALUE)?;
                let is_anothers =
                    |start| match process.addresses.mapped.get(start).map(|mapping| &mapping.target) {
                        Some(Target::Device(memory)) => memory.device != index,
                        _ => false,
                    };
                if apart && starts.iter().any(is_anothers) {
                    return Err(codes::PEER_ACCESS_UNSUPPORTED);
                }
                if !matches!(flags, 0 | 1 | 3) {
                    return Err(codes::INVALID_VALUE);
                }
                for start in starts {
                    if let Some(mapping) = process.addresses.mapped.get_mut(&start) {
                        mapping.access.insert(index, flags);
                    }
                }
                done()
            }
            Call::GetAccess { address, device } => {
                let process = self.process(caller.process)?;
                let index = process.device(device).ok_or(codes::INVALID_DEVICE)?.index;
                let mapping = process.addresses.mapping(address).ok_or(codes::INVALID_VALUE)?;
                let flags = mapping.access.get(&index).copied().unwrap_or(0);
                number(u64::from(flags.cast_unsigned()))
            }
            Call::Export { handle } => self.export(caller, handle),
            Call::Import => self.import(caller, file),
            Call::RetainHandle { address } => {
                let process = self.process(caller.process)?;
                let mapping =
                    process.addresses.mapping(address).filter(|mapping| mapping.kind == Kind::Mapped);
                let Some(Target::Device(memory)) = mapping.map(|mapping| mapping.target.clone()) else {
                    return Err(codes::INVALID_VALUE);
                };
                self.refer(caller, memory)
            }
            Call::HandleProperties { handle } => {
                let process = self.process(caller.process)?;
                let memory = process.handles.get(&handle).ok_or(codes::INVALID_VALUE)?;
                let place = process.devices.iter().position(|device| device.index == memory.device);
                let place = u64::try_from(place.unwrap_or(0)).unwrap_or(0);
                let types = u64::from(memory.handle_types.cast_unsigned());
                Ok(CallOutcome::Now(Value::Pair(place, types), None))
            }
            _ => Err(codes::UNKNOWN),
        }
    }

    fn create(&mut self, caller: &Caller, size: u64, device: u32, handle_types: i32) -> CallResult {
        let device = self.process(caller.process)?.device(device).ok_or(codes::INVALID_DEVICE)?;
        if !is_granular(size) || handle_types & !1 != 0 {
            return Err(codes::INVALID_VALUE);
        }
        if handle_types & 1 != 0 && device.attribute(BY_DESCRIPTOR) == 0 {
            return Err(codes::NOT_SUPPORTED);
        }
        let index = device.index;
        if self.lost.contains(&index) {
            return Err(codes::LAUNCH_FAILED);
        }
        let memory = self.allocate(index, size, handle_types).ok_or(codes::OUT_OF_MEMORY)?;
        self.refer(caller, memory)
    }

    /// Creates a handle of memory for the calling process.
    fn refer(&mut self, caller: &Caller, memory: Rc<Allocation>) -> CallResult {
        let handle = self.handle(caller.process, |unused| &mut unused.memory);
        self.process(caller.process)?.handles.insert(handle, memory);
        number(handle)
    }

    fn export(&mut self, caller: &Caller, handle: u64) -> CallResult {
        let memory = self.process(caller.process)?.handles.get(&handle).ok_or(codes::INVALID_VALUE)?;
        if memory.handle_types & 1 == 0 {
            return Err(codes::INVALID_VALUE);
        }
        let allocation = Rc::clone(memory);
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (reading, end) = rustix::pipe::pipe_with(flags).map_err(|_| codes::OUT_OF_MEMORY)?;
        let stat = rustix::fs::fstat(&reading).map_err(|_| codes::UNKNOWN)?;
        self.exports.push(Export { allocation, file: (stat.st_dev, stat.st_ino), end });
        Ok(CallOutcome::Now(Value::None, Some(reading)))
    }

    fn import(&mut self, caller: &Caller, file: Option<OwnedFd>) -> CallResult {
        let stat = rustix::fs::fstat(file.ok_or(codes::INVALID_VALUE)?).map_err(|_| codes::INVALID_VALUE)?;
        let export = self.exports.iter().find(|export| export.file == (stat.st_dev, stat.st_ino));
        let memory = Rc::clone(&export.ok_or(codes::INVALID_VALUE)?.allocation);
        let sees = self.process(caller.process)?.devices.iter().any(|device| device.index == memory.device);
        if !sees {
            return Err(codes::INVALID_DEVICE);
        }
        self.refer(caller, memory)
    }
}
