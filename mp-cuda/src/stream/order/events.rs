//! The order of devices whose streams don't write words: by events of the driver that other processes open.
//!
//! A stream that ticks has some events ([`Clocks::EVENTS`]), of which it takes one after another. To *tick* it records one, then has
//! a function of this process called which says in the clock that the tick is done: so queries, last uses and the reuse of memory are what they
//! are with words, in processes without a GPU, too. To *wait* is to open the event, once, and to have a stream wait for what was
//! recorded in it last: that is the tick, or a later one of the same stream, which was submitted before this wait as well.
//!
//! | what | for how long |
//! |---|---|
//! | the events of a stream | until the process ends, which leaves them to the driver: when the stream has ended, another one of the process has them |
//! | an event that was opened | until its maker is gone, memory of others is [collected](crate::ipc_collect), or the process ends |
//!
//! What an opened event does is undefined when its maker has destroyed it, says the manual; so no maker does. To wait for one whose maker is gone
//! is not safe; to close it is what the manual asks for. What a stream waits for is bound when it is told to: to close takes nothing from it.
//!
//! What waits on the device for a process that is killed is not released: no host can end such a wait. Hosts are told.
//!
//! # Safety
//! Unsafe, because events are objects of the driver; sound, because
//! - events that were made here are not destroyed, once other processes may know them; those that were opened are taken out under the lock
//!   under which they are looked up and given to a stream, before they are closed;
//! - the function that streams call takes a number, and does one store.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use mp_core::Arena;
use mp_core::clocks::{Clock, Clocks, Tick};
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutant;
use mp_core::mutex::Mutex;
use mp_core::words::Member;

use crate::device::Device;
use crate::driver::api::Handle;
use crate::driver::context::Bound;
use crate::driver::long_calls;
use crate::error::{Error, Result};
use crate::exit::{self, Part};
use crate::stream::order::chosen::key;
use crate::stream::order::clock::{are_of_one_stream, is_complete};

const EVENTS: usize = Clocks::EVENTS;

/// The events of one stream at a time, and their names in other processes.
#[derive(Debug)]
struct Made {
    device: Device,
    events: [Handle; EVENTS],
    names: [[u8; 64]; EVENTS],
}

#[derive(Debug)]
struct Known {
    /// Of clocks of this process that have owners.
    own: Vec<(Tick, Arc<Made>)>,
    /// Of streams that have ended.
    free: Vec<Arc<Made>>,
    /// Other processes', by their names and the device.
    opened: BTreeMap<([u8; 64], [u8; 16]), Opened>,
}

/// Another process's event, as this one has opened it.
#[derive(Debug)]
struct Opened {
    event: Handle,
    device: Device,
    maker: Member,
}

static KNOWN: PerProcess<Mutex<Known>> = PerProcess::new(
    [const { Mutex::new(Known { own: Vec::new(), free: Vec::new(), opened: BTreeMap::new() }) }; GENERATIONS],
);

/// The events of a clock of this process.
#[derive(Debug)]
pub(super) struct StreamEvents {
    first: Tick,
    made: Arc<Made>,
}

impl Made {
    fn new(device: &Device) -> Result<Self> {
        let bound = device.bind()?;
        let mut made =
            Self { device: device.clone(), events: [Handle::NULL; EVENTS], names: [[0; 64]; EVENTS] };
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

    /// No other process knows of them.
    fn destroy(&self) {
        let Ok(bound) = self.device.bind() else { return };
        for event in self.events.into_iter().filter(|event| *event != Handle::NULL) {
            // SAFETY: it was made here, and is used no more.
            _ = unsafe { bound.event_destroy(event) };
        }
    }
}

impl StreamEvents {
    /// Gives events to a clock that has no tick yet.
    pub(super) fn new(device: &Device, clock: &mut Clock) -> Result<Self> {
        let known = {
            let mut known = KNOWN.lock();
            let at = known.free.iter().position(|one| one.device == *device);
            at.map(|at| known.free.swap_remove(at))
        };
        let made = match known {
            Some(made) => made,
            None => Arc::new(Made::new(device)?),
        };
        let first = clock.next()?;
        // From here on they are given back by the drop.
        let events = Self { first, made };
        KNOWN.lock().own.push((first, Arc::clone(&events.made)));
        clock.has_events(key(device), &events.made.names)?;
        Ok(events)
    }

    /// Has the stream record an event and say that it has. The order is the driver's then.
    ///
    /// # Safety
    /// The stream is alive, of the events' device, and the clock's own.
    pub(super) unsafe fn tick(&self, bound: &Bound<'_>, stream: Handle, tick: Tick) -> Result<()> {
        let event = self.made.events[Clocks::event_of(tick)];
        // SAFETY: the stream is alive, say the callers; the event was made for its device, and is there until the process ends.
        unsafe { bound.event_record(event, stream) }?;
        // SAFETY: the stream is alive, say the callers.
        unsafe { bound.launch_host(stream, has_come, tick.raw()) }
    }
}

impl Drop for StreamEvents {
    fn drop(&mut self) {
        let mut known = KNOWN.lock();
        known.own.retain(|(tick, _)| !are_of_one_stream(*tick, self.first));
        if !mutant!("cuda.events.not-reused") {
            known.free.push(Arc::clone(&self.made));
        }
    }
}

/// What a stream calls when it has come to a tick, on a thread of the driver's.
extern "C" fn has_come(tick: *mut c_void) {
    if let (Some(tick), Ok(arena)) = (Tick::from_raw(tick.addr() as u64), Arena::current()) {
        arena.clocks().complete(tick);
    }
}

/// Has a stream wait for a pending tick; whether it has to, or `None` if there is no event that it can wait for.
///
/// # Errors
/// As [`is_complete`]; what the driver refuses.
///
/// # Safety
/// The stream is alive, of this device, and not being captured.
pub(super) unsafe fn wait(device: &Device, stream: Handle, tick: Tick) -> Result<Option<bool>> {
    let mut known = KNOWN.lock();
    let own =
        known.own.iter().find(|(one, _)| are_of_one_stream(*one, tick)).map(|(_, made)| Arc::clone(made));
    let event = match own {
        Some(made) => made.events[Clocks::event_of(tick)],
        None => {
            let clocks = Arena::current()?.clocks();
            let maker = clocks.owner(tick);
            let (Some(name), Some(maker)) = (clocks.event(tick, key(device))?, maker) else {
                return Ok(if is_complete(tick)? { Some(false) } else { None });
            };
            match known.open(device, name, maker) {
                Ok(event) => event,
                // Its owner may have ended meanwhile.
                Err(_) if is_complete(tick)? => return Ok(Some(false)),
                Err(_) if clocks.owner_is_gone(tick.clock()) => {
                    return Err(Error::ProducerDied { pid: None });
                }
                Err(error) => return Err(error),
            }
        }
    };
    // A sweep may find that later. What has ended by itself has left its ticks complete.
    let is_gone = Arena::current()?.clocks().owner_is_gone(tick.clock());
    if is_complete(tick)? {
        return Ok(Some(false));
    }
    if is_gone {
        return Err(Error::ProducerDied { pid: None });
    }
    // SAFETY: the stream is alive, say the callers; the event was made or opened here, and it is in the table, whose lock is held.
    unsafe { device.bind()?.stream_wait_event(stream, event) }?;
    Ok(Some(true))
}

impl Known {
    /// Another process's event, opened once.
    fn open(&mut self, device: &Device, name: [u8; 64], maker: Member) -> Result<Handle> {
        let key = (name, device.uuid().0);
        match self.opened.get(&key) {
            Some(known) if known.maker == maker => return Ok(known.event),
            // The driver has given the name of a process that is gone to another one's event.
            Some(_) => close(self.opened.remove(&key).into_iter().collect()),
            None => {}
        }
        exit::watch(Part::Events, leave);
        Arena::on_deaths(crate::deaths);
        close(self.take(Which::Orphans));
        let event = device.bind()?.event_open(name)?;
        let opened = Opened { event, device: device.clone(), maker };
        self.opened.insert(key, opened);
        Ok(event)
    }

    /// Takes those out that are to be closed.
    fn take(&mut self, which: Which) -> Vec<Opened> {
        let Some(arena) = Arena::get() else { return Vec::new() };
        // To ask takes calls of the kernel.
        let mut makers: Vec<(Member, bool)> = Vec::new();
        let mut is_gone = |maker: Member| match makers.iter().find(|(known, _)| *known == maker) {
            Some((_, gone)) => *gone,
            None => {
                makers.push((maker, arena.is_dead(maker)));
                makers.last().is_some_and(|(_, gone)| *gone)
            }
        };
        let over = self.opened.iter().filter(|(_, one)| which == Which::All || is_gone(one.maker));
        let over: Vec<_> = over.map(|(name, _)| *name).collect();
        over.iter().filter_map(|name| self.opened.remove(name)).collect()
    }
}

/// Which of the events that were opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    All,
    /// Of processes that are gone.
    Orphans,
}

/// Closes events that no code finds any more. The driver does it when their work is done, if it is not; the caller doesn't wait for that
/// (`cuEventDestroy`).
fn close(opened: Vec<Opened>) {
    for one in opened {
        let Ok(bound) = one.device.bind() else { continue };
        if !mutant!("cuda.events.not-closed") {
            // SAFETY: it was opened here, and no code can find it any more.
            _ = unsafe { bound.event_destroy(one.event) };
        }
    }
}

/// Members were swept: closes what they had made. The thread that calls this may have come here out of any wait: if another one has
/// the lock, the next event that is opened closes them, or the next death.
pub(crate) fn deaths() {
    let Some(mut known) = KNOWN.try_lock() else { return };
    let orphans = known.take(Which::Orphans);
    // Should the driver have the caller wait, none waits for this lock meanwhile.
    drop(known);
    close(orphans);
}

/// Closes all that were opened. They are opened again when a stream is to wait for one.
pub(crate) fn give_up() {
    let all = KNOWN.lock().take(Which::All);
    close(all);
}

/// The process is about to end: what its streams wait for is bound. Where the driver would have it wait, they are left to its end.
fn leave() {
    if long_calls::is_under_way() {
        return;
    }
    if let Some(mut known) = KNOWN.try_lock() {
        close(known.take(Which::All));
    }
}
