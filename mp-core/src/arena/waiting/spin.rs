//! How long to look before sleeping.
//!
//! Sleeping costs a wake-up: from the moment at which another process begins it to the moment at which the sleeper runs, and the
//! system call that the other process makes meanwhile. So a thread looks for as long as both take, and sleeps then: whatever the
//! wait turns out to be, it costs no more than twice the better choice (Karlin et al., *Competitive randomized algorithms for
//! non-uniform problems*, 1990). Where that never pays, it looks for less, down to [`LEAST`].
//! Where it sleeps, and would have found what it waited for in twice that time, it looks for up to twice as long from then on: for such
//! a wait, that is within twice of the better choice, too.
//!
//! # Two sides that both sleep
//! Where two processes answer each other, and each sleeps while the other works, an answer comes a wake-up later: that of the side
//! which sends it. Each side by itself is right to sleep then, and both together would never get out of it. To look for twice as long
//! finds an answer whose sender sleeps still. One such answer that is found by looking, and no side sleeps any more.
//!
//! # A processor that other threads need
//! A thread that looks lets others run in between. If one of them runs for the rest of the look's time or longer, the look has not paid,
//! even if something was found by it: no process wakes a thread that looks, so that it has waited for its turn behind that one; the
//! kernel could have given a sleeper another processor, or this one sooner.
//!
//! # What a wake-up costs
//! is measured where it happens, since it differs by ten times between machines and with what they do: a process
//! that wakes a sleeper notes the time in the parking word (`parking`), and the sleeper subtracts; and the process that wakes one
//! takes the time of its system call, which on a virtual machine is a third of it all. [`COST`] follows these figures, each process's own.
//!
//! # No more spinning threads than processors
//! A thread that is about to look for longer than [`LEAST`] takes the *seat* of the processor that it runs on: one word of the
//! arena for each of the first [`SEATS`] processors. If the seat is taken, another thread looks there already, and this one
//! sleeps at once. (A thread that moves to another processor meanwhile keeps its seat: there are as many as processors.)
//!
//! | seat | changed by | killed there |
//! |---|---|---|
//! | 0: free → owner: member + 1 | a thread of that member, by one swap | the seat names a dead member: threads on that processor sleep at once, until the member is swept |
//! | owner → 0 | the same thread, by one store | likewise |
//! | dead owner → 0 | the process that sweeps the member, before its slot gets another tenant, by one swap | it is swept by another one |
//!
//! Nothing but time depends on a seat.

use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::arena::layout::control;
use crate::mem::{Mem, Word};
use crate::sync::Ordering;
use crate::sync::shared::AtomicU32;
use crate::sys::processors;
use crate::words::Member;

/// How a call that waits spends its time before it sleeps.
///
/// ```
/// use std::time::Duration;
/// use mp_core::Spin;
///
/// /// For a queue whose answers come after about this long.
/// fn for_answers_after(usual: Duration) -> Spin {
///     if usual < Duration::from_millis(1) { Spin::For(2 * usual) } else { Spin::Never }
/// }
///
/// assert_eq!(for_answers_after(Duration::from_micros(30)), Spin::For(Duration::from_micros(60)));
/// assert_eq!(Spin::default(), Spin::Adaptive);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Spin {
    /// It sleeps at once.
    Never,
    /// It looks for as long as a wake-up costs on this machine, as measured while the program runs: for up to twice as long where that
    /// finds what it waits for, and less where nothing is found, down to half a microsecond. At most as many threads look at once as
    /// there are processors, and one that looks lets threads with work go first.
    #[default]
    Adaptive,
    /// It looks for this long (at most 4 s), whether that pays or not. At most as many threads look at once as there are processors.
    For(Duration),
    /// It never sleeps: a wait uses a processor as long as it takes. Wake-ups cost nothing then, for neither side.
    ///
    /// Where there is one processor only, it sleeps at once.
    Busy,
}

impl Spin {
    /// As a word.
    pub fn pack(self) -> u64 {
        match self {
            Self::Adaptive => 0,
            Self::Never => 1,
            Self::Busy => 2,
            Self::For(time) => 3 | u64::from(nanos(time)) << 32,
        }
    }

    /// The word's setting; an unknown one is as none.
    pub fn unpack(word: u64) -> Self {
        match word & u64::from(u32::MAX) {
            1 => Self::Never,
            2 => Self::Busy,
            3 => Self::For(Duration::from_nanos(word >> 32)),
            _ => Self::Adaptive,
        }
    }
}

/// At most 4 s.
fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}

/// How long to spin before sleeping: longer where spinning has paid, not at all where it can't.
///
/// One for each thing that is waited for, in each process.
#[derive(Debug)]
pub struct AdaptiveSpin {
    nanos: AtomicU32,
    kind: Spin,
}

/// Spinning costs no more than this where it never pays.
const LEAST: u32 = 500;
/// The most pauses between two rare polls: about 3 µs where a pause takes longest.
const PAUSES: u32 = 64;
/// How long a thread that never sleeps looks, before it looks after dead peers.
const BUSY: u32 = 1_000_000;

impl Default for AdaptiveSpin {
    fn default() -> Self {
        Self::new()
    }
}

impl AdaptiveSpin {
    /// Adaptive, beginning with the most; none if there is only one processor.
    pub fn new() -> Self {
        Self::with(Spin::Adaptive)
    }

    /// As wanted; none if there is only one processor.
    pub fn with(kind: Spin) -> Self {
        if processors::only_one() {
            return Self::none();
        }
        let nanos = match kind {
            Spin::Never => 0,
            Spin::Adaptive => COST.now(),
            Spin::For(time) => nanos(time),
            Spin::Busy => BUSY,
        };
        Self { nanos: AtomicU32::new(nanos), kind }
    }

    /// None, whatever the waits take: one look, then the sleep.
    pub const fn none() -> Self {
        Self { nanos: AtomicU32::new(0), kind: Spin::Never }
    }

    /// Whether there is any.
    #[inline]
    pub fn looks(&self) -> bool {
        self.nanos.load(Ordering::Relaxed) != 0
    }

    /// Whether a wait never sleeps.
    pub(crate) fn is_busy(&self) -> bool {
        self.kind == Spin::Busy
    }

    /// Calls `look` again and again until it finds something, or the patience is used up.
    #[inline]
    pub fn look<R>(&self, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        let nanos = self.nanos.load(Ordering::Relaxed);
        if nanos == 0 {
            return look();
        }
        let mut time = None;
        loop {
            for _ in 0..32 {
                if let Some(found) = look() {
                    self.has_paid(nanos);
                    return Some(found);
                }
                std::hint::spin_loop();
            }
            if !time.get_or_insert_with(|| Looking::begin(self.kind, nanos)).goes_on(self) {
                return last(&mut look);
            }
        }
    }

    /// As [`look`](Self::look), with growing pauses: for a word that its owner changes again and again. Each
    /// read takes the word's cache line away from the owner.
    pub fn look_rarely<R>(&self, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        let nanos = self.nanos.load(Ordering::Relaxed);
        if nanos == 0 {
            return look();
        }
        let (mut time, mut pauses) = (Looking::begin(self.kind, nanos), 1);
        loop {
            if let Some(found) = look() {
                self.has_paid(nanos);
                return Some(found);
            }
            if !time.goes_on(self) {
                return last(&mut look);
            }
            (0..pauses).for_each(|_| std::hint::spin_loop());
            pauses = (pauses * 2).min(PAUSES);
        }
    }

    fn has_paid(&self, nanos: u32) {
        let most = COST.now();
        if self.kind == Spin::Adaptive && nanos < most {
            self.nanos.store(after_a_find(nanos, most), Ordering::Relaxed);
        }
    }

    fn has_not_paid(&self, nanos: u32) {
        if self.kind == Spin::Adaptive {
            self.nanos.store(after_nothing(nanos), Ordering::Relaxed);
        }
    }

    /// Called after a sleep that began at `since`. If what ended it came so soon that a little more patience would have avoided
    /// it, there is more.
    pub fn slept(&self, since: Instant) {
        let nanos = self.nanos.load(Ordering::Relaxed);
        if self.kind == Spin::Adaptive && nanos != 0 {
            let slept = u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX);
            if let Some(more) = after_a_sleep(nanos, slept, COST.now()) {
                self.nanos.store(more, Ordering::Relaxed);
            }
        }
    }
}

/// The time is over, maybe since long: what came in time is found, though it says nothing about what pays.
fn last<R>(look: &mut impl FnMut() -> Option<R>) -> Option<R> {
    look()
}

/// How long to look after a look of `nanos` that found something.
fn after_a_find(nanos: u32, cost: u32) -> u32 {
    (nanos * 2).min(cost)
}

/// How long to look after a look of `nanos` that found nothing.
fn after_nothing(nanos: u32) -> u32 {
    (nanos / 2).max(LEAST)
}

/// How long to look after a sleep of this length, if it should be longer than `nanos`, which is half of the look before the sleep.
fn after_a_sleep(nanos: u32, slept: u32, cost: u32) -> Option<u32> {
    let most = 2 * cost;
    // The wake-up itself is part of the sleep.
    let waited = slept.saturating_add(2 * nanos).saturating_sub(cost);
    (nanos < most && (waited < 2 * cost)).then(|| (nanos * 4).min(most))
}

/// A thread that looks.
struct Looking {
    since: Instant,
    nanos: u32,
    /// If it looks for long: the seat that it has.
    seat: Option<Seat>,
    limited: bool,
}

impl Looking {
    fn begin(kind: Spin, nanos: u32) -> Self {
        Self { since: Instant::now(), nanos, seat: None, limited: kind != Spin::Busy }
    }

    /// Whether to look again.
    fn goes_on(&mut self, patience: &AdaptiveSpin) -> bool {
        if self.seat.is_some() {
            // A thread that has work goes first: it may be the one that is waited for.
            std::thread::yield_now();
        }
        // If that took the rest of the time, it has not paid, whatever came meanwhile: a thread that sleeps would have been woken.
        let looked = self.since.elapsed();
        if looked >= Duration::from_nanos(u64::from(self.nanos)) {
            patience.has_not_paid(self.nanos);
            return false;
        }
        if self.limited && looked >= Duration::from_nanos(u64::from(LEAST)) {
            match Seat::take() {
                Ok(seat) => (self.seat, self.limited) = (seat, false),
                // Another thread looks on this processor: that this one does not says nothing about what would have paid.
                Err(Taken) => return false,
            }
        }
        true
    }
}

/// How many processors have a seat; others share theirs.
pub(crate) const SEATS: u32 = 32;
const SEAT_STRIDE: u64 = 64;
const _: () = assert!(control::SPINNING + SEATS as u64 * SEAT_STRIDE <= control::FIRST_BYTES);

/// The seat of a processor, taken by this thread.
struct Seat {
    arena: Arena,
    word: Word,
}

/// Another thread has it.
struct Taken;

const fn seat(processor: u32) -> Word {
    Word::at(control::SPINNING + (processor % SEATS) as u64 * SEAT_STRIDE)
}

const fn owner(member: Member) -> u64 {
    member.raw() + 1
}

impl Seat {
    /// That of the processor this thread runs on; `None` in a process without an arena.
    fn take() -> Result<Option<Self>, Taken> {
        let Some((arena, me)) = Arena::of_this_process() else { return Ok(None) };
        let word = seat(processors::current());
        match arena.map().cas(word, 0, owner(me)) {
            Ok(()) => Ok(Some(Self { arena, word })),
            Err(_) => Err(Taken),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.arena.map().store(self.word, 0);
    }
}

impl Arena {
    /// Frees the seats that a dead member had taken. Called by the process that sweeps it.
    pub(in crate::arena) fn free_seats_of_processors(&self, dead: Member) {
        for processor in 0..SEATS {
            let word = seat(processor);
            if self.map().load_relaxed(word) == owner(dead) {
                _ = self.map().cas(word, owner(dead), 0);
            }
        }
    }
}

/// What a wake-up costs, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Cost {
    /// Until the sleeper runs.
    wake_up: AtomicU32,
    /// The system call of the process that wakes it.
    call: AtomicU32,
}

/// As this process has measured it.
// fork: a copy is on the same machine; it goes on from there.
pub(crate) static COST: Cost = Cost::new();

impl Cost {
    /// Before the first measurement.
    const FIRST: u32 = 50_000;
    const LEAST: u32 = 5_000;
    /// A thread that was woken may have to wait for its processor: that is no reason to use one.
    const MOST: u32 = 200_000;

    const fn new() -> Self {
        Self { wake_up: AtomicU32::new(Self::FIRST), call: AtomicU32::new(0) }
    }

    /// Both together. Of the call no more than the wake-up takes: where it takes longer, the sleeper ran on its caller's processor.
    fn now(&self) -> u32 {
        let wake_up = self.wake_up.load(Ordering::Relaxed);
        wake_up + self.call.load(Ordering::Relaxed).min(wake_up)
    }

    /// A sleeper that was woken has run after this long.
    pub(crate) fn measured(&self, nanos: u32) {
        let after = follows(self.wake_up.load(Ordering::Relaxed), nanos);
        self.wake_up.store(after.clamp(Self::LEAST, Self::MOST), Ordering::Relaxed);
    }

    /// The system call that woke a sleeper has taken this long.
    pub(crate) fn measured_call(&self, took: Duration) {
        let after = follows(self.call.load(Ordering::Relaxed), nanos(took));
        self.call.store(after, Ordering::Relaxed);
    }
}

/// Quicker down than up: of the time that a busy machine adds, spinning would avoid nothing.
fn follows(before: u32, measured: u32) -> u32 {
    if measured < before {
        before - (before - measured) / 8
    } else {
        before + measured.min(Cost::MOST).saturating_sub(before) / 16
    }
}

#[cfg(test)]
mod tests;
