//! Events, semaphores and barriers of this process that other members call.

use std::sync::Arc;
use std::time::Duration;

use mp_core::mutex::Mutex;
use mp_sync::{
    AcquireError, Barrier, BarrierArrival, BarrierError, BarrierMember, BoundedSemaphore, Event, Permit,
    Semaphore,
};
use tokio::time::{Instant, timeout_at};

use crate::home::object::{Answer, Answering, CallerHold, MethodCall, SharedObject};
use crate::reactor;
use crate::sync::{AtomicBool, Ordering};
use crate::type_and_build::ObjectType;
use crate::wire::messages::{Node, ObjectMethod};

/// Number of permits that are added in one step. Other calls can run between two steps.
const AT_ONCE: u64 = 64;
/// Pause between two attempts to arrive while the last party of the previous phase runs its action.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns a future that is ready with `answer`.
fn ready(answer: Answer) -> Answering {
    Box::pin(std::future::ready(answer))
}

/// Converts the boolean result of a method into an answer.
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

/// Permit that a caller holds. Dropping it returns the permit to the semaphore.
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

    /// Adds permits in steps of [`AT_ONCE`], so that other calls can run in between.
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
pub(crate) struct SharedBarrier {
    barrier: Barrier,
    callers: Arc<BarrierCallers>,
}

/// Callers that are enrolled, and callers that have arrived. The barrier itself has no list of callers: each
/// of them counts as a party of this process.
#[derive(Default)]
struct BarrierCallers {
    enrolled: Mutex<Vec<Arc<Node>>>,
    arrived: Mutex<Vec<Arc<Node>>>,
}

/// Entry for a caller in one of the lists of [`BarrierCallers`]. Dropping it removes the entry.
struct ListedCaller {
    callers: Arc<BarrierCallers>,
    list: fn(&BarrierCallers) -> &Mutex<Vec<Arc<Node>>>,
    caller: Arc<Node>,
}

impl ListedCaller {
    fn new(
        callers: &Arc<BarrierCallers>,
        list: fn(&BarrierCallers) -> &Mutex<Vec<Arc<Node>>>,
        caller: Arc<Node>,
    ) -> Self {
        list(callers).lock().push(caller.clone());
        Self { callers: callers.clone(), list, caller }
    }
}

impl Drop for ListedCaller {
    fn drop(&mut self) {
        remove(&mut (self.list)(&self.callers).lock(), &self.caller);
    }
}

/// Removes the first entry of a caller from a list. Returns `false` if the list has no such entry.
fn remove(list: &mut Vec<Arc<Node>>, caller: &Arc<Node>) -> bool {
    let at = list.iter().position(|other| Arc::ptr_eq(other, caller));
    at.map(|at| list.swap_remove(at)).is_some()
}

impl BarrierCallers {
    /// Returns the enrolled callers that have not arrived.
    fn missing(&self) -> Vec<Node> {
        let mut arrived = self.arrived.lock().clone();
        let enrolled = self.enrolled.lock();
        let missing = enrolled.iter().filter(|caller| !remove(&mut arrived, caller));
        missing.map(|caller| Node::clone(caller)).collect()
    }
}

/// Error of a party, with the enrolled callers that had not arrived when its time expired.
struct PartyError {
    error: BarrierError,
    missing: Vec<Node>,
}

impl From<BarrierError> for PartyError {
    fn from(error: BarrierError) -> Self {
        Self { error, missing: Vec::new() }
    }
}

/// Arrival of a caller. If this value is dropped because the session has ended, the barrier breaks as after
/// the death of a party. If the value is dropped because the caller has cancelled the call, the barrier
/// breaks as after [`Barrier::abort`].
struct CallerArrival {
    arrival: Option<BarrierArrival>,
    lost: Arc<AtomicBool>,
    listed: ListedCaller,
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

/// Returns the answer to a party: the party's index, or the error of the broken barrier.
fn passed(end: Result<usize, PartyError>) -> Answer {
    match end {
        Ok(index) => Answer::number(index as u64),
        Err(PartyError { error, missing }) => {
            let mut answer = Answer::raised(error);
            answer.reply.members = missing;
            answer
        }
    }
}

impl CallerArrival {
    fn new(
        arrival: BarrierArrival,
        callers: &Arc<BarrierCallers>,
        (caller, lost): (Arc<Node>, Arc<AtomicBool>),
    ) -> Self {
        let listed = ListedCaller::new(callers, |callers| &callers.arrived, caller);
        Self { arrival: Some(arrival), lost, listed }
    }

    /// Waits until all parties have arrived, or breaks the barrier at `deadline`.
    async fn wait(mut self, deadline: Option<Instant>) -> Result<usize, PartyError> {
        let Some(arrival) = &mut self.arrival else { return Err(BarrierError::Aborted.into()) };
        let Some(deadline) = deadline else { return Ok(arrival.wait_async().await?) };
        match timeout_at(deadline, arrival.wait_async()).await {
            Ok(end) => Ok(end?),
            Err(_) => {
                // Listed first: breaking the barrier ends the calls of the callers that have arrived.
                let missing = self.listed.callers.missing();
                let end = self.arrival.take().map_or(Err(BarrierError::Aborted), BarrierArrival::time_out);
                end.map_err(|error| PartyError { error, missing })
            }
        }
    }
}

impl SharedBarrier {
    pub(crate) fn new(barrier: Barrier) -> Self {
        Self { barrier, callers: Arc::default() }
    }

    /// Arrives at the barrier for a caller, and waits for up to `limit` microseconds. Returns the index of
    /// the party.
    async fn arrive(&self, limit: u64, who: (Arc<Node>, Arc<AtomicBool>)) -> Result<usize, PartyError> {
        let deadline = deadline_of(limit);
        let arrived = match deadline {
            None => Ok(self.barrier.arrive_async().await),
            Some(deadline) => timeout_at(deadline, self.barrier.arrive_async()).await,
        };
        let arrival = arrived.unwrap_or_else(|_| self.barrier.arrive_late())?;
        CallerArrival::new(arrival, &self.callers, who).wait(deadline).await
    }
}

impl SharedObject for SharedBarrier {
    fn object_type(&self) -> ObjectType {
        ObjectType::barrier()
    }

    fn subscribe(&self) -> Option<(Arc<dyn SharedObject>, usize)> {
        let (barrier, callers) = (self.barrier.clone(), self.callers.clone());
        let party = SharedParty { barrier, callers, state: Mutex::default() };
        Some((Arc::new(party), self.barrier.parties()))
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        let done = |result: mp_core::Result<()>| ready(changed(result.map(|()| true)));
        match call.method {
            ObjectMethod::Arrive => {
                Box::pin(async move { passed(self.arrive(call.number, (call.caller, call.lost)).await) })
            }
            ObjectMethod::Abort => done(self.barrier.abort()),
            ObjectMethod::Reset => done(self.barrier.reset()),
            ObjectMethod::Parties => ready(Answer::number(self.barrier.parties() as u64)),
            ObjectMethod::Waiting => ready(Answer::number(self.barrier.n_waiting() as u64)),
            ObjectMethod::IsBroken => ready(changed(Ok(self.barrier.is_broken()))),
            _ => ready(Answer::unknown_method()),
        }
    }
}

/// Party of a barrier for a caller that has enrolled or passes an action. Dropping it ends the enrollment.
/// The drop breaks the barrier if the session has ended or the action has not finished.
///
/// | call | effect |
/// |---|---|
/// | `Acquire` | enrolls the caller |
/// | first `Arrive` | arrives with an action, and waits unless it is the last party |
/// | second `Arrive`, of the last party after its action | ends the phase |
pub(crate) struct SharedParty {
    barrier: Barrier,
    callers: Arc<BarrierCallers>,
    state: Mutex<PartyState>,
}

#[derive(Default)]
struct PartyState {
    enrolled: Option<EnrolledParty>,
    /// Arrival of the caller as the last party. Present while the caller runs its action.
    acting: Option<CallerArrival>,
}

/// Enrollment of a caller. If it is dropped because the session has ended, the barrier breaks as after the
/// death of an enrolled process.
struct EnrolledParty {
    member: Option<BarrierMember>,
    lost: Arc<AtomicBool>,
    _listed: ListedCaller,
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

/// Breaks the barrier with the error that the death of an enrolled party causes.
async fn lose(member: BarrierMember) {
    loop {
        match member.arrive_timeout(Duration::ZERO, true) {
            // `lose` returns `false` if all parties have passed this phase meanwhile.
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
    fn enroll(&self, (caller, lost): (Arc<Node>, Arc<AtomicBool>)) -> Answer {
        match self.barrier.enroll() {
            Ok(member) => {
                let listed = ListedCaller::new(&self.callers, |callers| &callers.enrolled, caller);
                let enrolled = EnrolledParty { member: Some(member), lost, _listed: listed };
                let former = self.state.lock().enrolled.replace(enrolled);
                drop(former);
                Answer::number(0)
            }
            Err(error) => Answer::raised(error),
        }
    }

    /// Handles `Arrive`. The first call arrives with an action, and waits for up to `limit` microseconds
    /// unless the caller is the last party. The second call, which the last party makes after its action,
    /// ends the phase.
    async fn arrive(&self, limit: u64, who: (Arc<Node>, Arc<AtomicBool>)) -> Result<usize, PartyError> {
        let acted = self.state.lock().acting.take();
        if let Some(acted) = acted {
            acted.arrival.iter().for_each(BarrierArrival::complete);
            return acted.wait(None).await;
        }
        let deadline = deadline_of(limit);
        let arrival = self.arrive_to_act(deadline).await?;
        let (index, is_last) = (arrival.index(), arrival.is_last());
        let caller = CallerArrival::new(arrival, &self.callers, who);
        if !is_last {
            return caller.wait(deadline).await;
        }
        self.state.lock().acting = Some(caller);
        Ok(index)
    }

    /// Arrives with an action. Waits while the last party of the previous phase runs its action.
    async fn arrive_to_act(&self, deadline: Option<Instant>) -> Result<BarrierArrival, BarrierError> {
        loop {
            if let Some(arrival) = self.barrier.arrive_timeout(Duration::ZERO, true)? {
                return Ok(arrival);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                // Breaks the previous phase, unless the phase has just ended.
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
            ObjectMethod::Acquire => ready(self.enroll((call.caller, call.lost))),
            ObjectMethod::Arrive => {
                Box::pin(async move { passed(self.arrive(call.number, (call.caller, call.lost)).await) })
            }
            _ => ready(Answer::unknown_method()),
        }
    }
}
