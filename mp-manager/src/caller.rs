//! One call at a time of this process at one object: the channel that its answers come by, and the code that the object knows of it.
//!
//! A proxy keeps the callers that have nothing to do. One whose call had no answer in time is dropped with its channel: the answer that
//! still comes finds no receiver, and is dropped by the server.

use std::time::{Duration, Instant};

use mp_core::Arena;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use mp_queue::{GetError, Receiver, Sender, bounded_channel};

use crate::answer::Answer;
use crate::error::CallError;
use crate::request::{MOST_CODES, Request};

/// How long a caller or an object's thread sleeps at most before it looks whether the other side, or the server, ends.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// How many bits of a caller's number are of its process.
const SLOT_BITS: u32 = 12;
/// How many callers a process can have at once.
const MOST: u32 = 1 << (u32::BITS - SLOT_BITS);

/// Numbers of callers of this process: those that were given back, and the first that never was given.
struct Numbers {
    free: Vec<u32>,
    next: u32,
}

static NUMBERS: PerProcess<Mutex<Numbers>> =
    PerProcess::new([const { Mutex::new(Numbers { free: Vec::new(), next: 0 }) }; GENERATIONS]);

/// A number that no other caller has: the process's slot among the members of the arena, and one of its own. When slot or number is
/// used again, the caller that had it is gone, and all that it had sent to an object came before the new one's `Hello`.
#[derive(Debug)]
struct Number {
    within: u32,
    slot: u32,
}

impl Number {
    fn new() -> Result<Number, CallError> {
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
        Ok(Number { within, slot })
    }

    fn get(&self) -> u32 {
        self.slot << (u32::BITS - SLOT_BITS) | self.within
    }
}

/// Whether a caller by this number is of the process with this slot.
pub(crate) fn is_of(number: u32, slot: u32) -> bool {
    number >> (u32::BITS - SLOT_BITS) == slot
}

impl Drop for Number {
    fn drop(&mut self) {
        // In a copy of the process these are other numbers, of which none was given.
        if Arena::get().is_some_and(|arena| arena.me().is_ok_and(|me| me.slot() == self.slot)) {
            NUMBERS.lock().free.push(self.within);
        }
    }
}

/// A caller, as its process has it.
#[derive(Debug)]
pub(crate) struct Caller {
    // Before the number: while the object has an answer for it, no other caller has that.
    answers: Receiver<Answer>,
    number: Number,
    /// Which code the object knows: the number of each is its place.
    codes: Vec<usize>,
    /// When to look whether the object is still there, if there is no answer then. It may be past: the clock is not asked for each call.
    look_at: Instant,
}

impl Caller {
    /// One that is known to the object at the other end.
    pub(crate) fn new(object: &Sender<Request>, server: u32) -> Result<Caller, CallError> {
        let (sender, answers) = bounded_channel(1)?;
        let caller = Caller { answers, number: Number::new()?, codes: Vec::new(), look_at: Instant::now() };
        send(object, Request::Hello { caller: caller.number(), answers: Box::new(sender) }, server)?;
        Ok(caller)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.get()
    }

    pub(crate) fn answers(&self) -> &Receiver<Answer> {
        &self.answers
    }

    /// Waits for an answer, at most until then; `Empty` also when it is time to look whether the object is still there.
    pub(crate) fn receive(&mut self, until: Option<Instant>) -> Result<Answer, GetError> {
        let at = until.map_or(self.look_at, |until| until.min(self.look_at));
        let received = self.answers.recv_deadline(at);
        if let Err(GetError::Empty) = received {
            self.look_at = Instant::now() + LOOK;
        }
        received
    }

    /// The number by which the object knows this code, and whether it is new.
    pub(crate) fn code(&mut self, id: usize) -> (u16, bool) {
        if let Some(known) = self.codes.iter().position(|code| *code == id) {
            return (known as u16, false);
        }
        if self.codes.len() == MOST_CODES {
            // Those of before are learnt anew when they are called again.
            self.codes.clear();
        }
        self.codes.push(id);
        ((self.codes.len() - 1) as u16, true)
    }
}

/// Sends a request, which waits for nothing.
pub(crate) fn send(object: &Sender<Request>, request: Request, server: u32) -> Result<(), CallError> {
    use mp_queue::PutError;
    object.send(request).map_err(|error| match error {
        PutError::Disconnected(_) => CallError::ServerGone { server },
        PutError::Failed { error, .. } => match error {
            mp_reduce::Error::Memory(mp_core::Error::Unsendable(why)) => {
                CallError::Arguments { why, undecodable: None }
            }
            error => CallError::Failed(error),
        },
        PutError::Interrupted(_) => CallError::Interrupted,
        other => CallError::Failed(mp_core::Error::from(other).into()),
    })
}
