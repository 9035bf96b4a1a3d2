//! Execution of the calls of clients. A call is answered at once, or when a condition of the simulated device
//! (the [`Goal`] of the call) is fulfilled.

mod capture;
mod context;
mod data;
mod events;
mod sharing;
mod virtual_memory;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use crate::codes;
use crate::engine::Engine;
use crate::engine::goal::Goal;
use crate::engine::process::{Context, Process};
use crate::engine::schedule::HostBytes;
use crate::engine::streams::{Operation, Step};
use crate::wire::{Call, Request, Value};

/// Outcome of a call.
#[derive(Debug)]
pub(in crate::engine) enum CallOutcome {
    Now(Value, Option<OwnedFd>),
    /// The call waits for the goal. After the goal is reached, the completion answers or executes the call.
    Later(Goal, Completion),
}

/// Action that completes a call after its goal is reached.
#[derive(Debug)]
pub(in crate::engine) enum Completion {
    Nothing,
    /// Answer with these bytes.
    Answer(HostBytes),
    /// Execute the call.
    Call(Box<Caller>, Box<Call>, Option<OwnedFd>),
    /// Answer with the host function that the client has to call.
    HostCall,
}

pub(in crate::engine) type CallResult = Result<CallOutcome, u32>;

pub(in crate::engine) fn done() -> CallResult {
    Ok(CallOutcome::Now(Value::None, None))
}

pub(in crate::engine) fn number(value: u64) -> CallResult {
    Ok(CallOutcome::Now(Value::Number(value), None))
}

/// Caller of a call.
#[derive(Debug)]
pub(in crate::engine) struct Caller {
    pub(in crate::engine) process: u64,
    /// Connection on which the call was received.
    pub(in crate::engine) thread: u64,
    pub(in crate::engine) context: u64,
    pub(in crate::engine) capture_mode: u32,
    pub(in crate::engine) trace: Option<String>,
}

/// Returns `true` if a call waits for all work of its context, as on an H200 (driver 580.159).
fn waits_for_all(call: &Call) -> bool {
    matches!(
        call,
        Call::Free { address: 1.. }
            | Call::HostUnregister { .. }
            | Call::IpcCloseMem { .. }
            | Call::ModuleLoad { .. }
            | Call::ModuleUnload { .. }
    )
}

/// Returns `true` if a call is blocked while another thread of its process waits for all work of the context,
/// because that thread holds a lock of the driver on an H200. Returns `false` for calls that write words by
/// streams, wait for or query streams, and open or map memory.
fn is_held_up(call: &Call) -> bool {
    matches!(
        call,
        Call::Alloc { .. }
            | Call::StreamCreate { .. }
            | Call::StreamDestroy { .. }
            | Call::EventCreate { .. }
            | Call::EventRecord { .. }
            | Call::EventDestroy { .. }
            | Call::IpcOpenEvent { .. }
            | Call::HostRegister { .. }
            | Call::ModuleFunction { .. }
            | Call::Launch { .. }
            | Call::LaunchHost { .. }
            | Call::HostToDevice { .. }
            | Call::DeviceToHost { .. }
            | Call::DeviceToDevice { .. }
            | Call::Set { .. }
    )
}

/// Returns the name and the argument of the call if it releases an object.
fn gives_back(call: &Call) -> Option<(&'static str, u64)> {
    Some(match *call {
        Call::PrimaryRelease { device } => ("cuDevicePrimaryCtxRelease", device.into()),
        Call::Release { handle } => ("cuMemRelease", handle),
        Call::Unmap { address, .. } => ("cuMemUnmap", address),
        Call::AddressFree { address, .. } => ("cuMemAddressFree", address),
        Call::Free { address } => ("cuMemFree", address),
        Call::FreeAsync { address, .. } => ("cuMemFreeAsync", address),
        Call::IpcCloseMem { address } => ("cuIpcCloseMemHandle", address),
        Call::HostUnregister { address } => ("cuMemHostUnregister", address),
        Call::StreamDestroy { stream } => ("cuStreamDestroy", stream),
        Call::EventDestroy { event } => ("cuEventDestroy", event),
        Call::GraphDestroy { graph } => ("cuGraphDestroy", graph),
        Call::ModuleUnload { module } => ("cuModuleUnload", module),
        _ => return None,
    })
}

/// Returns the text of the finding for a failed release with this result. Returns `None` for results of a
/// failed device or context, because the argument of the release may be valid.
fn refusal(code: u32) -> Option<&'static str> {
    match code {
        codes::INVALID_VALUE | codes::INVALID_HANDLE => {
            Some("it was given back before, was never made, or is still in use")
        }
        codes::HOST_MEMORY_NOT_REGISTERED => Some("it is not registered"),
        codes::INVALID_CONTEXT => Some("its context is not current, or was released before"),
        _ => None,
    }
}

/// Returns `true` if CUDA's manual guarantees that this call waits for work, so that later calls are ordered
/// after that work.
pub(in crate::engine) fn orders(call: &Call) -> bool {
    matches!(call, Call::Free { .. })
}

impl Engine {
    pub(in crate::engine) fn call(
        &mut self,
        process: u64,
        thread: u64,
        request: Request,
        file: Option<OwnedFd>,
    ) -> CallResult {
        // Hooks of tests don't count as calls of the driver.
        self.calls += u64::from(!matches!(request.call, Call::Piece { .. } | Call::Shared { .. }));
        let published = std::mem::take(&mut self.published);
        Rc::make_mut(&mut self.host).join(&published);
        if self.config.lost_after.is_some_and(|after| self.calls > after) {
            self.lose_device(0);
        }
        let Request { context, capture_mode, trace, call } = request;
        let caller = Caller { process, thread, context, capture_mode, trace };
        self.invalidate_captures(&caller, &call)?;
        let later = |goal, caller, call, file| {
            Ok(CallOutcome::Later(goal, Completion::Call(Box::new(caller), Box::new(call), file)))
        };
        if waits_for_all(&call) && self.context(&caller).is_ok() {
            let goal = self.all_of_context(process, context);
            let waits = !self.is_reached(&goal);
            if let (true, Ok(context)) = (waits, self.context(&caller)) {
                context.locked_until = goal.clone();
            }
            // If the manual documents the wait (`orders`), a program may rely on it.
            if waits || orders(&call) {
                return later(goal, caller, call, file);
            }
        }
        if is_held_up(&call)
            && let Ok(context) = self.context(&caller)
        {
            let goal = context.locked_until.clone();
            if !self.is_reached(&goal) {
                return later(goal, caller, call, file);
            }
        }
        self.make_call(&caller, call, file)
    }

    /// Executes a call whose wait has ended.
    pub(in crate::engine) fn make_call(
        &mut self,
        caller: &Caller,
        call: Call,
        file: Option<OwnedFd>,
    ) -> CallResult {
        let gives_back = gives_back(&call);
        let made = self.make(caller, call, file);
        if let (Some((name, what)), Err(code)) = (gives_back, &made)
            && let Some(why) = refusal(*code)
        {
            let pid = self.processes.get(&caller.process).map_or(0, |process| process.pid);
            let text = format!("{name}({what:#x}) of process {pid} is refused: {why}");
            self.findings.add("refused", pid, &text);
        }
        made
    }

    fn make(&mut self, caller: &Caller, call: Call, file: Option<OwnedFd>) -> CallResult {
        let process = caller.process;
        match call {
            Call::Hello { .. } | Call::Attach { .. } => Err(codes::UNKNOWN),
            Call::Bye => self.bye(process),
            Call::Stats => Ok(CallOutcome::Now(Value::Text(self.stats()), None)),
            Call::Lose { device } => {
                self.lose_device(device);
                done()
            }
            call @ (Call::PrimaryRetain { .. }
            | Call::PrimaryRelease { .. }
            | Call::ContextSynchronize
            | Call::ContextDevice
            | Call::MemInfo
            | Call::StreamCreate { .. }
            | Call::StreamDestroy { .. }
            | Call::StreamQuery { .. }
            | Call::StreamSynchronize { .. }
            | Call::StreamContext { .. }) => self.context_call(caller, call),
            call @ (Call::BeginCapture { .. }
            | Call::EndCapture { .. }
            | Call::IsCapturing { .. }
            | Call::GraphDestroy { .. }) => self.capture_call(caller, &call),
            call @ (Call::StreamWaitEvent { .. }
            | Call::LaunchHost { .. }
            | Call::NextFunction
            | Call::WriteValue { .. }
            | Call::WaitValue { .. }
            | Call::EventCreate { .. }
            | Call::EventRecord { .. }
            | Call::EventQuery { .. }
            | Call::EventSynchronize { .. }
            | Call::EventDestroy { .. }
            | Call::EventElapsed { .. }
            | Call::IpcGetEvent { .. }
            | Call::IpcOpenEvent { .. }) => self.event_call(caller, call),
            call @ (Call::Alloc { .. }
            | Call::Free { .. }
            | Call::AllocAsync { .. }
            | Call::FreeAsync { .. }
            | Call::AddressRange { .. }
            | Call::IpcGetMem { .. }
            | Call::IpcOpenMem { .. }
            | Call::IpcCloseMem { .. }) => self.sharing_call(caller, call),
            call @ (Call::Reserve { .. }
            | Call::AddressFree { .. }
            | Call::Create { .. }
            | Call::Release { .. }
            | Call::Map { .. }
            | Call::Unmap { .. }
            | Call::SetAccess { .. }
            | Call::GetAccess { .. }
            | Call::Export { .. }
            | Call::Import
            | Call::RetainHandle { .. }
            | Call::HandleProperties { .. }) => self.memory_call(caller, call, file),
            call => self.data_call(caller, call, file),
        }
    }

    pub(in crate::engine) fn process(&mut self, number: u64) -> Result<&mut Process, u32> {
        self.processes.get_mut(&number).ok_or(codes::UNKNOWN)
    }

    /// Returns the context that is current for the caller. Returns an error if the context has failed or does
    /// not exist.
    pub(in crate::engine) fn context(&mut self, caller: &Caller) -> Result<&mut Context, u32> {
        let lost = self.lost.clone();
        let context =
            self.process(caller.process)?.contexts.get_mut(&caller.context).ok_or(codes::INVALID_CONTEXT)?;
        match context.lost {
            Some(code) => Err(code),
            None if lost.contains(&context.device) => Err(codes::LAUNCH_FAILED),
            None => Ok(context),
        }
    }

    /// Returns the stream with this handle. The handles 0, 1 and 2 refer to the default stream of the current
    /// context.
    pub(in crate::engine) fn stream(&mut self, caller: &Caller, handle: u64) -> Result<u64, u32> {
        let default = self.context(caller)?.stream;
        if handle <= 2 {
            return Ok(default);
        }
        let owner = &self.processes[&caller.process];
        let number = *owner.streams.get(&handle).ok_or(codes::INVALID_HANDLE)?;
        let stream = self.streams.get(&number).ok_or(codes::INVALID_HANDLE)?;
        let context = owner.contexts.get(&stream.context).ok_or(codes::INVALID_HANDLE)?;
        context.lost.map_or(Ok(number), Err)
    }

    /// Adds an operation to a stream, and returns the number of the operation. If the stream is captured,
    /// discards the operation.
    pub(in crate::engine) fn enqueue(
        &mut self,
        caller: &Caller,
        stream: u64,
        call: &str,
        step: Step,
    ) -> Result<u64, u32> {
        if self.is_capturing(stream)? {
            return Ok(self.streams[&stream].submitted);
        }
        let (is_default, blocking, context) = {
            let stream = self.streams.get(&stream).ok_or(codes::INVALID_HANDLE)?;
            (stream.is_default, stream.blocking, stream.context)
        };
        // The default stream and streams without `NON_BLOCKING` wait for each other.
        let others = self.streams.iter().filter(|(number, other)| {
            **number != stream
                && other.process == caller.process
                && other.context == context
                && (is_default && other.blocking || blocking && other.is_default)
        });
        let after =
            others.filter(|(_, s)| s.submitted > s.done).map(|(number, s)| (*number, s.submitted)).collect();
        let contexts = &self.process(caller.process)?.contexts;
        let behind = Rc::clone(&contexts.get(&context).ok_or(codes::INVALID_CONTEXT)?.barrier);
        let host = Rc::clone(&self.host);
        let stream = self.streams.get_mut(&stream).ok_or(codes::INVALID_HANDLE)?;
        stream.submitted += 1;
        let number = stream.submitted;
        let (call, trace, since) = (call.to_owned(), caller.trace.clone(), Instant::now());
        stream.queue.push_back(Operation { number, call, step, after, behind, host, trace, since });
        Ok(number)
    }

    /// Makes all later work of the context's streams run after their current work.
    pub(in crate::engine) fn hold_up(&mut self, caller: &Caller) {
        let Goal::Streams(all) = self.all_of_context(caller.process, caller.context) else { return };
        if let Ok(process) = self.process(caller.process)
            && let Some(context) = process.contexts.get_mut(&caller.context)
        {
            context.barrier = Rc::new(all);
        }
    }

    /// Returns the goal that all current work of a context has run.
    pub(in crate::engine) fn all_of_context(&self, process: u64, context: u64) -> Goal {
        let streams = self.streams.iter().filter(|(_, s)| s.process == process && s.context == context);
        Goal::Streams(streams.map(|(number, s)| (*number, s.submitted)).collect())
    }

    /// Marks a device as lost: all calls of its contexts return an error from now on.
    pub(in crate::engine) fn lose_device(&mut self, device: u32) {
        if self.lost.contains(&device) {
            return;
        }
        self.lost.push(device);
        let contexts: Vec<_> = self
            .processes
            .iter()
            .flat_map(|(process, p)| {
                p.contexts.iter().filter(|(_, c)| c.device == device).map(|(c, _)| (*process, *c))
            })
            .collect();
        for (process, context) in contexts {
            self.lose_context(process, context, codes::LAUNCH_FAILED);
        }
    }

    fn bye(&mut self, process: u64) -> CallResult {
        let owner = self.process(process)?;
        owner.exited_cleanly = true;
        let (pid, left) = (owner.pid, owner.leftovers());
        if !left.is_empty() {
            self.findings.add(
                "left",
                pid,
                &format!("process {pid} ended by itself and left {}", left.join(", ")),
            );
        }
        done()
    }
}
