//! Events, semaphores and barriers of this process that other members call.

use std::sync::Arc;
use std::time::Duration;

use mp_sync::{
    AcquireError, Barrier, BarrierArrival, BarrierError, BoundedSemaphore, Event, Permit, Semaphore,
};
use tokio::time::{Instant, timeout_at};

use crate::home::object::{Answer, Answering, CallerHold, MethodCall, SharedObject};
use crate::object_type::ObjectType;
use crate::sync::{AtomicBool, Ordering};
use crate::wire::messages::ObjectMethod;

/// Number of permits that are added at once.
const AT_ONCE: u64 = 64;

/// Returns an answer that is known.
fn ready(answer: Answer) -> Answering {
    Box::pin(std::future::ready(answer))
}

/// Returns the answer of a method that returns a boolean.
fn changed(result: mp_core::Result<bool>) -> Answer {
    result.map_or_else(|error| Answer::failed(&error), |changed| Answer::number(changed.into()))
}

/// An event that other members call.
pub(crate) struct SharedEvent(pub(crate) Event);

impl SharedObject for SharedEvent {
    fn object_type(&self) -> ObjectType {
        ObjectType::event()
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        match call.method {
            ObjectMethod::IsSet => ready(changed(Ok(self.0.is_set()))),
            ObjectMethod::Set => ready(changed(self.0.set())),
            ObjectMethod::Clear => ready(changed(self.0.clear())),
            ObjectMethod::WaitSet => {
                Box::pin(async move { changed(self.0.wait_async().await.map(|()| true)) })
            }
            _ => ready(Answer::unknown_method()),
        }
    }
}

/// A semaphore that other members call.
pub(crate) enum SharedSemaphore {
    Growing(Semaphore),
    Bounded(BoundedSemaphore),
}

/// Permit of a caller. Dropping it releases it.
impl CallerHold for Permit {
    fn acknowledge(self: Box<Self>) {
        self.forget();
    }
}

fn permit(result: Result<Permit, AcquireError>) -> Answer {
    match result {
        Ok(permit) => Answer { hold: Some(Box::new(permit)), ..Answer::number(0) },
        Err(error) => Answer::failed(&error),
    }
}

impl SharedSemaphore {
    async fn acquire(&self) -> Result<Permit, AcquireError> {
        match self {
            Self::Growing(semaphore) => semaphore.acquire_async().await,
            Self::Bounded(semaphore) => semaphore.acquire_async().await,
        }
    }

    fn available(&self) -> usize {
        match self {
            Self::Growing(semaphore) => semaphore.available(),
            Self::Bounded(semaphore) => semaphore.available(),
        }
    }

    /// Adds permits, and lets other calls run meanwhile.
    async fn add_permits(&self, permits: u64) -> Answer {
        let Self::Growing(semaphore) = self else {
            return Answer::failed(&"a BoundedSemaphore gets no more permits: publish a Semaphore");
        };
        for added in 1..=permits {
            if let Err(error) = semaphore.add_permits(1) {
                return Answer::failed(&error);
            }
            if added % AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
        }
        Answer::number(0)
    }
}

impl SharedObject for SharedSemaphore {
    fn object_type(&self) -> ObjectType {
        ObjectType::semaphore()
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        match call.method {
            ObjectMethod::Acquire => Box::pin(async move { permit(self.acquire().await) }),
            ObjectMethod::Available => ready(Answer::number(self.available() as u64)),
            ObjectMethod::AddPermits => Box::pin(async move { self.add_permits(call.number).await }),
            _ => ready(Answer::unknown_method()),
        }
    }
}

/// A barrier that other members call.
pub(crate) struct SharedBarrier(pub(crate) Barrier);

/// Arrival of a caller. If it is dropped because the session has ended, the barrier breaks as by the death of
/// a party, and if the caller has cancelled the call, as by [`Barrier::abort`].
struct CallerArrival {
    arrival: Option<BarrierArrival>,
    lost: Arc<AtomicBool>,
}

impl Drop for CallerArrival {
    fn drop(&mut self) {
        if let Some(arrival) = self.arrival.take()
            && self.lost.load(Ordering::Relaxed)
        {
            arrival.lose();
        }
    }
}

impl SharedBarrier {
    /// Arrives, and waits for up to `limit` microseconds.
    async fn arrive(&self, limit: u64, lost: Arc<AtomicBool>) -> Result<usize, BarrierError> {
        let deadline = Some(limit).filter(|limit| *limit != u64::MAX);
        let deadline = deadline.and_then(|limit| Instant::now().checked_add(Duration::from_micros(limit)));
        let arrived = match deadline {
            None => Ok(self.0.arrive_async().await),
            Some(deadline) => timeout_at(deadline, self.0.arrive_async()).await,
        };
        let arrival = Some(arrived.unwrap_or_else(|_| self.0.arrive_late())?);
        let mut caller = CallerArrival { arrival, lost };
        let Some(arrival) = &mut caller.arrival else { return Err(BarrierError::Aborted) };
        let Some(deadline) = deadline else { return arrival.wait_async().await };
        match timeout_at(deadline, arrival.wait_async()).await {
            Ok(end) => end,
            Err(_) => caller.arrival.take().map_or(Err(BarrierError::Aborted), BarrierArrival::time_out),
        }
    }
}

impl SharedObject for SharedBarrier {
    fn object_type(&self) -> ObjectType {
        ObjectType::barrier()
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        let done = |result: mp_core::Result<()>| ready(changed(result.map(|()| true)));
        match call.method {
            ObjectMethod::Arrive => Box::pin(async move {
                match self.arrive(call.number, call.lost).await {
                    Ok(index) => Answer::number(index as u64),
                    Err(error) => Answer::raised(error),
                }
            }),
            ObjectMethod::Abort => done(self.0.abort()),
            ObjectMethod::Reset => done(self.0.reset()),
            ObjectMethod::Parties => ready(Answer::number(self.0.parties() as u64)),
            ObjectMethod::Waiting => ready(Answer::number(self.0.n_waiting() as u64)),
            ObjectMethod::IsBroken => ready(changed(Ok(self.0.is_broken()))),
            _ => ready(Answer::unknown_method()),
        }
    }
}
