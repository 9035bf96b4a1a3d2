//! Calls about data and code: copies, registered memory, queries about addresses, modules and launches.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

use crate::codes;
use crate::engine::Engine;
use crate::engine::calls::{CallOutcome, CallResult, Caller, Completion, done, number};
use crate::engine::goal::Goal;
use crate::engine::memory::host::HostMemory;
use crate::engine::memory::{Kind, Mapping, Target};
use crate::engine::streams::Step;
use crate::engine::streams::work::{self, CopySource, CopyTarget, Progress, Work};
use crate::wire::{Call, Source, Value};

impl Engine {
    pub(in crate::engine) fn data_call(
        &mut self,
        caller: &Caller,
        call: Call,
        file: Option<OwnedFd>,
    ) -> CallResult {
        match call {
            Call::HostToDevice { to, from, bytes, stream, wait } => {
                let from = match from {
                    Source::Inline(inline) => CopySource::Bytes(Rc::new(inline)),
                    Source::Host(address) => CopySource::Host(address),
                    Source::File(_) => {
                        let mut all = Vec::new();
                        let read = std::fs::File::from(file.ok_or(codes::UNKNOWN)?).read_to_end(&mut all);
                        read.map_err(|_| codes::UNKNOWN)?;
                        CopySource::Bytes(Rc::new(all))
                    }
                };
                if matches!(&from, CopySource::Bytes(all) if all.len() as u64 != bytes) {
                    return Err(codes::UNKNOWN);
                }
                self.work(
                    caller,
                    "cuMemcpyHtoD",
                    stream,
                    Work::Copy { from, to: CopyTarget::Device(to), bytes },
                    wait,
                )
            }
            Call::DeviceToHost { from, bytes, stream, host: Some(host) } => {
                let work = Work::Copy { from: CopySource::Device(from), to: CopyTarget::Host(host), bytes };
                self.work(caller, "cuMemcpyDtoH", stream, work, false)
            }
            Call::DeviceToHost { from, bytes, stream, host: None } => {
                let answer = Rc::new(RefCell::new(Vec::new()));
                let to = CopyTarget::Answer(Rc::clone(&answer));
                let work = Work::Copy { from: CopySource::Device(from), to, bytes };
                match self.work(caller, "cuMemcpyDtoH", stream, work, true)? {
                    CallOutcome::Later(goal, _) => Ok(CallOutcome::Later(goal, Completion::Answer(answer))),
                    now @ CallOutcome::Now(..) => Ok(now),
                }
            }
            Call::DeviceToDevice { to, from, bytes, stream, wait } => {
                let work = Work::Copy { from: CopySource::Device(from), to: CopyTarget::Device(to), bytes };
                self.work(caller, "cuMemcpyDtoD", stream, work, wait)
            }
            Call::Set { to, pattern, count, stream, wait } => {
                if !to.is_multiple_of(pattern.len() as u64) {
                    return Err(codes::INVALID_VALUE);
                }
                self.work(caller, "cuMemset", stream, Work::Set { to, pattern, count }, wait)
            }
            Call::HostRegister { address, bytes, offset } => {
                self.register(caller, address, bytes, offset, file)
            }
            Call::HostUnregister { address } => {
                self.context(caller)?;
                let process = self.process(caller.process)?;
                let gone = process.registered.remove(&address).ok_or(codes::HOST_MEMORY_NOT_REGISTERED)?;
                process.addresses.end(gone.1);
                done()
            }
            Call::HostDevicePointer { address } => {
                self.context(caller)?;
                let process = self.process(caller.process)?;
                let (start, _, device) = process.registration(address).ok_or(codes::INVALID_VALUE)?;
                number(device + (address - start))
            }
            Call::PointerAttribute { attribute, address } => self.attribute(caller, attribute, address),
            Call::ModuleLoad { image } => {
                self.context(caller)?;
                let functions = functions(&image);
                if functions.is_empty() {
                    return Err(codes::INVALID_IMAGE);
                }
                let module = self.fresh();
                self.process(caller.process)?.modules.insert(module, functions);
                number(module)
            }
            Call::ModuleUnload { module } => {
                let process = self.process(caller.process)?;
                process.modules.remove(&module).ok_or(codes::INVALID_HANDLE)?;
                process.functions.retain(|_, (of, _)| *of != module);
                process.loaded.retain(|(of, _)| *of != module);
                done()
            }
            Call::ModuleFunction { module, name } => {
                self.context(caller)?;
                let handle = self.fresh();
                let process = self.process(caller.process)?;
                let functions = process.modules.get(&module).ok_or(codes::INVALID_HANDLE)?;
                let known = functions.iter().find(|(one, _)| *one == name).ok_or(codes::NOT_FOUND)?;
                let sizes = known.1.clone();
                let is_new = process.loaded.insert((module, name.clone()));
                process.functions.insert(handle, (module, name));
                if is_new {
                    self.hold_up(caller);
                }
                Ok(CallOutcome::Now(Value::Function { handle, sizes }, None))
            }
            Call::Launch { function, grid, block, arguments, stream } => {
                self.context(caller)?;
                let process = self.process(caller.process)?;
                let pid = process.pid;
                let (_, name) = process.functions.get(&function).cloned().ok_or(codes::INVALID_HANDLE)?;
                let threads = block.iter().map(|n| u64::from(*n)).product::<u64>();
                if grid.contains(&0) || threads == 0 || threads > 1024 {
                    return Err(codes::INVALID_VALUE);
                }
                let Some(work) = work::kernel(&name, &arguments) else {
                    let text = format!("process {pid} launches {name:?}, which the simulator doesn't know");
                    self.findings.add("unknown-kernel", pid, &text);
                    return Err(codes::LAUNCH_FAILED);
                };
                self.work(caller, &name, stream, work, false)
            }
            Call::Piece { address, bytes } => {
                self.process(caller.process)?.addresses.declare(address, bytes);
                done()
            }
            Call::Shared { address, bytes } => {
                let shared = &mut self.process(caller.process)?.addresses.shared;
                if bytes == 0 {
                    _ = shared.remove(&address)
                } else {
                    _ = shared.insert(address, bytes)
                }
                done()
            }
            _ => Err(codes::UNKNOWN),
        }
    }

    /// Adds work to a stream. If `wait` is set, the caller waits for the work.
    fn work(&mut self, caller: &Caller, call: &str, stream: u64, work: Work, wait: bool) -> CallResult {
        let stream = self.stream(caller, stream)?;
        let device = self.streams[&stream].device;
        let process = self.process(caller.process)?;
        let (pid, addresses) = (process.pid, &process.addresses);
        // The driver detects invalid addresses of copies during the call, and invalid addresses of kernels
        // later.
        if matches!(work, Work::Copy { .. } | Work::Set { .. }) && call.starts_with("cu") {
            let wrong =
                |one: &work::Access| addresses.reach(one.address, one.bytes, device, one.writes).is_err();
            if work.accesses().iter().any(wrong) {
                return Err(codes::INVALID_VALUE);
            }
        }
        let accesses = work.accesses();
        let intended = accesses.iter().map(|one| addresses.is_shared(one.address, one.bytes)).collect();
        let leaves =
            |one: &work::Access| addresses.leaves_its_piece(one.address, one.bytes, device, one.writes);
        let left: Vec<_> = accesses.into_iter().filter(leaves).collect();
        if wait {
            self.not_in_capture(stream)?;
        }
        for work::Access { address, bytes, writes } in left {
            let verb = if writes { "writes" } else { "reads" };
            let text = format!(
                "{call} {verb} {bytes} bytes at {address:#x}, beyond the piece of memory that is there"
            );
            self.findings.add("out-of-bounds", pid, &text);
        }
        let step = Step::Work { work, progress: Progress::default(), is_recorded: false, intended };
        let number = self.enqueue(caller, stream, call, step)?;
        if wait {
            Ok(CallOutcome::Later(Goal::Streams(vec![(stream, number)]), Completion::Nothing))
        } else {
            done()
        }
    }

    fn register(
        &mut self,
        caller: &Caller,
        address: u64,
        bytes: u64,
        offset: u64,
        file: Option<OwnedFd>,
    ) -> CallResult {
        self.context(caller)?;
        let process = self.process(caller.process)?;
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(codes::INVALID_VALUE)?;
        let before = process.registered.range(..end).next_back();
        if before.is_some_and(|(start, (length, _))| start + length > address) {
            return Err(codes::HOST_MEMORY_ALREADY_REGISTERED);
        }
        // The file is opened again. The received descriptor shares its owner's locks, which end only with the
        // last duplicate.
        let came = file.ok_or(codes::INVALID_VALUE)?;
        let path = format!("/proc/self/fd/{}", came.as_raw_fd());
        let own = std::fs::OpenOptions::new().read(true).write(true).open(path);
        drop(came);
        let own = own.map_err(|_| codes::INVALID_VALUE)?;
        let memory = HostMemory::map(own.as_fd(), offset, bytes).map_err(|_| codes::INVALID_VALUE)?;
        let start = process.addresses.take(bytes, 0).ok_or(codes::OUT_OF_MEMORY)?;
        let access: BTreeMap<u32, i32> = process.devices.iter().map(|device| (device.index, 3)).collect();
        let target = Target::Host(Rc::new(memory));
        process
            .addresses
            .mapped
            .insert(start, Mapping { start, size: bytes, target, access, kind: Kind::Registered });
        process.registered.insert(address, (bytes, start));
        done()
    }

    fn attribute(&mut self, caller: &Caller, attribute: i32, address: u64) -> CallResult {
        let context = caller.context;
        let process = self.process(caller.process)?;
        let registered = process.registration(address);
        let at = registered.map_or(address, |(start, _, device)| device + (address - start));
        let mapping = process.addresses.mapping(at).ok_or(codes::INVALID_VALUE)?;
        let device = match &mapping.target {
            Target::Device(memory) => process.devices.iter().position(|one| one.index == memory.device),
            Target::Host(_) => Some(0),
        };
        let is_host = matches!(mapping.target, Target::Host(_));
        let piece = process.addresses.pieces.range(..=at).next_back();
        let piece = piece.filter(|(start, size)| at < **start + **size).map(|(start, size)| (*start, *size));
        let (start, size) = piece.unwrap_or((mapping.start, mapping.size));
        number(match attribute {
            1 => context,
            2 => {
                if is_host {
                    1
                } else {
                    2
                }
            }
            3 => at,
            4 => registered.map(|_| address).ok_or(codes::INVALID_VALUE)?,
            8 => u64::from(mapping.kind == Kind::Managed),
            // Handle of the pool: 1, because there is only one.
            17 => u64::from(mapping.kind == Kind::Pool),
            9 => device.unwrap_or(0) as u64,
            10 => u64::from(mapping.kind == Kind::Legacy),
            11 => start,
            12 => size,
            13 => 1,
            14 => match &mapping.target {
                Target::Device(memory) => u64::from(memory.handle_types.cast_unsigned()),
                Target::Host(_) => 0,
            },
            18 => mapping.size,
            19 => mapping.start,
            _ => return Err(codes::INVALID_VALUE),
        })
    }
}

/// Returns the functions of a PTX text: `.entry NAME ( .param .u64 a, … )`. The rest of the text is ignored.
fn functions(image: &str) -> Vec<(String, Vec<u32>)> {
    let code: String =
        image.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let entries = code.split(".entry").skip(1);
    let read = |entry: &str| {
        let (name, rest) = entry.split_once('(')?;
        let (parameters, _) = rest.split_once(')')?;
        let size = |parameter: &str| {
            let kind =
                parameter.split_whitespace().find(|word| word.starts_with('.') && *word != ".param")?;
            match kind.trim_start_matches(|c: char| !c.is_ascii_digit()) {
                "64" => Some(8),
                "32" => Some(4),
                _ => None,
            }
        };
        let parameters = parameters.split(',').filter(|parameter| !parameter.trim().is_empty());
        Some((name.trim().to_owned(), parameters.map(size).collect::<Option<Vec<u32>>>()?))
    };
    entries.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_image_contains_the_known_kernels() {
        let mut found = functions(crate::KERNELS);
        let mut known: Vec<_> =
            work::KERNELS.iter().map(|(name, sizes)| (name.to_string(), sizes.to_vec())).collect();
        found.sort();
        known.sort();
        assert_eq!(found, known);
    }

    #[test]
    fn kernel_image_without_functions_is_empty() {
        assert!(functions("").is_empty() && functions("// .entry f()").is_empty());
    }
}
