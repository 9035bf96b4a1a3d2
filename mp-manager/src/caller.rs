//! Callers. A caller calls one object, one call at a time. It has a channel for the answers, and a list of
//! the codes of closures that it has sent to the object.
//!
//! A proxy stores idle callers. A caller whose answer does not arrive in time is dropped with its channel.
//! The late answer then has no receiver, and the server drops it.

use std::time::{Duration, Instant};

use mp_core::Arena;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_queue::{GetError, Receiver, Sender, bounded_channel};

use crate::answer::CallAnswer;
use crate::error::CallError;
use crate::request::{MOST_CODES, ObjectRequest};

/// Maximum sleep of a caller or an object's thread before it checks that the peer and the server are alive.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Number of bits of a caller's number that identify its process.
const SLOT_BITS: u32 = 12;
/// Maximum number of callers of a process at the same time.
const MOST: u32 = 1 << (u32::BITS - SLOT_BITS);

/// Numbers of this process's callers: numbers to be reused, and the first number that was never used.
struct CallerNumbers {
    free: Vec<u32>,
    next: u32,
}

static NUMBERS: PerProcess<Mutex<CallerNumbers>> =
    mp_core::per_process!(Mutex::new(CallerNumbers { free: Vec::new(), next: 0 }));

/// Unique number of a caller: the process's slot among the members of the arena, and a number within the
/// process. Both are reused after a caller has ended. So messages of the previous caller with this number
/// precede the `Hello` of the new caller.
#[derive(Debug)]
struct CallerNumber {
    within: u32,
    slot: u32,
}

impl CallerNumber {
    fn new() -> Result<CallerNumber, CallError> {
        let slot = Arena::current()?.me()?.slot();
        let mut numbers = NUMBERS.lock();
        let within = numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        if within >= MOST {
            numbers.free.push(within);
            let why = format!("this process has {MOST} calls of managers that wait, and can have no more");
            return Err(mp_core::Error::LimitExceeded(why).into());
        }
        Ok(CallerNumber { within, slot })
    }

    fn get(&self) -> u32 {
        self.slot << (u32::BITS - SLOT_BITS) | self.within
    }
}

/// Returns `true` if `number` is the number of a caller in the process with this slot.
pub(crate) fn is_of(number: u32, slot: u32) -> bool {
    number >> (u32::BITS - SLOT_BITS) == slot
}

impl Drop for CallerNumber {
    fn drop(&mut self) {
        // In a fork of the process the slot differs. The number then belongs to the original process.
        if Arena::get().is_some_and(|arena| arena.me().is_ok_and(|me| me.slot() == self.slot)) {
            NUMBERS.lock().free.push(self.within);
        }
    }
}

/// State of a caller in its process.
#[derive(Debug)]
pub(crate) struct Caller {
    // Declared before the number, so that the number is reused only after the receiver is dropped.
    answers: Receiver<CallAnswer>,
    number: CallerNumber,
    /// Codes that were sent to the object. The index of a code is its number.
    codes: Vec<usize>,
    /// Time of the next check that the object is alive, if no answer arrives before. May be in the past,
    /// because the clock is not read for each call.
    next_check: Instant,
}

impl Caller {
    /// Creates a caller, and sends its channel for answers to the object at the other end.
    pub(crate) fn new(object: &Sender<ObjectRequest>, server: u32) -> Result<Caller, CallError> {
        let (sender, answers) = bounded_channel(1)?;
        let caller =
            Caller { answers, number: CallerNumber::new()?, codes: Vec::new(), next_check: Instant::now() };
        send(object, ObjectRequest::Hello { caller: caller.number(), answers: Box::new(sender) }, server)?;
        Ok(caller)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.get()
    }

    pub(crate) fn answers(&self) -> &Receiver<CallAnswer> {
        &self.answers
    }

    /// Waits for an answer until `until`. Returns `Empty` if there is no answer at that time, or earlier if
    /// the caller has to check that the object is alive.
    pub(crate) fn recv(&mut self, until: Option<Instant>) -> Result<CallAnswer, GetError> {
        let at = until.map_or(self.next_check, |until| until.min(self.next_check));
        let received = self.answers.recv_deadline(at);
        if let Err(GetError::Empty) = received {
            self.next_check = Instant::now() + CHECK_INTERVAL;
        }
        received
    }

    /// Returns the number of this code in requests, and `true` if the code was not sent to the object before.
    pub(crate) fn code(&mut self, id: usize) -> (u16, bool) {
        if let Some(known) = self.codes.iter().position(|code| *code == id) {
            return (known as u16, false);
        }
        if self.codes.len() == MOST_CODES {
            // All numbers are used. Codes that are called again are sent again.
            self.codes.clear();
        }
        self.codes.push(id);
        ((self.codes.len() - 1) as u16, true)
    }
}

/// Sends a request, without blocking.
pub(crate) fn send(
    object: &Sender<ObjectRequest>,
    request: ObjectRequest,
    server: u32,
) -> Result<(), CallError> {
    use mp_queue::PutError;
    object.send(request).map_err(|error| match error {
        PutError::Disconnected(_) => CallError::ServerGone { server },
        PutError::Failed { error: mp_reduce::Error::Memory(error), .. } => CallError::of_arguments(error),
        PutError::Failed { error, .. } => CallError::Failed(error),
        PutError::Interrupted(_) => CallError::Interrupted,
        other => CallError::Failed(mp_core::Error::from(other).into()),
    })
}
