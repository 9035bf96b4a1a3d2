//! Schedule of work. Work runs when a host waits for it, when awaited work depends on it, or after a delay.
//! Streams run one piece of work at a time, in an order that the seed determines. Work that no host waits for
//! usually has not run, so a missing wait shows as old data.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Instant;

use crate::codes;
use crate::engine::Engine;
use crate::engine::goal::Goal;
use crate::engine::memory::{Mapping, Target, Unreachable};
use crate::engine::process::Process;
use crate::engine::races::shadow;
use crate::engine::streams::work::{Access, AddressSpace, Fault};
use crate::engine::streams::{HostCallState, Operation, Step, is_met};

/// Access of a stream to the memory of its process.
struct ProcessMemory<'a> {
    process: &'a Process,
    device: u32,
}

impl ProcessMemory<'_> {
    fn device(&self, address: u64, bytes: usize, writes: bool) -> Result<(&Mapping, u64), Fault> {
        let mapping = self.process.addresses.reach(address, bytes as u64, self.device, writes);
        mapping.map(|mapping| (mapping, address - mapping.start)).map_err(|_| Fault)
    }
}

fn read(target: &Target, offset: u64, to: &mut [u8]) {
    match target {
        Target::Host(memory) => memory.read(offset, to),
        Target::Device(allocation) => {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            to.copy_from_slice(&allocation.bytes.borrow()[from..from + to.len()]);
        }
    }
}

fn write(target: &Target, offset: u64, from: &[u8]) {
    match target {
        Target::Host(memory) => memory.write(offset, from),
        Target::Device(allocation) => {
            let to = usize::try_from(offset).unwrap_or(usize::MAX);
            allocation.bytes.borrow_mut()[to..to + from.len()].copy_from_slice(from);
        }
    }
}

impl AddressSpace for ProcessMemory<'_> {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Fault> {
        let (mapping, offset) = self.device(address, to.len(), false)?;
        read(&mapping.target, offset, to);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let (mapping, offset) = self.device(address, from.len(), true)?;
        write(&mapping.target, offset, from);
        Ok(())
    }

    fn read_host(&self, address: u64, to: &mut [u8]) -> Result<(), Fault> {
        let (start, _, device) = self.process.registration(address).ok_or(Fault)?;
        self.read(device + (address - start), to)
    }

    fn write_host(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let (start, _, device) = self.process.registration(address).ok_or(Fault)?;
        self.write(device + (address - start), from)
    }
}

impl Engine {
    /// Returns `true` if a stream has done its first `number` operations, or has ended.
    fn has_done(&self, stream: u64, number: u64) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.done >= number)
    }

    pub(super) fn is_reached(&self, goal: &Goal) -> bool {
        match goal {
            Goal::Streams(streams) => streams.iter().all(|(stream, number)| self.has_done(*stream, *number)),
            Goal::Record(record) => record.done.borrow().is_some(),
            Goal::HostCall(process) => {
                self.processes.get(process).is_none_or(|process| !process.host_calls.is_empty())
            }
        }
    }

    /// Orders later calls of hosts after the work of this goal, because a host has observed that the goal was
    /// reached.
    pub(super) fn observe(&mut self, goal: &Goal) {
        let host = Rc::make_mut(&mut self.host);
        match goal {
            Goal::Streams(streams) => {
                let streams = streams.iter().filter_map(|(stream, _)| self.streams.get(stream));
                streams.for_each(|stream| host.join(&stream.clock));
            }
            Goal::Record(record) => {
                if let Some((clock, _)) = &*record.done.borrow() {
                    host.join(clock);
                }
            }
            Goal::HostCall(_) => {}
        }
    }

    /// Returns the memory to which an address of a process refers, and the offset of the word.
    fn word(&self, process: u64, address: u64) -> Option<(Target, u64)> {
        let mapping = self.processes.get(&process)?.addresses.mapping(address)?;
        let offset = address - mapping.start;
        (offset + 8 <= mapping.size).then(|| (mapping.target.clone(), offset))
    }

    /// Returns the value of a word, and the identity of the word, which is the same for all processes.
    fn load(target: &Target, offset: u64) -> (u64, (u64, u64, u64)) {
        match target {
            Target::Host(memory) => {
                (memory.load(offset), (memory.file.0, memory.file.1, memory.offset + offset))
            }
            Target::Device(allocation) => {
                let mut word = [0; 8];
                read(target, offset, &mut word);
                (u64::from_le_bytes(word), (0, allocation.id, offset))
            }
        }
    }

    /// Returns `true` if the first operation of a stream can proceed.
    fn is_ready(&self, number: u64) -> bool {
        let Some(stream) = self.streams.get(&number) else { return false };
        let Some(first) = stream.queue.front() else { return false };
        let mut earlier = first.after.iter().chain(first.behind.iter().filter(|(other, _)| *other != number));
        if !earlier.all(|(other, number)| self.has_done(*other, *number)) {
            return false;
        }
        match &first.step {
            Step::Work { work, progress, .. } => work.is_ready(progress),
            Step::Record(_) | Step::Write { .. } | Step::Free(_) => true,
            Step::Host(call) => call.state.get() != HostCallState::Running,
            Step::WaitEvent(record) => record.done.borrow().is_some(),
            Step::WaitForEver => false,
            Step::Wait { address, value, flags, .. } => match self.word(stream.process, *address) {
                // A process that detects a death may write the word after the dead process's streams have
                // ended, so that other processes continue.
                Some((target, offset)) => {
                    is_met(Self::load(&target, offset).0, *value, *flags)
                        && self.processes.get(&stream.process).is_some_and(|process| !process.is_gone())
                }
                // The word is no longer mapped, which is reported when the operation runs.
                None => true,
            },
        }
    }

    /// Returns the streams that must run to reach a goal. The second value is `true` if one of them waits for
    /// a word, which any stream may write.
    fn needed(&self, goal: &Goal) -> (BTreeSet<u64>, bool) {
        let mut open: Vec<u64> = match goal {
            Goal::Streams(streams) => streams.iter().map(|(stream, _)| *stream).collect(),
            Goal::Record(record) => vec![record.by.get().0],
            Goal::HostCall(_) => Vec::new(),
        };
        let (mut needed, mut any) = (BTreeSet::new(), false);
        while let Some(number) = open.pop() {
            let Some(stream) = self.streams.get(&number) else { continue };
            if !needed.insert(number) {
                continue;
            }
            let Some(first) = stream.queue.front() else { continue };
            let behind = first.behind.iter().filter(|(other, number)| !self.has_done(*other, *number));
            open.extend(first.after.iter().chain(behind).map(|(other, _)| *other));
            match &first.step {
                Step::WaitEvent(record) => open.push(record.by.get().0),
                Step::Wait { .. } => any = true,
                _ => {}
            }
        }
        (needed, any)
    }

    /// Runs one piece of work. With a goal, runs work of a stream that has to run to reach the goal. Without
    /// a goal, runs work whose delay has passed. Returns `false` if no stream could run.
    pub(super) fn run_piece(&mut self, goal: Option<&Goal>) -> bool {
        let ready = match goal {
            Some(goal) => {
                let (needed, any) = self.needed(goal);
                let ready: Vec<u64> = needed.into_iter().filter(|stream| self.is_ready(*stream)).collect();
                if !ready.is_empty() || !any {
                    ready
                } else {
                    self.streams.keys().copied().filter(|stream| self.is_ready(*stream)).collect()
                }
            }
            None => {
                let is_due = |first: &Operation| first.since.elapsed() >= self.config.lazy;
                let due = self.streams.iter().filter(|(_, stream)| stream.queue.front().is_some_and(is_due));
                due.map(|(stream, _)| *stream).filter(|stream| self.is_ready(*stream)).collect()
            }
        };
        if ready.is_empty() {
            return false;
        }
        let chosen = ready[self.random(ready.len())];
        self.step(chosen);
        true
    }

    /// Runs a piece of the first operation of a ready stream.
    fn step(&mut self, number: u64) {
        let Some(mut first) = self.streams.get_mut(&number).and_then(|stream| stream.queue.pop_front())
        else {
            return;
        };
        let earlier: Vec<_> = first
            .after
            .iter()
            .filter_map(|(other, _)| self.streams.get(other))
            .map(|s| s.clock.clone())
            .collect();
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let (process, device, context) = (stream.process, stream.device, stream.context);
        stream.clock.join(&first.host);
        earlier.iter().for_each(|clock| stream.clock.join(clock));
        let mut done = true;
        let mut result = Ok(());
        match &mut first.step {
            Step::Record(record) => {
                *record.done.borrow_mut() = Some((stream.clock.clone(), Instant::now()));
            }
            Step::WaitEvent(record) => {
                if let Some((clock, _)) = &*record.done.borrow() {
                    stream.clock.join(clock);
                }
            }
            Step::WaitForEver => {}
            Step::Free(address) => self.free(process, *address),
            Step::Host(call) => {
                done = call.state.get() == HostCallState::Done;
                if !done {
                    call.state.set(HostCallState::Running);
                    // The function is ordered after earlier work, and so is any process that the function
                    // notifies.
                    self.published.join(&stream.clock);
                    if let Some(owner) = self.processes.get_mut(&process) {
                        owner.host_calls.push_back(Rc::clone(call));
                    }
                }
            }
            Step::Write { address, value } => result = self.write_word(number, process, *address, *value),
            Step::Wait { address, .. } => result = self.end_wait(number, process, *address),
            Step::Work { work, progress, is_recorded, intended } => {
                if !*is_recorded {
                    *is_recorded = true;
                    let count = stream.clock.tick(stream.actor);
                    let pid = self.processes.get(&process).map_or(0, |process| process.pid);
                    let by = Rc::new(shadow::TracedOperation {
                        call: first.call.clone(),
                        pid,
                        stream: number,
                        trace: first.trace.clone(),
                        actor: self.streams[&number].actor,
                        count,
                        released_from: self.streams[&number].clock.released_from().clone(),
                    });
                    for (access, intended) in work.accesses().into_iter().zip(intended) {
                        let recorded = self.record_access((process, device, number), access, *intended, &by);
                        result = result.and(recorded);
                    }
                }
                if result.is_ok() {
                    let view = self.processes.get(&process).map(|process| ProcessMemory { process, device });
                    match view.ok_or(Fault).and_then(|view| work.step(progress, &view)) {
                        Ok(all) => done = all,
                        Err(Fault) => {
                            result = Err("it reached memory that went away while it ran".to_owned())
                        }
                    }
                }
            }
        }
        if let Err(what) = result {
            let pid = self.processes.get(&process).map_or(0, |process| process.pid);
            self.findings.add("fault", pid, &format!("{} on stream {number:#x}: {what}", first.call));
            self.lose_context(process, context, codes::ILLEGAL_ADDRESS);
            return;
        }
        let Some(stream) = self.streams.get_mut(&number) else { return };
        if done {
            stream.done = first.number;
        } else {
            stream.queue.push_front(first);
        }
        if stream.destroyed && stream.queue.is_empty() {
            self.remove_stream(number);
        }
    }

    /// Records an access before it happens, and reports its faults. Returns an error if a GPU would also
    /// detect the fault.
    fn record_access(
        &mut self,
        (process, device, stream): (u64, u32, u64),
        access: Access,
        intended: bool,
        by: &Rc<shadow::TracedOperation>,
    ) -> Result<(), String> {
        let Access { address, bytes, writes } = access;
        let verb = if writes { "writes" } else { "reads" };
        let Some(owner) = self.processes.get(&process) else { return Ok(()) };
        let mapping = owner.addresses.reach(address, bytes, device, writes).map_err(|why| {
            let why = match why {
                Unreachable::Unmapped => {
                    "where nothing is mapped (use after unmap or free, or another process's address)"
                }
                Unreachable::OutOfBounds => "which is more than is mapped there",
                Unreachable::NoAccess => "without access for this device (cuMemSetAccess)",
            };
            format!("it {verb} {bytes} bytes at {address:#x}, {why}")
        })?;
        let Target::Device(allocation) = mapping.target.clone() else { return Ok(()) };
        let offset = address - mapping.start;
        let Some(clock) = self.streams.get(&stream).map(|stream| &stream.clock) else { return Ok(()) };
        let wrong = allocation.shadow.borrow_mut().access(offset, offset + bytes, writes, by, clock);
        if let Some((first, unwritten)) = wrong.unwritten {
            let text = format!(
                "{} reads {unwritten} bytes that were never written, from byte {first} of its memory",
                by.call
            );
            self.findings.unwritten(&text, by);
        }
        for race in wrong.races.iter().filter(|_| !intended) {
            let why = match by.was_released_from(&race.earlier) {
                true => "the wait that ordered the two ended because a process was killed",
                false => "nothing orders the two",
            };
            let text = format!(
                "{} of process {} {verb} {} bytes that {} of process {} {}, and {why}",
                by.call,
                by.pid,
                race.bytes,
                race.earlier.call,
                race.earlier.pid,
                if race.wrote { "wrote" } else { "read" },
            );
            self.findings.race(&text, race, by, writes);
        }
        Ok(())
    }

    fn write_word(&mut self, stream: u64, process: u64, address: u64, value: u64) -> Result<(), String> {
        let lost = || format!("it writes a value to {address:#x}, where nothing is mapped any more");
        let (target, offset) = self.word(process, address).ok_or_else(lost)?;
        let (_, name) = Self::load(&target, offset);
        let Some(clock) = self.streams.get(&stream).map(|stream| stream.clock.clone()) else { return Ok(()) };
        if matches!(target, Target::Host(_)) {
            self.published.join(&clock);
        }
        self.words.insert(name, (value, clock));
        match &target {
            Target::Host(memory) => memory.store(offset, value),
            Target::Device(_) => write(&target, offset, &value.to_le_bytes()),
        }
        Ok(())
    }

    /// Records that the process has submitted a write of a word to a stream.
    pub(super) fn record_writer(&mut self, process: u64, address: u64) {
        if let Some((target, offset)) = self.word(process, address)
            && let Some(pid) = self.processes.get(&process).map(|process| process.pid)
        {
            self.writers.insert(Self::load(&target, offset).1, pid);
        }
    }

    /// Ends a wait of a stream for a word. If a stream has written the awaited value, later work of the
    /// waiting stream is ordered after that write. If a host has stored the value, later work is not ordered.
    /// If in addition the process that last submitted a write of the word is dead, the waiting stream's clock
    /// records that the death released the stream.
    fn end_wait(&mut self, stream: u64, process: u64, address: u64) -> Result<(), String> {
        let lost = || format!("it waits for a value at {address:#x}, where nothing is mapped any more");
        let (target, offset) = self.word(process, address).ok_or_else(lost)?;
        let (found, name) = Self::load(&target, offset);
        if let Some((value, clock)) = self.words.get(&name)
            && *value == found
        {
            if let Some(stream) = self.streams.get_mut(&stream) {
                stream.clock.join(clock);
            }
        } else if let Some(pid) = self.writers.get(&name)
            && !self.processes.values().any(|process| process.pid == *pid && !process.is_gone())
            && let Some(stream) = self.streams.get_mut(&stream)
        {
            stream.clock.release_from(*pid);
        }
        Ok(())
    }

    /// Reports waits for words that last longer than the configured limit.
    pub(super) fn report_stuck(&mut self) {
        let mut stuck = Vec::new();
        for (number, stream) in &mut self.streams {
            let Some(first) = stream.queue.front_mut() else { continue };
            let Step::Wait { address, value, since, .. } = &mut first.step else { continue };
            let since = *since.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.config.stuck {
                stuck.push((stream.process, *number, *address, *value));
            }
        }
        for (process, stream, address, value) in stuck {
            let pid = self.processes.get(&process).map_or(0, |process| process.pid);
            let found = self.word(process, address).map(|(target, offset)| Self::load(&target, offset).0);
            let text =
                format!("stream {stream:#x} waits for {value:#x} at {address:#x}, where {found:#x?} is");
            self.findings.add("stuck", pid, &text);
        }
    }

    /// Marks a context as failed, and discards the work of its streams. Streams of other contexts that wait
    /// for an event of this work never continue.
    pub(super) fn lose_context(&mut self, process: u64, context: u64, code: u32) {
        if let Some(context) = self.processes.get_mut(&process).and_then(|p| p.contexts.get_mut(&context)) {
            context.lost.get_or_insert(code);
        }
        for stream in self.streams.values_mut().filter(|s| s.process == process && s.context == context) {
            stream.queue.clear();
        }
    }
}

/// Bytes that a copy transfers to the host.
pub(super) type HostBytes = Rc<RefCell<Vec<u8>>>;
