//! Barriers of other members.

use std::time::Instant;

use mp_core::Wait;
use mp_core::message::Outgoing;
use mp_reduce::decode_relayed;
use mp_sync::BarrierError;

use crate::cluster::Cluster;
use crate::error::{NetError, RemoteBarrierError};
use crate::link::completion::CallResult;
use crate::object_type::ObjectType;
use crate::remote::connected::{ConnectedObject, remote_handle};
use crate::wire::messages::{CallOutcome, ObjectMethod, Operation, RemoteCall};

/// A [`Barrier`](mp_sync::Barrier) of another member of the cluster. The action of the last party and
/// [`enroll`](mp_sync::Barrier::enroll) are not available.
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
/// | the home | all calls end with `PeerLost` |
///
/// A broken barrier stays broken until a process calls [`reset`](Self::reset), as on one machine.
#[derive(Clone)]
pub struct RemoteBarrier(ConnectedObject);

remote_handle!(RemoteBarrier, ObjectType::barrier());

impl RemoteBarrier {
    /// Opens the barrier that a member has [published](Cluster::publish) under a name. Blocks until there is
    /// one, for up to the [time limit](crate::ClusterConfig::timeout).
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
    /// [`RemoteBarrierError::PeerLost`] if the home was lost.
    pub fn wait(&self) -> Result<usize, RemoteBarrierError> {
        self.wait_with(Wait::Forever)
    }

    mp_core::forms! {
        "Waits until all parties have arrived":
        wait() -> Result<usize, RemoteBarrierError>,
        or "[`BarrierError::TimedOut`], and the barrier is broken for all parties";
        |barrier, wait| barrier.wait_with(wait);
        at_most wait_timeout;
        until wait_deadline;
    }

    fn wait_with(&self, wait: Wait) -> Result<usize, RemoteBarrierError> {
        self.index(self.0.link.call(self.arrival(wait), Wait::Forever))
    }

    /// Waits asynchronously until all parties have arrived. Returns the index. Dropping the future breaks the
    /// barrier.
    ///
    /// # Errors
    /// The same as for [`wait`](Self::wait).
    pub async fn wait_async(&self) -> Result<usize, RemoteBarrierError> {
        self.index(self.0.link.call_async(self.arrival(Wait::Forever), None).await)
    }

    /// Returns the call of a party. The home breaks the barrier when the time has expired.
    fn arrival(&self, wait: Wait) -> RemoteCall {
        let limit = match wait {
            Wait::Never => 0,
            Wait::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                u64::try_from(left.as_micros()).unwrap_or(u64::MAX)
            }
            Wait::Forever => u64::MAX,
        };
        self.0.call_of(Operation::Call, ObjectMethod::Arrive, limit)
    }

    fn index(&self, result: CallResult) -> Result<usize, RemoteBarrierError> {
        match result {
            Ok((reply, Some(error))) if reply.outcome() == CallOutcome::Raised => Err(broken(error)),
            result => Ok(self.0.done(result)?.0.number as usize),
        }
    }

    /// Breaks the barrier: parties that wait or arrive get [`BarrierError::Aborted`].
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the home was lost.
    pub fn abort(&self) -> Result<(), NetError> {
        self.0.call(ObjectMethod::Abort, 0).map(drop)
    }

    /// Repairs the barrier and removes its waiters, which get [`BarrierError::Reset`].
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the home was lost.
    pub fn reset(&self) -> Result<(), NetError> {
        self.0.call(ObjectMethod::Reset, 0).map(drop)
    }

    /// Returns the number of parties.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the home was lost.
    pub fn parties(&self) -> Result<usize, NetError> {
        Ok(self.0.call(ObjectMethod::Parties, 0)? as usize)
    }

    /// Returns the number of parties that wait: a snapshot. 0 if the barrier is broken.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the home was lost.
    pub fn n_waiting(&self) -> Result<usize, NetError> {
        Ok(self.0.call(ObjectMethod::Waiting, 0)? as usize)
    }

    /// Returns `true` if the barrier is broken: a snapshot.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the home was lost.
    pub fn is_broken(&self) -> Result<bool, NetError> {
        Ok(self.0.call(ObjectMethod::IsBroken, 0)? != 0)
    }
}

/// Returns the error that the home has sent.
fn broken(error: Outgoing) -> RemoteBarrierError {
    match decode_relayed::<BarrierError>(error) {
        Ok(error) => RemoteBarrierError::Barrier(error),
        Err(error) => RemoteBarrierError::Failed(error.into()),
    }
}
