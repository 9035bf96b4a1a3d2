//! Workload with puts and gets as futures, some of which are dropped before they are ready.
//!
//! | dropped | guarantee |
//! |---|---|
//! | a future that puts | its message was not put, and reaches no consumer |
//! | a future that gets | it has taken no message: the message is left for another future |
//! | a woken future, before it is polled | another waiter is woken |
//! | a future of a killed process | at most the message that it was taking is lost |

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use mp::{GetError, Queue};

use crate::bookkeeping::board::Op;
use crate::bookkeeping::parcel::Parcel;
use crate::workloads::work::Worker;

/// Number of concurrent futures of one consumer.
const AT_ONCE: usize = 3;
/// Largest time limit of a future, in microseconds, after which the future is dropped.
const GIVEN: u64 = 3000;

/// Waker that unparks a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns a waker of this thread.
fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

/// Limit after which a future is dropped: a number of polls, and a time.
pub(crate) struct Limit {
    polls: u64,
    time: Duration,
}

/// Polls a future until it is ready. With a limit, drops the future after that many polls and that time, and
/// returns `None`.
pub(crate) fn drive<F: Future>(future: F, mut limit: Option<Limit>) -> Option<F::Output> {
    let mut future = pin!(future);
    let waker = waker();
    loop {
        if let Poll::Ready(end) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(end);
        }
        match &mut limit {
            Some(Limit { polls: 0, time }) => {
                std::thread::park_timeout(*time);
                return None;
            }
            Some(limit) => {
                limit.polls -= 1;
                std::thread::park_timeout(limit.time);
            }
            None => std::thread::park(),
        }
    }
}

type PendingGet<'a> = Pin<Box<dyn Future<Output = Result<Option<Parcel>, GetError>> + 'a>>;

impl Worker {
    /// Returns a random limit with a probability of `percent` percent, or else `None`.
    pub(crate) fn limit(&mut self, percent: u64) -> Option<Limit> {
        let time = Duration::from_micros(self.random.below(GIVEN));
        self.random.percent(percent).then(|| Limit { polls: self.random.below(3), time })
    }

    /// Puts messages by futures.
    pub(crate) fn put_async(&mut self, queue: &Queue<Parcel>) -> mp::AnyResult<()> {
        while let Some(parcel) = self.next(Op::Put)? {
            let number = parcel.job.number;
            let limit = self.limit(30);
            match drive(queue.put_async(parcel), limit) {
                Some(end) => self.was_put(number, end)?,
                None => {
                    self.row.note(Op::Cancel, number);
                    self.ledger.refused(number)?;
                }
            }
        }
        Ok(())
    }

    /// Gets messages by several concurrent futures, until no more messages arrive.
    pub(crate) fn get_async(&mut self, queue: &Queue<Parcel>) -> mp::AnyResult<()> {
        let waker = waker();
        let mut waiting: Vec<PendingGet<'_>> = Vec::new();
        loop {
            waiting.resize_with(AT_ONCE, || Box::pin(queue.get_async()));
            self.row.note(Op::Poll, queue.len() as u64);
            let mut i = 0;
            while i < waiting.len() {
                match waiting[i].as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => i += 1,
                    Poll::Ready(got) => {
                        drop(waiting.swap_remove(i));
                        let Some(parcel) = got? else { return Ok(()) };
                        self.got(&parcel)?;
                    }
                }
            }
            if waiting.len() < AT_ONCE {
                continue;
            }
            if self.random.percent(30) {
                std::thread::park_timeout(Duration::from_micros(self.random.below(GIVEN)));
                let one = self.random.below(AT_ONCE as u64) as usize;
                drop(waiting.swap_remove(one));
            } else {
                std::thread::park();
            }
        }
    }
}
