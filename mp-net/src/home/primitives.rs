//! Events, semaphores and barriers of this process that other members call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mp_sync::{
    AcquireError, Barrier, BarrierArrival, BarrierError, BarrierMember, BoundedSemaphore, Event, Permit,
    Semaphore,
};
use tokio::time::{Instant, timeout_at};

use crate::home::object::{Answer, Answering, CallerHold, MethodCall, SharedObject};
use crate::object_type::ObjectType;
use crate::reactor;
use crate::sync::{AtomicBool, Ordering};
use crate::wire::messages::ObjectMethod;

/// Number of permits that are added at once.
const AT_ONCE: u64 = 64;
/// Pause between two attempts to arrive while the last party of the previous phase runs its action.
const PAUSE: Duration = Duration::from_millis(2);

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

/// Returns the deadline of a wait of `limit` microseconds, or `None` without a limit.
fn deadline_of(limit: u64) -> Option<Instant> {
    let limit = Some(limit).filter(|limit| *limit != u64::MAX);
    limit.and_then(|limit| Instant::now().checked_add(Duration::from_micros(limit)))
}

/// Returns the answer to a party: its index, or the error of the broken barrier.
fn passed(end: Result<usize, BarrierError>) -> Answer {
    end.map_or_else(Answer::raised, |index| Answer::number(index as u64))
}

impl CallerArrival {
    /// Waits until all parties have arrived, or breaks the barrier at `deadline`.
    async fn wait(mut self, deadline: Option<Instant>) -> Result<usize, BarrierError> {
        let Some(arrival) = &mut self.arrival else { return Err(BarrierError::Aborted) };
        let Some(deadline) = deadline else { return arrival.wait_async().await };
        match timeout_at(deadline, arrival.wait_async()).await {
            Ok(end) => end,
            Err(_) => self.arrival.take().map_or(Err(BarrierError::Aborted), BarrierArrival::time_out),
        }
    }
}

impl SharedBarrier {
    /// Arrives, and waits for up to `limit` microseconds.
    async fn arrive(&self, limit: u64, lost: Arc<AtomicBool>) -> Result<usize, BarrierError> {
        let deadline = deadline_of(limit);
        let arrived = match deadline {
            None => Ok(self.0.arrive_async().await),
            Some(deadline) => timeout_at(deadline, self.0.arrive_async()).await,
        };
        let arrival = Some(arrived.unwrap_or_else(|_| self.0.arrive_late())?);
        CallerArrival { arrival, lost }.wait(deadline).await
    }
}

impl SharedObject for SharedBarrier {
    fn object_type(&self) -> ObjectType {
        ObjectType::barrier()
    }

    fn subscribe(&self) -> Option<(Arc<dyn SharedObject>, usize)> {
        let party = SharedParty { barrier: self.0.clone(), state: Mutex::default() };
        Some((Arc::new(party), self.0.parties()))
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        let done = |result: mp_core::Result<()>| ready(changed(result.map(|()| true)));
        match call.method {
            ObjectMethod::Arrive => {
                Box::pin(async move { passed(self.arrive(call.number, call.lost).await) })
            }
            ObjectMethod::Abort => done(self.0.abort()),
            ObjectMethod::Reset => done(self.0.reset()),
            ObjectMethod::Parties => ready(Answer::number(self.0.parties() as u64)),
            ObjectMethod::Waiting => ready(Answer::number(self.0.n_waiting() as u64)),
            ObjectMethod::IsBroken => ready(changed(Ok(self.0.is_broken()))),
            _ => ready(Answer::unknown_method()),
        }
    }
}

/// Party of a barrier for a caller that has enrolled or passes an action. Dropping it ends the enrollment. It
/// breaks the barrier if the session has ended or the action has not finished.
///
/// | call | effect |
/// |---|---|
/// | `Acquire` | enrolls the caller |
/// | first `Arrive` | arrives with an action, and waits unless it is the last party |
/// | second `Arrive`, of the last party after its action | ends the phase |
pub(crate) struct SharedParty {
    barrier: Barrier,
    state: Mutex<PartyState>,
}

#[derive(Default)]
struct PartyState {
    enrolled: Option<EnrolledParty>,
    /// Arrival of the last party, while the caller runs its action.
    acting: Option<CallerArrival>,
}

/// Enrollment of a caller. If it is dropped because the session has ended, the barrier breaks as by the death
/// of an enrolled process.
struct EnrolledParty {
    member: Option<BarrierMember>,
    lost: Arc<AtomicBool>,
}

impl Drop for EnrolledParty {
    fn drop(&mut self) {
        if let Some(member) = self.member.take()
            && self.lost.load(Ordering::Relaxed)
            && let Ok(runtime) = reactor::handle()
        {
            runtime.spawn(lose(member));
        }
    }
}

/// Breaks the barrier as the death of an enrolled party does.
async fn lose(member: BarrierMember) {
    loop {
        match member.arrive_timeout(Duration::ZERO, true) {
            // Otherwise all parties have passed this phase meanwhile.
            Ok(Some(arrival)) => {
                if arrival.lose() {
                    return;
                }
            }
            // All parties have arrived: this phase can't break any more.
            Ok(None) => tokio::time::sleep(PAUSE).await,
            Err(_) => return,
        }
    }
}

impl SharedParty {
    fn lock(&self) -> MutexGuard<'_, PartyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enroll(&self, lost: Arc<AtomicBool>) -> Answer {
        match self.barrier.enroll() {
            Ok(member) => {
                let former = self.lock().enrolled.replace(EnrolledParty { member: Some(member), lost });
                drop(former);
                Answer::number(0)
            }
            Err(error) => Answer::raised(error),
        }
    }

    /// Arrives with an action, and waits for up to `limit` microseconds unless it is the last party. After
    /// the action of the last party, ends the phase.
    async fn arrive(&self, limit: u64, lost: Arc<AtomicBool>) -> Result<usize, BarrierError> {
        let acted = self.lock().acting.take();
        if let Some(acted) = acted {
            acted.arrival.iter().for_each(BarrierArrival::complete);
            return acted.wait(None).await;
        }
        let deadline = deadline_of(limit);
        let arrival = self.arrive_to_act(deadline).await?;
        let (index, is_last) = (arrival.index(), arrival.is_last());
        let caller = CallerArrival { arrival: Some(arrival), lost };
        if !is_last {
            return caller.wait(deadline).await;
        }
        self.lock().acting = Some(caller);
        Ok(index)
    }

    /// Arrives with an action. Waits while the last party of the previous phase runs its action.
    async fn arrive_to_act(&self, deadline: Option<Instant>) -> Result<BarrierArrival, BarrierError> {
        loop {
            if let Some(arrival) = self.barrier.arrive_timeout(Duration::ZERO, true)? {
                return Ok(arrival);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                // Breaks the previous phase, unless that has just ended.
                return self.barrier.arrive_late();
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl SharedObject for SharedParty {
    fn object_type(&self) -> ObjectType {
        ObjectType::barrier()
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        match call.method {
            ObjectMethod::Acquire => ready(self.enroll(call.lost)),
            ObjectMethod::Arrive => {
                Box::pin(async move { passed(self.arrive(call.number, call.lost).await) })
            }
            _ => ready(Answer::unknown_method()),
        }
    }
}
