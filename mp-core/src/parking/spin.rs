//! Spin time before a sleep.
//!
//! A sleep costs a wake-up: the time from the moment at which another process begins it until the sleeper
//! runs, and the system call of that other process. A thread can't know in advance which is cheaper: spinning
//! until the result arrives, or sleeping at once. So it spins for as long as a wake-up costs, and then
//! sleeps. This costs at most twice as much as the cheaper choice (Karlin et al., *Competitive randomized
//! algorithms for non-uniform problems*, 1990).
//!
//! If spinning never pays, the thread spins for less, down to [`LEAST`]. If the thread slept, but would have
//! found its result within twice the cost of a wake-up, it next spins for up to twice that cost. This also
//! costs at most twice as much as the cheaper choice.
//!
//! # Two processes that both sleep
//! If two processes answer each other, and each sleeps while the other works, each answer arrives later, by
//! the wake-up of its sender. For each process alone, sleeping is cheaper, so the two would never stop
//! sleeping. Spinning for twice as long finds an answer even if its sender had to be woken. Once one such
//! answer is found by spinning, neither process sleeps.
//!
//! # A processor that other threads need
//! A spinning thread yields to other threads. If another thread then runs for the rest of the spin time or
//! longer, the spin has not paid, even if it found a result. No process wakes a spinning thread, so the
//! spinning thread runs only after the other thread has left the processor. The kernel could have run a
//! sleeper on another processor, or on this one sooner.
//!
//! If this happens again and again, the thread moves to another processor: [`migration`].
//!
//! # Cost of a wake-up
//! Each wake-up measures its cost, since the cost differs tenfold between machines and workloads. A process
//! that wakes a sleeper writes the present time into the parking word (`parking`). The sleeper subtracts this
//! time from the time at which the sleeper runs. The waking process also measures the duration of its system
//! call, which on a virtual machine is a third of the total. [`COST`] has moving averages of both figures in
//! each process.
//!
//! # No more spinning threads than processors
//! A thread that is about to spin for longer than [`LEAST`] takes the *seat* of the processor that it runs
//! on: one word of the arena for each of the first [`SEATS`] processors. If the seat is taken, another thread
//! already spins on this processor, and the thread sleeps at once. (A thread that moves to another processor
//! meanwhile keeps its seat, so there are never more spinning threads than seats.)
//!
//! | change of a seat | made by | killed before it | consequence |
//! |---|---|---|---|
//! | 0 (free) → member + 1 | a thread of that member, by one swap | | |
//! | member + 1 → 0 | the same thread, by one store | the seat names a dead member | threads on that processor sleep at once, until the member is reclaimed |
//! | dead member + 1 → 0 | the process that reclaims the member, before the member's slot is reused, by one swap | the seat names a dead member | another process reclaims the member |
//!
//! Seats affect only timing.

mod migration;

use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::layout::control;
use crate::mem::{Mem, Word};
use crate::sync::Ordering;
use crate::sync::shared::AtomicU32;
use crate::sys::environment;
use crate::words::Member;

/// Strategy for the time before a waiting call sleeps.
///
/// ```
/// use std::time::Duration;
/// use mp_core::Spin;
///
/// /// For a queue whose answers arrive after about this time.
/// fn for_answers_after(usual: Duration) -> Spin {
///     if usual < Duration::from_millis(1) { Spin::For(2 * usual) } else { Spin::Never }
/// }
///
/// assert_eq!(for_answers_after(Duration::from_micros(30)), Spin::For(Duration::from_micros(60)));
/// assert_eq!(Spin::default(), Spin::Adaptive);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Spin {
    /// Sleeps at once.
    Never,
    /// Spins for as long as a wake-up costs on this machine, as measured while the program runs. The time is
    /// up to twice this cost if slightly longer spinning would have avoided a sleep, and falls to half a
    /// microsecond if spinning doesn't pay. At most as many threads spin at once as there are processors, and
    /// a spinning thread yields to threads with work. A spinning thread that shares its processor with the
    /// thread it waits for moves to another processor, unless its affinity is restricted.
    #[default]
    Adaptive,
    /// Spins for this time (at most 4 s), even if spinning never pays. At most as many threads spin at
    /// once as there are processors.
    For(Duration),
    /// Never sleeps: a wait uses a processor for its whole duration, and no thread pays for a wake-up.
    ///
    /// On a machine with one processor, the wait sleeps at once instead.
    Busy,
}

impl Spin {
    /// Packs the value into a word.
    pub fn pack(self) -> u64 {
        match self {
            Self::Adaptive => 0,
            Self::Never => 1,
            Self::Busy => 2,
            Self::For(time) => 3 | u64::from(nanos(time)) << 32,
        }
    }

    /// Unpacks a word. Returns the default for an unknown value.
    pub fn unpack(word: u64) -> Self {
        match word & u64::from(u32::MAX) {
            1 => Self::Never,
            2 => Self::Busy,
            3 => Self::For(Duration::from_nanos(word >> 32)),
            _ => Self::Adaptive,
        }
    }
}

/// Returns the time in nanoseconds, at most 4 s.
fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}

/// Adaptive time of spinning before a sleep. The time grows if spinning has paid, and is zero if there is
/// only one processor.
///
/// Each process has one `AdaptiveSpin` for each object that it waits for.
#[derive(Debug)]
pub struct AdaptiveSpin {
    nanos: AtomicU32,
    kind: Spin,
}

/// Spin time in nanoseconds if spinning never pays.
const LEAST: u32 = 500;
/// Maximum number of spin-loop hints between two checks of [`AdaptiveSpin::look_rarely`]: about 3 µs on the
/// processors with the longest `pause` instruction.
const PAUSES: u32 = 64;
/// Spin time in nanoseconds of a thread that never sleeps, before it checks for dead peers.
const BUSY: u32 = 1_000_000;

impl Default for AdaptiveSpin {
    fn default() -> Self {
        Self::new()
    }
}

impl AdaptiveSpin {
    /// Creates an adaptive strategy that begins with the cost of a wake-up as its spin time. Does not spin if
    /// there is only one processor.
    pub fn new() -> Self {
        Self::with(Spin::Adaptive)
    }

    /// Creates a strategy of this kind. Does not spin if there is only one processor.
    pub fn with(kind: Spin) -> Self {
        if environment::has_one_processor() {
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

    /// Creates a strategy that never spins: one check, then the sleep.
    pub const fn none() -> Self {
        Self { nanos: AtomicU32::new(0), kind: Spin::Never }
    }

    /// Returns `true` if waits spin.
    #[inline]
    pub fn spins(&self) -> bool {
        self.nanos.load(Ordering::Relaxed) != 0
    }

    /// Returns `true` if waits never sleep.
    pub(crate) fn is_busy(&self) -> bool {
        self.kind == Spin::Busy
    }

    /// Calls `look` repeatedly until it finds a result, or the spin time is used up.
    #[inline]
    pub fn look<R>(&self, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        let nanos = self.nanos.load(Ordering::Relaxed);
        if nanos == 0 {
            return look();
        }
        let mut time: Option<SpinState> = None;
        loop {
            for _ in 0..32 {
                if let Some(found) = look() {
                    self.has_paid(nanos);
                    if let Some(time) = time {
                        time.found();
                    }
                    return Some(found);
                }
                std::hint::spin_loop();
            }
            let time = time.get_or_insert_with(|| SpinState::begin(self.kind, nanos));
            if !time.goes_on(self) {
                return time.last(&mut look);
            }
        }
    }

    /// Same as [`look`](Self::look), with growing pauses between the checks. For a word that its owner
    /// changes often: each check moves the word's cache line away from the owner.
    pub fn look_rarely<R>(&self, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        let nanos = self.nanos.load(Ordering::Relaxed);
        if nanos == 0 {
            return look();
        }
        let (mut time, mut pauses) = (SpinState::begin(self.kind, nanos), 1);
        loop {
            if let Some(found) = look() {
                self.has_paid(nanos);
                time.found();
                return Some(found);
            }
            if !time.goes_on(self) {
                return time.last(&mut look);
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

    /// Adjusts the spin time after a sleep that began at `since`. Increases it if slightly longer spinning
    /// would have avoided the sleep.
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

/// Returns the spin time after a spin of `nanos` that found a result.
fn after_a_find(nanos: u32, cost: u32) -> u32 {
    (nanos * 2).min(cost)
}

/// Returns the spin time after a spin of `nanos` that found nothing.
fn after_nothing(nanos: u32) -> u32 {
    (nanos / 2).max(LEAST)
}

/// Returns the spin time after a sleep of `slept` nanoseconds, or `None` if the time should stay as it is.
/// The spin before the sleep took `2 * nanos` without success, so the spin time is `nanos` now.
fn after_a_sleep(nanos: u32, slept: u32, cost: u32) -> Option<u32> {
    let most = 2 * cost;
    // The wake-up itself is part of the sleep.
    let waited = slept.saturating_add(2 * nanos).saturating_sub(cost);
    (nanos < most && (waited < 2 * cost)).then(|| (nanos * 4).min(most))
}

/// State of a spinning thread.
struct SpinState {
    since: Instant,
    nanos: u32,
    /// Processor seat of the thread, if it spins for longer than [`LEAST`].
    seat: Option<Seat>,
    limited: bool,
    /// `true` if another thread ran on this processor during the last yield.
    shared: bool,
}

impl SpinState {
    fn begin(kind: Spin, nanos: u32) -> Self {
        Self { since: Instant::now(), nanos, seat: None, limited: kind != Spin::Busy, shared: false }
    }

    /// Returns `true` if the thread should check again.
    fn goes_on(&mut self, patience: &AdaptiveSpin) -> bool {
        if self.seat.is_some() {
            // A thread with work runs first: it may be the awaited one.
            let since = Instant::now();
            std::thread::yield_now();
            self.shared = since.elapsed() >= migration::MIN_SHARED_YIELD;
        }
        // If the yield took the rest of the time, spinning has not paid, regardless of any result meanwhile:
        // a sleeping thread would have been woken.
        let spun = self.since.elapsed();
        if spun >= Duration::from_nanos(u64::from(self.nanos)) {
            patience.has_not_paid(self.nanos);
            return false;
        }
        if self.limited && spun >= Duration::from_nanos(u64::from(LEAST)) {
            match Seat::take() {
                Ok(seat) => (self.seat, self.limited) = (seat, false),
                // Another thread spins on this processor. Stopping here does not measure the spin time that
                // would have paid.
                Err(SeatTaken) => return false,
            }
        }
        true
    }

    /// Records that a check found a result.
    fn found(&self) {
        migration::record_wait(self.shared);
    }

    /// Makes a last check when the spin time has expired, possibly long ago. A result is returned, but does
    /// not increase the spin time of later waits.
    fn last<R>(&self, look: &mut impl FnMut() -> Option<R>) -> Option<R> {
        let found = look();
        if found.is_some() {
            self.found();
        }
        found
    }
}

/// Number of processors with a seat. Other processors share these seats.
pub(crate) const SEATS: u32 = 32;
const SEAT_STRIDE: u64 = 64;
const _: () = assert!(control::SPINNING + SEATS as u64 * SEAT_STRIDE <= control::FIRST_BYTES);

/// Seat of a processor, taken by this thread.
struct Seat {
    arena: Arena,
    word: Word,
}

/// Error returned when another thread has the seat.
struct SeatTaken;

const fn seat(processor: u32) -> Word {
    Word::at(control::SPINNING + (processor % SEATS) as u64 * SEAT_STRIDE)
}

const fn owner(member: Member) -> u64 {
    member.raw() + 1
}

impl Seat {
    /// Takes the seat of the processor that this thread runs on. Returns `None` in a process without an
    /// arena.
    fn take() -> Result<Option<Self>, SeatTaken> {
        let Some((arena, Ok(me))) = Arena::get().map(|arena| (arena, arena.me())) else { return Ok(None) };
        let word = seat(environment::current_processor());
        match arena.map().cas(word, 0, owner(me)) {
            Ok(()) => Ok(Some(Self { arena, word })),
            Err(_) => Err(SeatTaken),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.arena.map().store(self.word, 0);
    }
}

/// Frees the seats that a dead member had taken. Called by the process that reclaims it.
pub(crate) fn free_processors(arena: Arena, dead: Member) {
    for processor in 0..SEATS {
        let word = seat(processor);
        if arena.map().load_relaxed(word) == owner(dead) {
            _ = arena.map().cas(word, owner(dead), 0);
        }
    }
}

/// Cost of a wake-up, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Cost {
    /// Time from the beginning of a wake-up until the sleeper runs.
    wake_up: AtomicU32,
    /// Duration of the system call of the process that wakes.
    call: AtomicU32,
}

/// Cost as measured by this process.
// fork: a child runs on the same machine, and continues with the parent's figures.
pub(crate) static COST: Cost = Cost::new();

impl Cost {
    /// Wake-up time in nanoseconds before the first measurement.
    const FIRST: u32 = 50_000;
    const LEAST: u32 = 5_000;
    /// Maximum of the measured wake-up time. A woken thread may wait longer for a processor, and spinning for
    /// that time would gain nothing.
    const MOST: u32 = 200_000;

    const fn new() -> Self {
        Self { wake_up: AtomicU32::new(Self::FIRST), call: AtomicU32::new(0) }
    }

    /// Returns the sum of wake-up time and system call. The call counts at most as much as the wake-up time.
    /// In a longer call, the sleeper ran on the waker's processor, and its work is part of the measured time.
    fn now(&self) -> u32 {
        let wake_up = self.wake_up.load(Ordering::Relaxed);
        wake_up + self.call.load(Ordering::Relaxed).min(wake_up)
    }

    /// Records the measured time from a wake-up until the sleeper ran.
    pub(crate) fn measured(&self, nanos: u32) {
        let after = follows(self.wake_up.load(Ordering::Relaxed), nanos);
        self.wake_up.store(after.clamp(Self::LEAST, Self::MOST), Ordering::Relaxed);
    }

    /// Records the duration of a system call that woke a sleeper.
    pub(crate) fn measured_call(&self, took: Duration) {
        let after = follows(self.call.load(Ordering::Relaxed), nanos(took));
        self.call.store(after, Ordering::Relaxed);
    }
}

/// Returns the next value of a moving average. It falls faster than it rises, because a busy machine adds
/// times that spinning would not avoid.
fn follows(before: u32, measured: u32) -> u32 {
    if measured < before {
        before - (before - measured) / 8
    } else {
        before + measured.min(Cost::MOST).saturating_sub(before) / 16
    }
}

#[cfg(test)]
mod tests;
