//! Barriers of other members.

use std::fmt;
use std::ops::Deref;
use std::time::Instant;

use mp_core::Wait;
use mp_core::message::Outgoing;
use mp_reduce::decode_relayed;
use mp_sync::BarrierError;

use crate::cluster::Cluster;
use crate::error::{NetError, RemoteBarrierError};
use crate::link::CallValues;
use crate::link::completion::CallResult;
use crate::member::ClusterMember;
use crate::remote::connected::{ConnectedObject, HeldCall, remote_handle};
use crate::type_and_build::ObjectType;
use crate::wire::messages::{CallOutcome, Node, ObjectMethod, Operation, RemoteCall};

/// A [`Barrier`](mp_sync::Barrier) of another member of the cluster, with its methods.
///
/// ```
/// use mp_net::{Cluster, ClusterConfig, RemoteBarrier};
/// use mp_sync::Barrier;
///
/// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
/// let step = Barrier::new(2)?;
/// cluster.publish("step", &step)?;
///
/// // On any host of the cluster.
/// let remote = RemoteBarrier::connect(&cluster, "step")?;
/// let thread = std::thread::spawn(move || step.wait());
/// let (here, there) = (remote.wait()?, thread.join().expect("it does not panic")?);
/// assert_eq!(here + there, 1); // each index is returned once, so that one party can print
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Blocking
/// [`wait`](Self::wait) blocks until all parties have arrived. A time-out breaks the barrier for all parties,
/// and so does an interrupt of the process, or a dropped future of [`wait_async`](Self::wait_async). If the
/// connection is interrupted, a call ends with [`PeerLost`](crate::PeerLost) after the
/// [lease](crate::ClusterConfig::lease) and the [grace](crate::ClusterConfig::grace) at the latest.
///
/// # When a process or its host is lost
/// | lost | effect |
/// |---|---|
/// | a member that waits | soon after lease and grace, the barrier breaks: the others get [`BarrierError::MemberDied`], without the rank |
/// | a member that has not arrived | none: the others wait until another party arrives or their time-out expires |
/// | a member that is [enrolled](Self::enroll) | soon after lease and grace, the barrier breaks as above |
/// | the member that runs its action in [`wait_then`](Self::wait_then) | soon after lease and grace, the barrier breaks as above; no other member runs its action instead |
/// | the home (the member that has the barrier) | all calls end with `PeerLost` |
///
/// A broken barrier stays broken until a process calls [`reset`](Self::reset), as on one machine.
#[derive(Clone)]
pub struct RemoteBarrier(ConnectedObject);

remote_handle!(RemoteBarrier, ObjectType::barrier());

impl RemoteBarrier {
    /// Opens the barrier that a member has [published](Cluster::publish) under a name. Blocks until the name
    /// is published, for up to the [time limit](crate::ClusterConfig::timeout).
    ///
    /// # Errors
    /// The same as for [`RemoteQueue::connect`](crate::RemoteQueue::connect).
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, NetError> {
        ConnectedObject::connect(cluster, name, ObjectType::barrier()).map(Self)
    }

    /// Blocks until all parties have arrived. Returns the index of this party in the order of arrival, from
    /// 0.
    ///
    /// # Errors
    /// [`RemoteBarrierError::Barrier`] with the cause if the barrier is broken.
    /// [`RemoteBarrierError::PeerLost`] if the member that has the barrier was lost.
    pub fn wait(&self) -> Result<usize, RemoteBarrierError> {
        self.wait_with(Wait::Forever)
    }

    mp_core::forms! {
        "Waits until all parties have arrived":
        wait() -> Result<usize, RemoteBarrierError>,
        or "[`RemoteBarrierError::TimedOut`], and the barrier is broken for all parties";
        |barrier, wait| barrier.wait_with(wait);
        at_most wait_timeout;
        until wait_deadline;
    }

    fn wait_with(&self, wait: Wait) -> Result<usize, RemoteBarrierError> {
        index(&self.0, self.0.link.call(arrival(&self.0, wait), Wait::Forever))
    }

    /// Waits asynchronously until all parties have arrived. Returns the index. Dropping the future breaks the
    /// barrier.
    ///
    /// # Errors
    /// The same as for [`wait`](Self::wait).
    pub async fn wait_async(&self) -> Result<usize, RemoteBarrierError> {
        index(&self.0, self.0.link.call_async(arrival(&self.0, Wait::Forever), CallValues::None).await)
    }

    /// Blocks until all parties have arrived. The last party to arrive runs its `action`, in its own process,
    /// before the others continue.
    ///
    /// Each party may pass an action. Only the action of the last party runs. If the last party called
    /// [`wait`](Self::wait), no action runs. Parties on the host of the barrier take part by
    /// [`Barrier::wait_then`](mp_sync::Barrier::wait_then).
    ///
    /// ```
    /// use mp_net::{Cluster, ClusterConfig, RemoteBarrier};
    /// use mp_sync::Barrier;
    ///
    /// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
    /// let step = Barrier::new(2)?;
    /// cluster.publish("step", &step)?;
    ///
    /// // On any host of the cluster.
    /// let remote = RemoteBarrier::connect(&cluster, "step")?;
    /// let thread = std::thread::spawn(move || step.wait_then(|| println!("all have arrived")));
    /// remote.wait_then(|| println!("all have arrived"))?;
    /// thread.join().expect("it does not panic")?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`wait`](Self::wait). The other parties get [`BarrierError::Aborted`] if `action`
    /// panics or [aborts](Self::abort), and [`BarrierError::MemberDied`] if the member that runs it is lost.
    /// With [`RemoteBarrierError::PeerLost`], `action` may have run.
    #[doc(alias = "action")]
    pub fn wait_then(&self, action: impl FnOnce()) -> Result<usize, RemoteBarrierError> {
        self.act_with(Wait::Forever, action)
    }

    mp_core::forms! {
        "Waits until all parties have arrived and the last one has run `action`":
        wait_then(; action: impl FnOnce()) -> Result<usize, RemoteBarrierError>,
        or "[`RemoteBarrierError::TimedOut`], and the barrier is broken for all parties. The time does not \
            limit `action`";
        |barrier, wait| barrier.act_with(wait, action);
        at_most wait_then_timeout;
        until wait_then_deadline;
    }

    fn act_with(&self, wait: Wait, action: impl FnOnce()) -> Result<usize, RemoteBarrierError> {
        // Unwinding drops this value, which breaks the barrier.
        let (party, parties, held) = self.0.subscribe()?;
        let arrive = |wait| {
            let arrived = index(&party, party.link.call(arrival(&party, wait), Wait::Forever));
            arrived.map_err(|error| held.lost().map_or(error, RemoteBarrierError::PeerLost))
        };
        let arrived = arrive(wait)?;
        if arrived as u64 + 1 < parties {
            return Ok(arrived);
        }
        action();
        arrive(Wait::Forever)
    }

    /// Enrolls this process as a party until the returned handle is dropped or
    /// [leaves](RemoteBarrierMember::leave): if this process is lost, the barrier breaks, even while the
    /// process does not wait at it. A process needs only one enrollment. Blocks until the member that has the
    /// barrier has answered. [`RemoteBarrierError::TimedOut`] names enrolled processes that are missing. On
    /// the host of the barrier, [`BarrierError::TimedOut`] names the process that has published the barrier
    /// instead of processes on other hosts.
    ///
    /// ```
    /// use mp_net::{Cluster, ClusterConfig, RemoteBarrier};
    /// use mp_sync::Barrier;
    ///
    /// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
    /// cluster.publish("step", &Barrier::new(1)?)?;
    ///
    /// // On any host of the cluster.
    /// let party = RemoteBarrier::connect(&cluster, "step")?.enroll()?;
    /// party.wait()?;
    /// party.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// [`BarrierError::TooMany`] in [`RemoteBarrierError::Barrier`] if as many processes are enrolled as
    /// there are parties. [`RemoteBarrierError::PeerLost`] if the member that has the barrier was lost.
    pub fn enroll(&self) -> Result<RemoteBarrierMember, RemoteBarrierError> {
        let (party, _, held) = self.0.subscribe()?;
        let call = party.call_of(Operation::Call, ObjectMethod::Acquire, 0);
        let enrolled = index(&party, party.link.call(call, Wait::Forever));
        enrolled.map_err(|error| held.lost().map_or(error, RemoteBarrierError::PeerLost))?;
        Ok(RemoteBarrierMember { barrier: self.clone(), held })
    }

    /// Breaks the barrier: parties that wait or arrive get [`BarrierError::Aborted`].
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the barrier was lost.
    pub fn abort(&self) -> Result<(), NetError> {
        self.0.call(ObjectMethod::Abort, 0).map(drop)
    }

    /// Repairs the barrier. Parties that wait get [`BarrierError::Reset`].
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the barrier was lost.
    pub fn reset(&self) -> Result<(), NetError> {
        self.0.call(ObjectMethod::Reset, 0).map(drop)
    }

    /// Returns the number of parties.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the barrier was lost.
    pub fn parties(&self) -> Result<usize, NetError> {
        Ok(self.0.call(ObjectMethod::Parties, 0)? as usize)
    }

    /// Returns the number of parties that wait: a snapshot. 0 if the barrier is broken.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the barrier was lost.
    pub fn n_waiting(&self) -> Result<usize, NetError> {
        Ok(self.0.call(ObjectMethod::Waiting, 0)? as usize)
    }

    /// Returns `true` if the barrier is broken: a snapshot.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the barrier was lost.
    pub fn is_broken(&self) -> Result<bool, NetError> {
        Ok(self.0.call(ObjectMethod::IsBroken, 0)? != 0)
    }
}

/// Enrollment of this process as a party of a [`RemoteBarrier`]: the barrier breaks if the process is lost,
/// even while the process does not wait.
///
/// The enrollment dereferences to the barrier. Dropping this value ends the enrollment, without breaking the
/// barrier and without waiting for a reply. Call [`leave`](Self::leave), or leave the cluster, if the process
/// ends soon after the drop.
#[must_use = "dropping it leaves the barrier"]
pub struct RemoteBarrierMember {
    barrier: RemoteBarrier,
    held: HeldCall,
}

impl RemoteBarrierMember {
    /// Returns `true` if the enrollment is still valid, as far as this process knows. It ends if the member
    /// that has the barrier loses this process. In that case the barrier breaks, and a process that continues
    /// after a [`reset`](RemoteBarrier::reset) must enroll again.
    pub fn is_enrolled(&self) -> bool {
        self.held.link.lasts(self.held.id)
    }

    /// Ends the enrollment without breaking the barrier. Blocks until the member that has the barrier has
    /// answered.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the barrier was lost. [`NetError::Home`] if that member
    /// had lost this process, which has broken the barrier.
    pub fn leave(self) -> Result<(), NetError> {
        self.held.acknowledge("the enrollment has ended, and the barrier was broken")
    }
}

impl Deref for RemoteBarrierMember {
    type Target = RemoteBarrier;

    fn deref(&self) -> &RemoteBarrier {
        &self.barrier
    }
}

impl fmt::Debug for RemoteBarrierMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteBarrierMember{:?}", self.barrier.0)
    }
}

/// Returns the call with which a party arrives at the barrier. The home breaks the barrier when the time
/// limit has expired.
fn arrival(barrier: &ConnectedObject, wait: Wait) -> RemoteCall {
    let limit = match wait {
        Wait::Never => 0,
        Wait::Until(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            u64::try_from(left.as_micros()).unwrap_or(u64::MAX)
        }
        Wait::Forever => u64::MAX,
    };
    barrier.call_of(Operation::Call, ObjectMethod::Arrive, limit)
}

fn index(barrier: &ConnectedObject, result: CallResult) -> Result<usize, RemoteBarrierError> {
    let (reply, mut values) = result?;
    match values.pop() {
        Some(error) if reply.outcome() == CallOutcome::Raised => Err(broken(error, &reply.members)),
        _ => Ok(barrier.done(Ok((reply, values)))?.0.number as usize),
    }
}

/// Decodes the error of a barrier that the home has sent.
fn broken(error: Outgoing, missing: &[Node]) -> RemoteBarrierError {
    match decode_relayed::<BarrierError>(error) {
        Ok(error @ BarrierError::TimedOut { .. }) => {
            RemoteBarrierError::TimedOut { error, missing: missing.iter().map(ClusterMember::from).collect() }
        }
        Ok(error) => RemoteBarrierError::Barrier(error),
        Err(error) => RemoteBarrierError::Failed(error.into()),
    }
}
