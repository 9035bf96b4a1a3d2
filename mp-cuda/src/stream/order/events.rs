//! [`Order::IpcEvents`](super::Order::IpcEvents): order of streams that can't write words, by events of the
//! driver that other processes open.
//!
//! A stream that ticks has [`Clocks::EVENTS`] events, which it uses in turn. To *tick*, the stream records an
//! event, and then calls a function of this process that marks the tick as complete in the stream's clock. So
//! all processes, even without a GPU, can query the progress in the clock, as with words. To *wait*, a
//! process opens the event once, and makes a stream wait for the last record of the event. The last record is
//! the tick, or a later tick of the same stream that was submitted before the wait.
//!
//! | object | lifetime |
//! |---|---|
//! | events of a stream | until the process ends, when the driver frees them; after the stream has ended, another stream of the process uses them |
//! | an opened event | until its maker is dead, [`ipc_collect`](crate::ipc_collect) is called, or the process ends |
//!
//! CUDA's manual leaves the behaviour of an opened event undefined after its maker has destroyed it, so no
//! maker destroys its events. A stream must not wait for an event whose maker is dead, so this process closes
//! the event. A wait that was submitted before is not affected by closing the event.
//!
//! If a process is killed, waits of streams for its work never end, because no host can end them. Waiting
//! hosts get an error.
//!
//! # Safety
//! Unsafe, because events are objects of the driver. Sound, because
//! - events of this process are not destroyed once other processes may have them;
//! - an opened event is removed from the table before it is closed. The lock of the table is held while
//!   events are removed, and while they are found and passed to a stream;
//! - the function that streams call takes a number, and makes one store.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use mp_core::clocks::{Clock, Clocks, Tick};
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_core::words::Member;
use mp_core::{Arena, Members, Recovery};

use crate::device::Device;
use crate::driver::api::DriverHandle;
use crate::driver::context::BoundContext;
use crate::driver::long_calls;
use crate::error::{Error, Result};
use crate::exit::{self, ExitPhase};
use crate::stream::order::choice::key;
use crate::stream::order::tick::{are_of_one_stream, is_complete};

const EVENTS: usize = Clocks::EVENTS;

/// Events for one stream, and the handles by which other processes open them.
#[derive(Debug)]
struct EventSet {
    device: Device,
    events: [DriverHandle; EVENTS],
    names: [[u8; 64]; EVENTS],
}

#[derive(Debug)]
struct EventTable {
    /// Events of streams of this process that exist, each with the first tick of its clock.
    own: Vec<(Tick, Arc<EventSet>)>,
    /// Events of streams that have ended, for new streams.
    free: Vec<Arc<EventSet>>,
    /// Opened events of other processes, by handle and device.
    opened: BTreeMap<([u8; 64], [u8; 16]), OpenedEvent>,
}

/// Event of another process that this process has opened.
#[derive(Debug)]
struct OpenedEvent {
    event: DriverHandle,
    device: Device,
    maker: Member,
}

static EVENT_TABLE: PerProcess<Mutex<EventTable>> = mp_core::per_process!(Mutex::new(EventTable {
    own: Vec::new(),
    free: Vec::new(),
    opened: BTreeMap::new()
}));

/// Events of one clock of this process. Dropping the value makes the events available to another clock.
#[derive(Debug)]
pub(super) struct StreamEvents {
    first: Tick,
    made: Arc<EventSet>,
}

impl EventSet {
    fn new(device: &Device) -> Result<Self> {
        let bound = device.bind()?;
        let mut made =
            Self { device: device.clone(), events: [DriverHandle::NULL; EVENTS], names: [[0; 64]; EVENTS] };
        for i in 0..EVENTS {
            match bound.event_create() {
                Ok((event, name)) => (made.events[i], made.names[i]) = (event, name),
                Err(error) => {
                    made.destroy();
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Destroys the events. The caller guarantees that no other process has opened them.
    fn destroy(&self) {
        let Ok(bound) = self.device.bind() else { return };
        for event in self.events.into_iter().filter(|event| *event != DriverHandle::NULL) {
            // SAFETY: this process made the event, and no longer uses it.
            _ = unsafe { bound.event_destroy(event) };
        }
    }
}

impl StreamEvents {
    /// Assigns events to a clock that has no tick yet.
    pub(super) fn new(device: &Device, clock: &mut Clock) -> Result<Self> {
        let table = {
            let mut table = EVENT_TABLE.lock();
            let at = table.free.iter().position(|one| one.device == *device);
            at.map(|at| table.free.swap_remove(at))
        };
        let made = match table {
            Some(made) => made,
            None => Arc::new(EventSet::new(device)?),
        };
        let first = clock.next()?;
        // From here on, the drop gives the events back.
        let events = Self { first, made };
        EVENT_TABLE.lock().own.push((first, Arc::clone(&events.made)));
        clock.has_events(key(device), &events.made.names)?;
        Ok(events)
    }

    /// Makes the stream record an event, and then call a function that completes the tick.
    ///
    /// # Safety
    /// The stream is alive, belongs to the events' device, and is the stream of this clock.
    pub(super) unsafe fn tick(
        &self,
        bound: &BoundContext<'_>,
        stream: DriverHandle,
        tick: Tick,
    ) -> Result<()> {
        let event = self.made.events[Clocks::event_of(tick)];
        // SAFETY: the caller guarantees that the stream is alive; the event is of its device, and lives until
        // the process ends.
        unsafe { bound.event_record(event, stream) }?;
        // SAFETY: the caller guarantees that the stream is alive.
        unsafe { bound.launch_host(stream, complete_tick, tick.raw()) }
    }
}

impl Drop for StreamEvents {
    fn drop(&mut self) {
        let mut table = EVENT_TABLE.lock();
        table.own.retain(|(tick, _)| !are_of_one_stream(*tick, self.first));
        table.free.push(Arc::clone(&self.made));
    }
}

/// Marks a tick as complete. Called by a stream, on a thread of the driver.
extern "C" fn complete_tick(tick: *mut c_void) {
    if let (Some(tick), Ok(arena)) = (Tick::from_raw(tick.addr() as u64), Arena::current()) {
        Clocks(arena).complete(tick);
    }
}

/// Makes a stream wait for a pending tick. Returns `true` if the stream has to wait, `false` if the tick is
/// complete, or `None` if the tick has no event to wait for.
///
/// # Errors
/// Errors of [`is_complete`]; errors of the driver.
///
/// # Safety
/// The stream is alive, belongs to this device, and is not being captured.
pub(super) unsafe fn wait(device: &Device, stream: DriverHandle, tick: Tick) -> Result<Option<bool>> {
    let mut table = EVENT_TABLE.lock();
    let own =
        table.own.iter().find(|(one, _)| are_of_one_stream(*one, tick)).map(|(_, made)| Arc::clone(made));
    let event = match own {
        Some(made) => made.events[Clocks::event_of(tick)],
        None => {
            let clocks = Clocks(Arena::current()?);
            let maker = clocks.owner(tick);
            let (Some(name), Some(maker)) = (clocks.event(tick, key(device))?, maker) else {
                return Ok(if is_complete(tick)? { Some(false) } else { None });
            };
            match table.open(device, name, maker) {
                Ok(event) => event,
                // Its owner may have ended since.
                Err(_) if is_complete(tick)? => return Ok(Some(false)),
                Err(_) if clocks.owner_is_gone(tick.clock()) => {
                    return Err(Error::ProducerDied { pid: None });
                }
                Err(error) => return Err(error),
            }
        }
    };
    // A recovery may find the death later. A process that ended by itself has completed its ticks.
    let is_gone = Clocks(Arena::current()?).owner_is_gone(tick.clock());
    if is_complete(tick)? {
        return Ok(Some(false));
    }
    if is_gone {
        return Err(Error::ProducerDied { pid: None });
    }
    // SAFETY: the caller guarantees that the stream is alive; the event was made or opened by this process,
    // and is in the table, whose lock is held.
    unsafe { device.bind()?.stream_wait_event(stream, event) }?;
    Ok(Some(true))
}

impl EventTable {
    /// Returns an event of another process. Opens the event if this process has not opened it.
    fn open(&mut self, device: &Device, name: [u8; 64], maker: Member) -> Result<DriverHandle> {
        let key = (name, device.uuid().0);
        match self.opened.get(&key) {
            Some(known) if known.maker == maker => return Ok(known.event),
            // The driver has given the name of a dead process's event to an event of another process.
            Some(_) => close(self.opened.remove(&key).into_iter().collect()),
            None => {}
        }
        exit::register(ExitPhase::Events, leave);
        Recovery::on_deaths(crate::on_deaths);
        close(self.take_orphans());
        let event = device.bind()?.event_open(name)?;
        let opened = OpenedEvent { event, device: device.clone(), maker };
        self.opened.insert(key, opened);
        Ok(event)
    }

    /// Removes the opened events of dead processes. The caller closes them.
    fn take_orphans(&mut self) -> Vec<OpenedEvent> {
        let Some(arena) = Arena::get() else { return Vec::new() };
        // Each query takes system calls.
        let mut makers = BTreeMap::new();
        let mut is_gone = |maker| *makers.entry(maker).or_insert_with(|| Members(arena).is_dead(maker));
        let orphans = self.opened.iter().filter(|(_, one)| is_gone(one.maker));
        let orphans: Vec<_> = orphans.map(|(name, _)| *name).collect();
        orphans.iter().filter_map(|name| self.opened.remove(name)).collect()
    }

    /// Removes all opened events. The caller closes them.
    fn take_all(&mut self) -> Vec<OpenedEvent> {
        std::mem::take(&mut self.opened).into_values().collect()
    }
}

/// Closes events that are not in the table. Does not wait for pending work of an event: the driver closes
/// such an event later (`cuEventDestroy`).
fn close(opened: Vec<OpenedEvent>) {
    for one in opened {
        let Ok(bound) = one.device.bind() else { continue };
        // SAFETY: this process opened the event, and no other code can find it.
        _ = unsafe { bound.event_destroy(one.event) };
    }
}

/// Closes the opened events of dead processes, after a reclaim. Does nothing if the lock of the table is
/// held, because the calling thread may hold it. Then the next opening, or the next death, closes the events.
pub(crate) fn on_deaths() {
    let Some(mut table) = EVENT_TABLE.try_lock() else { return };
    let orphans = table.take_orphans();
    // Closing may block, and no thread waits for this lock meanwhile.
    drop(table);
    close(orphans);
}

/// Closes all opened events. They are opened again when a stream has to wait for them.
pub(crate) fn close_all() {
    let all = EVENT_TABLE.lock().take_all();
    close(all);
}

/// Closes the opened events before the process exits. Submitted waits are not affected. If the driver would
/// block, leaves the events to the driver.
fn leave() {
    if long_calls::is_under_way() {
        return;
    }
    if let Some(mut table) = EVENT_TABLE.try_lock() {
        close(table.take_all());
    }
}
