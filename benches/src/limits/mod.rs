//! Limits of the machine: for each row, the least work that any library has to do.

pub(crate) mod exec;
pub(crate) mod failure;
mod futex;
mod line;
mod memory;
mod mutex;
mod ring;

use crate::process::{self, Child};
use crate::shm::Region;
use crate::work::tensor::{self, Amount, Times};
use crate::work::{Link, Outcome, Plan, lock, small};
use crate::{Failure, Result};
use futex::Futex;
use line::Line;
use memory::Buffer;
use mutex::Mutex;
use ring::Ring;

/// Prefix of the roles of children that measure limits.
pub(crate) const PREFIX: &str = "limit-";

/// Roles of children.
const LINE: &str = "limit-line";
const FUTEX: &str = "limit-futex";
const RING: &str = "limit-ring";
const MUTEX: &str = "limit-mutex";
const FRESH: &str = "limit-fresh";
const AGAIN: &str = "limit-again";
const STREAM: &str = "limit-stream";

/// Runs one round over `link`, made from a region of `len` bytes that the child `role` opens too.
fn round<L, R>(
    role: &str,
    len: usize,
    words: &[String],
    plan: &Plan,
    link: impl FnOnce(Region) -> L,
    work: impl FnOnce(&mut L) -> Result<R>,
) -> Result<Option<R>> {
    let region = Region::create(len)?;
    let mut all = vec![region.token()];
    all.extend_from_slice(words);
    let child = Child::start(role, &all, plan)?;
    let figure = work(&mut link(region))?;
    child.finish()?;
    Ok(Some(figure))
}

/// Runs a round of the limit in the row `rtt_awake`: a spinning ping-pong over cache lines.
pub(crate) fn rtt_awake(plan: &Plan) -> Outcome {
    round(LINE, line::LEN, &[], plan, Line::parent, |link| small::round_trips(link, plan, 1_000_000))
}

/// Runs a round of the limit in the row `rtt_asleep`: a bare futex ping-pong.
pub(crate) fn rtt_asleep(plan: &Plan) -> Outcome {
    round(FUTEX, futex::LEN, &[], plan, Futex::parent, |link| small::sleepy_round_trips(link, plan, 3_000))
}

/// Runs a round of the limit in the row `one_way_1p1c`: a ring with one producer and one consumer, which is
/// fast, but does not detect stopped or killed processes.
pub(crate) fn one_way(plan: &Plan) -> Outcome {
    round(RING, ring::LEN, &[], plan, Ring::parent, |link| small::consume(link, plan, 10_000_000))
}

/// Runs a round of the limit in the row `lock_uncontended`: a robust mutex of the C library.
pub(crate) fn lock_uncontended(plan: &Plan) -> Outcome {
    lock::uncontended(&mut Mutex::parent(Region::create(mutex::LEN)?)?, plan, 5_000_000).map(Some)
}

/// Runs a round of the limit in the row `lock_contended`: a robust mutex of the C library, which two
/// processes lock all the time.
pub(crate) fn lock_contended(plan: &Plan) -> Outcome {
    let region = Region::create(mutex::LEN)?;
    let words = [region.token()];
    let mut mutex = Mutex::parent(region)?;
    let child = Child::start(MUTEX, &words, plan)?;
    let figure = lock::contended(&mut mutex, plan, 2_000_000)?;
    mutex.stop();
    child.finish()?;
    Ok(Some(figure))
}

/// Runs a round of the limit in a row `tensor_fresh_…`: a copy into warm shared memory and a read of all of
/// it.
fn fresh(plan: &Plan, elements: usize) -> Outcome {
    tensor::median(fresh_times(plan, elements, Amount::fresh(plan, elements)))
}

/// Returns the latency of each tensor: the time from its creation to its answer, in ns.
pub(crate) fn fresh_times(plan: &Plan, elements: usize, amount: Amount) -> Times {
    let words = [amount.total().to_string(), elements.to_string()];
    let parent = |region| Buffer::new(Line::parent(region), elements);
    round(FRESH, memory::len::<Line>(elements), &words, plan, parent, |buffer| {
        tensor::fresh_times(buffer, elements, amount)
    })
}

/// Runs a round of the limit in the row `tensor_fresh_1k`.
pub(crate) fn tensor_fresh_1k(plan: &Plan) -> Outcome {
    fresh(plan, tensor::SMALL)
}

/// Runs a round of the limit in the row `tensor_stream_1k`, through as many warm buffers as can be in flight.
pub(crate) fn tensor_stream_1k(plan: &Plan) -> Outcome {
    let amount = Amount::stream(plan);
    let parent = |region| Buffer::new(Ring::parent(region), tensor::SMALL);
    let words = [amount.total().to_string()];
    round(STREAM, memory::len::<Ring>(tensor::SMALL), &words, plan, parent, |buffers| {
        tensor::stream(buffers, tensor::SMALL, amount)
    })
}

/// Runs a round of the limit in the row `tensor_fresh_1m`.
pub(crate) fn tensor_fresh_1m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::MEDIUM)
}

/// Runs a round of the limit in the row `tensor_fresh_64m`.
pub(crate) fn tensor_fresh_64m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::LARGE)
}

/// Runs a round of the limit in the row `tensor_again_64m`: a spinning ping-pong over cache lines and one
/// read.
pub(crate) fn tensor_again(plan: &Plan) -> Outcome {
    let full = 400_000;
    let words = [Amount::again(plan, full).total().to_string(), tensor::LARGE.to_string()];
    let parent = |region| Buffer::new(Line::parent(region), tensor::LARGE);
    round(AGAIN, memory::len::<Line>(tensor::LARGE), &words, plan, parent, |buffer| {
        tensor::again(buffer, plan, full)
    })
}

/// Returns the time in ns of each message that hands over the same buffer.
#[cfg(feature = "grow")]
pub(crate) fn again_times(plan: &Plan, elements: usize, amount: Amount) -> Times {
    let words = [amount.total().to_string(), elements.to_string()];
    let parent = |region| Buffer::new(Line::parent(region), elements);
    round(AGAIN, memory::len::<Line>(elements), &words, plan, parent, |buffer| {
        tensor::again_times(buffer, elements, amount)
    })
}

/// Returns a ring that receives its own messages.
#[cfg(feature = "grow")]
pub(crate) fn looped() -> Result<impl Link> {
    Ok(Ring::looped(Region::create(ring::LEN)?))
}

/// Returns the limit of `syscalls_per_message`, which is 0.
pub(crate) fn no_syscalls(_: &Plan) -> Outcome {
    Ok(Some(0.0))
}

/// Runs the child `role`.
///
/// # Errors
/// Returns an error for an unknown role, or the error of the role.
pub(crate) fn be_child(role: &str, words: &[String]) -> Result<()> {
    let region = Region::open(words.first().ok_or("a region is missing")?)?;
    let number = |at: usize| -> Result<usize> { Ok(words.get(at).ok_or("a number is missing")?.parse()?) };
    match role {
        LINE => small::answer_round_trips(&mut Line::child(region))?,
        FUTEX => small::answer_sleepy_round_trips(&mut Futex::child(region))?,
        RING => small::produce(&mut Ring::child(region))?,
        MUTEX => {
            let mut mutex = Mutex::child(region);
            let over = Mutex::child(Region::open(&words[0])?);
            lock::contend(&mut mutex, || over.is_over())?;
        }
        FRESH => tensor::answer_fresh(&mut Buffer::new(Line::child(region), number(2)?), number(1)? as u64)?,
        AGAIN => tensor::answer_again(&mut Buffer::new(Line::child(region), number(2)?), number(1)? as u64)?,
        STREAM => {
            let mut buffers = Buffer::new(Ring::child(region), tensor::SMALL);
            tensor::answer_stream(&mut buffers, number(1)? as u64)?
        }
        _ => return Err(Failure::from(format!("no child is called {role:?}"))),
    }
    process::linger()
}
