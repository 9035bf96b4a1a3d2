//! Calls about contexts and streams, and the end of contexts, streams and processes.

use std::rc::Rc;
use std::time::Instant;

use crate::codes;
use crate::engine::Engine;
use crate::engine::calls::{CallOutcome, CallResult, Caller, Completion, done, number};
use crate::engine::goal::Goal;
use crate::engine::memory::{Kind, Target};
use crate::engine::process::Context;
use crate::engine::races::clock::Clock;
use crate::engine::streams::Stream;
use crate::wire::{Call, Value};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

impl Engine {
    pub(in crate::engine) fn context_call(&mut self, caller: &Caller, call: Call) -> CallResult {
        match call {
            Call::PrimaryRetain { device } => self.retain(caller.process, device),
            Call::PrimaryRelease { device } => self.release(caller.process, device),
            Call::ContextSynchronize => {
                self.context(caller)?;
                Ok(CallOutcome::Later(
                    self.all_of_context(caller.process, caller.context),
                    Completion::Nothing,
                ))
            }
            Call::ContextDevice => {
                let device = self.context(caller)?.device;
                let devices = &self.process(caller.process)?.devices;
                number(devices.iter().position(|one| one.index == device).unwrap_or(0) as u64)
            }
            Call::MemInfo => {
                let device = self.context(caller)?.device;
                let total =
                    self.config.devices.iter().find(|one| one.index == device).map_or(0, |one| one.bytes);
                Ok(CallOutcome::Now(Value::Pair(total - self.used(device), total), None))
            }
            Call::StreamCreate { flags } => {
                let device = self.context(caller)?.device;
                if flags & !NON_BLOCKING != 0 {
                    return Err(codes::INVALID_VALUE);
                }
                let blocking = flags & NON_BLOCKING == 0;
                let stream = self.new_stream(caller.process, caller.context, device, blocking, false);
                let handle = self.handle(caller.process, |unused| &mut unused.streams);
                self.process(caller.process)?.streams.insert(handle, stream);
                number(handle)
            }
            Call::StreamDestroy { stream } => self.destroy_stream(caller, stream),
            Call::StreamQuery { stream } => {
                let stream = self.stream(caller, stream)?;
                self.not_in_capture(stream)?;
                let goal = Goal::Streams(vec![(stream, self.streams[&stream].submitted)]);
                if !self.is_reached(&goal) {
                    return Err(codes::NOT_READY);
                }
                self.observe(&goal);
                done()
            }
            Call::StreamSynchronize { stream } => {
                let stream = self.stream(caller, stream)?;
                self.not_in_capture(stream)?;
                let goal = Goal::Streams(vec![(stream, self.streams[&stream].submitted)]);
                Ok(CallOutcome::Later(goal, Completion::Nothing))
            }
            Call::StreamContext { stream } => {
                let stream = self.stream(caller, stream)?;
                number(self.streams[&stream].context)
            }
            _ => Err(codes::UNKNOWN),
        }
    }

    fn retain(&mut self, process: u64, number_seen: u32) -> CallResult {
        let device = self.process(process)?.device(number_seen).ok_or(codes::INVALID_DEVICE)?.index;
        if self.lost.contains(&device) {
            return Err(codes::DEVICE_UNAVAILABLE);
        }
        let known = self.process(process)?.contexts.iter_mut().find(|(_, context)| context.device == device);
        if let Some((handle, context)) = known {
            context.retained += 1;
            return number(*handle);
        }
        let handle = self.fresh();
        let stream = self.new_stream(process, handle, device, false, true);
        let (barrier, locked_until) = (Rc::default(), Goal::Streams(Vec::new()));
        let context = Context { device, retained: 1, lost: None, barrier, locked_until, stream };
        self.process(process)?.contexts.insert(handle, context);
        number(handle)
    }

    fn release(&mut self, process: u64, number_seen: u32) -> CallResult {
        let device = self.process(process)?.device(number_seen).ok_or(codes::INVALID_DEVICE)?.index;
        let contexts = &mut self.process(process)?.contexts;
        let known = contexts.iter_mut().find(|(_, context)| context.device == device);
        let (handle, context) = known.ok_or(codes::INVALID_CONTEXT)?;
        context.retained -= 1;
        let (handle, left) = (*handle, context.retained);
        if left == 0 {
            self.end_context(process, handle);
        }
        done()
    }

    /// Ends a context and its objects: streams with their work, events, registrations, and allocations of
    /// `cuMemAlloc`.
    fn end_context(&mut self, process: u64, context: u64) {
        let Some(owner) = self.processes.get_mut(&process) else { return };
        let Some(ended) = owner.contexts.remove(&context) else { return };
        owner.events.retain(|_, event| {
            let ends = event.context == context;
            if ends && !event.imported {
                event.core.is_over.set(true);
            }
            !ends
        });
        let of_device = |target: &Target| matches!(target, Target::Device(a) if a.device == ended.device);
        let legacy: Vec<_> = owner
            .addresses
            .mapped
            .values()
            .filter(|m| (m.kind.has_pieces() || matches!(m.kind, Kind::Opened(_))) && of_device(&m.target))
            .map(|m| (m.start, m.size))
            .collect();
        for (start, size) in legacy {
            owner.addresses.end(start);
            owner.addresses.pieces.retain(|at, _| !(start..start + size).contains(at));
            owner.addresses.freeing.retain(|at| !(start..start + size).contains(at));
        }
        self.streams.retain(|number, stream| {
            let ends = stream.process == process && stream.context == context;
            if ends {
                owner.streams.retain(|_, of| of != number);
            }
            !ends
        });
    }

    fn new_stream(
        &mut self,
        process: u64,
        context: u64,
        device: u32,
        blocking: bool,
        is_default: bool,
    ) -> u64 {
        let number = self.fresh();
        self.actors += 1;
        let stream = Stream {
            process,
            context,
            device,
            blocking,
            is_default,
            queue: std::collections::VecDeque::new(),
            submitted: 0,
            done: 0,
            clock: Clock::default(),
            actor: self.actors,
            destroyed: false,
            capture: None,
        };
        self.streams.insert(number, stream);
        number
    }

    fn destroy_stream(&mut self, caller: &Caller, handle: u64) -> CallResult {
        if handle <= 2 {
            return Err(codes::INVALID_HANDLE);
        }
        let number = self.stream(caller, handle)?;
        let process = self.process(caller.process)?;
        process.streams.remove(&handle);
        process.unused.streams.push(handle);
        let pid = process.pid;
        let Some(stream) = self.streams.get_mut(&number) else { return Err(codes::INVALID_HANDLE) };
        stream.destroyed = true;
        let left = stream.queue.len();
        if left == 0 {
            self.remove_stream(number);
        } else {
            let text = format!("process {pid} destroyed a stream with {left} operations that it had not run");
            self.findings.add("destroyed-with-work", pid, &text);
        }
        done()
    }

    /// Removes a stream that has no handle and has run all its work. Later calls of hosts are ordered after
    /// this work.
    pub(in crate::engine) fn remove_stream(&mut self, number: u64) {
        if let Some(stream) = self.streams.remove(&number) {
            self.published.join(&stream.clock);
        }
    }

    /// Records the end of a process, whose descriptors the kernel has closed. After a kill, its work
    /// continues for the configured time.
    pub(in crate::engine) fn gone(&mut self, process: u64) {
        let late = self.config.late;
        if let Some(owner) = self.processes.get_mut(&process) {
            let late = if owner.exited_cleanly { std::time::Duration::ZERO } else { late };
            owner.gone_at.get_or_insert_with(|| Instant::now() + late);
        }
    }

    /// Returns the earliest time at which the work of a dead process ends.
    pub(in crate::engine) fn next_end(&self) -> Option<Instant> {
        self.processes.values().filter_map(|process| process.gone_at).min()
    }

    /// Removes the dead processes whose work has continued for the configured time, and discards their
    /// remaining work.
    pub(in crate::engine) fn end_processes(&mut self) {
        let now = Instant::now();
        let over = self.processes.iter().filter(|(_, p)| p.gone_at.is_some_and(|at| at <= now));
        for number in over.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.streams.retain(|_, stream| stream.process != number);
            let Some(owner) = self.processes.remove(&number) else { continue };
            for event in owner.events.values().filter(|event| !event.imported) {
                event.core.is_over.set(true);
            }
            for mapping in owner.addresses.mapped.values().filter(|mapping| mapping.kind == Kind::Legacy) {
                self.report_open_elsewhere(owner.pid, &mapping.target, "ended");
            }
        }
    }
}
