//! Calls that order streams: events, and 64-bit words that streams write or wait for.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use crate::codes;
use crate::engine::Engine;
use crate::engine::calls::sharing::{handle, named};
use crate::engine::calls::{CallOutcome, CallResult, Caller, Completion, done, number};
use crate::engine::goal::Goal;
use crate::engine::streams::{Event, EventCore, HostCall, HostCallState, Record, Step};
use crate::wire::{Call, Value};

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS`.
const MEMORY_OPERATIONS: i32 = 122;
/// `CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED`.
const EVENTS_BETWEEN: i32 = 125;

impl Engine {
    pub(in crate::engine) fn event_call(&mut self, caller: &Caller, call: Call) -> CallResult {
        match call {
            Call::EventCreate { flags } => self.create_event(caller, flags),
            Call::EventRecord { event, stream } => {
                let stream = self.stream(caller, stream)?;
                let event = self.event(caller, event)?;
                if event.context != self.streams[&stream].context {
                    return Err(codes::INVALID_HANDLE);
                }
                if self.is_capturing(stream)? {
                    // The recording is a node of the graph, so earlier recordings stay valid.
                    return done();
                }
                let record = Rc::new(Record::default());
                let number =
                    self.enqueue(caller, stream, "cuEventRecord", Step::Record(Rc::clone(&record)))?;
                record.by.set((stream, number));
                *event.core.record.borrow_mut() = Some(record);
                done()
            }
            Call::StreamWaitEvent { stream, event } => {
                let stream = self.stream(caller, stream)?;
                let event = self.event(caller, event)?;
                if self.is_capturing(stream)? {
                    // The event was recorded outside of the capture.
                    self.spoil_capture(stream);
                    return Err(codes::STREAM_CAPTURE_ISOLATION);
                }
                let step = if self.is_over(caller, &event) {
                    Step::WaitForEver
                } else {
                    match &*event.core.record.borrow() {
                        None => return done(),
                        Some(record) => Step::WaitEvent(Rc::clone(record)),
                    }
                };
                self.enqueue(caller, stream, "cuStreamWaitEvent", step)?;
                done()
            }
            Call::EventQuery { event } => {
                let event = self.event(caller, event)?;
                if self.is_over(caller, &event) {
                    return Err(codes::NOT_READY);
                }
                let record = event.core.record.borrow().clone();
                let Some(goal) = record.map(Goal::Record) else { return done() };
                if !self.is_reached(&goal) {
                    return Err(codes::NOT_READY);
                }
                self.observe(&goal);
                done()
            }
            Call::EventSynchronize { event } => {
                let event = self.event(caller, event)?;
                if self.is_over(caller, &event) {
                    return Ok(CallOutcome::Later(Goal::Record(Rc::default()), Completion::Nothing));
                }
                let record = event.core.record.borrow().clone();
                record.map_or_else(done, |record| {
                    Ok(CallOutcome::Later(Goal::Record(record), Completion::Nothing))
                })
            }
            Call::EventDestroy { event } => {
                let process = self.process(caller.process)?;
                let handle = event;
                let event = process.events.remove(&handle).ok_or(codes::INVALID_HANDLE)?;
                process.unused.events.push(handle);
                if !event.imported {
                    event.core.is_over.set(true);
                    event.core.is_destroyed.set(true);
                } else if event.core.is_destroyed.get() {
                    self.report_over(caller);
                }
                done()
            }
            Call::EventElapsed { start, end } => {
                let (start, end) = (self.event(caller, start)?, self.event(caller, end)?);
                if (start.core.flags | end.core.flags) & NO_TIMING != 0 {
                    return Err(codes::INVALID_HANDLE);
                }
                let time = |event: &Event| {
                    let record = event.core.record.borrow().clone().ok_or(codes::INVALID_HANDLE)?;
                    let done = record.done.borrow();
                    done.as_ref().map(|(_, at)| *at).ok_or(codes::NOT_READY)
                };
                let (start, end) = (time(&start)?, time(&end)?);
                number(u64::try_from(end.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX))
            }
            Call::IpcGetEvent { event } => {
                let event = self.event(caller, event)?;
                if event.core.flags & INTERPROCESS == 0 || event.imported {
                    return Err(codes::INVALID_HANDLE);
                }
                Ok(CallOutcome::Now(Value::Bytes(handle(self.name_event(&event.core))), None))
            }
            Call::IpcOpenEvent { handle } => self.open_event(caller, &handle),
            Call::LaunchHost { stream, function, data } => {
                let stream = self.stream(caller, stream)?;
                let call = Rc::new(HostCall { function, data, state: Cell::new(HostCallState::Queued) });
                self.enqueue(caller, stream, "cuLaunchHostFunc", Step::Host(call))?;
                done()
            }
            Call::NextFunction => {
                if let Some(over) = self.process(caller.process)?.host_call.take() {
                    over.state.set(HostCallState::Done);
                }
                Ok(CallOutcome::Later(Goal::HostCall(caller.process), Completion::HostCall))
            }
            Call::WriteValue { stream, address, value } => {
                let stream = self.word_stream(caller, stream, address)?;
                self.enqueue(caller, stream, "cuStreamWriteValue64", Step::Write { address, value })?;
                self.record_writer(caller.process, address);
                done()
            }
            Call::WaitValue { stream, address, value, flags } => {
                let stream = self.word_stream(caller, stream, address)?;
                if flags > 3 {
                    return Err(codes::INVALID_VALUE);
                }
                let step = Step::Wait { address, value, flags, since: None };
                self.enqueue(caller, stream, "cuStreamWaitValue64", step)?;
                done()
            }
            _ => Err(codes::UNKNOWN),
        }
    }

    fn event(&mut self, caller: &Caller, event: u64) -> Result<Event, u32> {
        self.context(caller)?;
        self.process(caller.process)?.events.get(&event).cloned().ok_or(codes::INVALID_HANDLE)
    }

    /// Returns `true` if the event was imported, and its maker has destroyed it or ended. The behaviour of
    /// such an event is undefined, so the use is reported.
    fn is_over(&mut self, caller: &Caller, event: &Event) -> bool {
        let is_over = event.imported && event.core.is_over.get();
        if is_over {
            self.report_over(caller);
        }
        is_over
    }

    fn report_over(&mut self, caller: &Caller) {
        let pid = self.processes.get(&caller.process).map_or(0, |process| process.pid);
        let text =
            format!("process {pid} uses an event of another process, which has destroyed it or is gone");
        self.findings.add("event-over", pid, &text);
    }

    fn create_event(&mut self, caller: &Caller, flags: u32) -> CallResult {
        let device = self.context(caller)?.device;
        if flags & !7 != 0 || flags & INTERPROCESS != 0 && flags & NO_TIMING == 0 {
            return Err(codes::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            let info = self.config.devices.iter().find(|one| one.index == device);
            if info.is_none_or(|info| info.attribute(EVENTS_BETWEEN) == 0) {
                return Err(codes::NOT_SUPPORTED);
            }
            let is_one = |event: &&Event| event.core.flags & INTERPROCESS != 0 && !event.imported;
            let there: usize =
                self.processes.values().map(|p| p.events.values().filter(is_one).count()).sum();
            if there >= self.config.events {
                return Err(codes::OUT_OF_MEMORY);
            }
        }
        let (name, record, [is_over, is_destroyed]) = Default::default();
        let core = Rc::new(EventCore { name, flags, device, record, is_over, is_destroyed });
        self.give_event(caller, core, false)
    }

    /// Returns the name by which other processes open an event. Reuses names of ended events, like drivers
    /// that reuse names of dead processes.
    fn name_event(&mut self, core: &Rc<EventCore>) -> u64 {
        if let Some(name) = core.name.get() {
            return name;
        }
        let is_free = |core: &Weak<EventCore>| core.upgrade().is_none_or(|core| core.is_over.get());
        let unused = self.shared_events.iter().find(|(_, core)| is_free(core)).map(|(name, _)| *name);
        let name = unused.unwrap_or_else(|| self.fresh());
        self.shared_events.insert(name, Rc::downgrade(core));
        core.name.set(Some(name));
        name
    }

    fn open_event(&mut self, caller: &Caller, bytes: &[u8]) -> CallResult {
        let device = self.context(caller)?.device;
        let id = named(bytes).ok_or(codes::INVALID_HANDLE)?;
        let core = self.shared_events.get(&id).and_then(Weak::upgrade).ok_or(codes::INVALID_HANDLE)?;
        if core.is_over.get() || core.device != device {
            return Err(codes::INVALID_HANDLE);
        }
        let is_own = |event: &Event| !event.imported && Rc::ptr_eq(&event.core, &core);
        if self.process(caller.process)?.events.values().any(is_own) {
            return Err(codes::INVALID_CONTEXT);
        }
        self.give_event(caller, core, true)
    }

    /// Creates a handle of an event for the calling process.
    fn give_event(&mut self, caller: &Caller, core: Rc<EventCore>, imported: bool) -> CallResult {
        let handle = self.handle(caller.process, |unused| &mut unused.events);
        let event = Event { core, context: caller.context, imported };
        self.process(caller.process)?.events.insert(handle, event);
        number(handle)
    }

    /// Returns the stream of a write of a word, or of a wait for a word. Returns an error if the device does
    /// not support such operations, or the address is neither mapped nor registered.
    fn word_stream(&mut self, caller: &Caller, stream: u64, address: u64) -> Result<u64, u32> {
        let stream = self.stream(caller, stream)?;
        let device = self.streams[&stream].device;
        let info = self.config.devices.iter().find(|one| one.index == device);
        if info.is_none_or(|info| info.attribute(MEMORY_OPERATIONS) == 0) {
            return Err(codes::NOT_SUPPORTED);
        }
        let addresses = &self.process(caller.process)?.addresses;
        if !address.is_multiple_of(8) || addresses.reach(address, 8, device, true).is_err() {
            return Err(codes::INVALID_VALUE);
        }
        Ok(stream)
    }
}
