//! Objects of other members, opened by their names.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_core::Wait;
use mp_core::message::Outgoing;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cluster::{Cluster, failed, with};
use crate::error::{NetError, PeerLost};
use crate::handle::HandleParts;
use crate::link::completion::CallResult;
use crate::link::{CallValues, HomeLink, HomePeer};
use crate::type_and_build::ObjectType;
use crate::wire::messages::{CallOutcome, CallReply, ObjectMethod, Operation, RemoteCall};

/// Object of another member that this process has opened.
#[derive(Clone)]
pub(crate) struct ConnectedObject {
    pub(crate) link: Arc<HomeLink>,
    pub(crate) name: Arc<str>,
    pub(crate) number: u64,
}

impl fmt::Debug for ConnectedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.link.peer();
        write!(f, "({:?} of rank {}, {})", self.name, peer.rank, peer.host)
    }
}

impl ConnectedObject {
    /// Opens the object that a member has published under a name. Blocks until the name is published, for up
    /// to the time limit of the cluster.
    ///
    /// # Errors
    /// [`NetError::NotPublished`], [`NetError::WrongType`], or an error of the connections to rank 0 and the
    /// home.
    pub(crate) fn connect(cluster: &Cluster, name: &str, ours: ObjectType) -> Result<Self, NetError> {
        Self::open(cluster.find(name)?, name, ours)
    }

    /// Opens an object like [`connect`](Self::connect), without waiting for the name.
    ///
    /// # Errors
    /// Returns the errors of [`connect`](Self::connect).
    pub(crate) fn connect_now(cluster: &Cluster, name: &str, ours: ObjectType) -> Result<Self, NetError> {
        Self::open(cluster.find_within(name, Duration::ZERO)?, name, ours)
    }

    fn open(link: Arc<HomeLink>, name: &str, ours: ObjectType) -> Result<Self, NetError> {
        let (number, type_name) = (ours.fingerprint, ours.name.clone());
        let call = RemoteCall { name: name.to_owned(), type_name, number, ..RemoteCall::default() };
        let (reply, _) = link.call(with(call, Operation::Open), Wait::Forever)?;
        match reply.outcome() {
            CallOutcome::Done => Ok(Self { link, name: name.into(), number: reply.number }),
            CallOutcome::WrongType => {
                let (name, theirs) = (name.to_owned(), mp_core::printable(&reply.text));
                Err(NetError::WrongType { name, theirs, ours: ours.name })
            }
            _ => Err(failed(&link.peer(), reply)),
        }
    }

    /// Writes a handle into the message that is being encoded.
    pub(crate) fn serialize<S: Serializer>(&self, of: ObjectType, s: S) -> Result<S::Ok, S::Error> {
        let parts = HandleParts::new(&self.link, &self.name, self.number, (of.fingerprint, of.name));
        parts.map_err(S::Error::custom)?.serialize(s)
    }

    /// Reads a handle from the message that is being decoded.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(ours: &ObjectType, d: D) -> Result<Self, D::Error> {
        let parts = HandleParts::deserialize(d)?;
        if parts.fingerprint != ours.fingerprint {
            let text = format!("{} arrived where {} is expected", parts.type_name, ours.name);
            return Err(D::Error::custom(text));
        }
        let link = parts.link().map_err(D::Error::custom)?;
        Ok(Self { link, name: parts.name.into(), number: parts.object })
    }

    /// Creates the call of a method of this object.
    pub(crate) fn call_of(&self, operation: Operation, method: ObjectMethod, number: u64) -> RemoteCall {
        let mut call = RemoteCall { object: self.number, number, ..RemoteCall::default() };
        call.set_method(method);
        with(call, operation)
    }

    /// Calls a method, and blocks until its outcome is known.
    pub(crate) fn call(&self, method: ObjectMethod, number: u64) -> Result<u64, NetError> {
        let result = self.link.call(self.call_of(Operation::Call, method, number), Wait::Forever);
        Ok(self.done(result)?.0.number)
    }

    /// Calls a method that waits. Returns `None` when the time has expired.
    ///
    /// # Errors
    /// [`NetError::Interrupted`] if the process was interrupted during the call.
    pub(crate) fn wait(&self, method: ObjectMethod, wait: Wait) -> Result<Option<CallReply>, NetError> {
        let result = self.link.call(self.call_of(Operation::Wait, method, 0), wait);
        match &result {
            Ok((reply, _)) if reply.outcome() == CallOutcome::Empty && !mp_core::interrupted() => Ok(None),
            _ => Ok(Some(self.done(result)?.0)),
        }
    }

    /// Calls a waiting method asynchronously. Dropping the future cancels the call.
    pub(crate) async fn wait_async(&self, method: ObjectMethod) -> Result<CallReply, NetError> {
        let call = self.call_of(Operation::Wait, method, 0);
        Ok(self.done(self.link.call_async(call, CallValues::None).await)?.0)
    }

    /// Subscribes this process to the object, until the returned [`HeldCall`] is dropped. Blocks until the
    /// home has answered. Returns the object to call for the subscription, the capacity of the channel or the
    /// number of parties of the barrier, and the `HeldCall`.
    pub(crate) fn subscribe(&self) -> Result<(Self, u64, HeldCall), NetError> {
        let call = self.call_of(Operation::Subscribe, ObjectMethod::NoMethod, 0);
        let (reply, _) = self.done(self.link.call(call, Wait::Forever))?;
        let held = HeldCall { link: self.link.clone(), id: reply.id, is_over: false };
        Ok((Self { number: reply.number, ..self.clone() }, reply.size, held))
    }

    /// Returns the reply of a call that has succeeded.
    pub(crate) fn done(&self, result: CallResult) -> Result<(CallReply, Option<Outgoing>), NetError> {
        let (reply, mut values) = result?;
        match reply.outcome() {
            CallOutcome::Done => Ok((reply, values.pop())),
            _ => Err(failed(&self.link.peer(), reply)),
        }
    }
}

/// Permit, leased message, subscription or other resource that the home has given to a call of this process.
/// Dropping this value gives the resource back.
pub(crate) struct HeldCall {
    pub(crate) link: Arc<HomeLink>,
    pub(crate) id: u64,
    pub(crate) is_over: bool,
}

impl HeldCall {
    /// Returns the error [`PeerLost`] if the session of the call has ended.
    pub(crate) fn lost(&self) -> Option<PeerLost> {
        let (HomePeer { rank, host, .. }, silent) = (self.link.peer(), Duration::ZERO);
        let cause = "the connection was lost while no call waited".to_owned();
        (!self.link.lasts(self.id)).then_some(PeerLost { rank, host, silent, in_doubt: true, cause })
    }

    /// Removes the held resource from the object: acknowledges the leased message, or removes the permit. If
    /// the home refuses, or no reply arrives, the resource is given back.
    ///
    /// # Errors
    /// [`NetError::Home`] with `ended` if the home holds nothing for this call any more.
    pub(crate) fn acknowledge(mut self, ended: &str) -> Result<(), NetError> {
        let call = with(RemoteCall { number: self.id, ..RemoteCall::default() }, Operation::Acknowledge);
        let (reply, _) = self.link.call(call, Wait::Forever)?;
        self.is_over = matches!(reply.outcome(), CallOutcome::Done | CallOutcome::NotFound);
        let peer = self.link.peer();
        match reply.outcome() {
            CallOutcome::Done => Ok(()),
            CallOutcome::NotFound => {
                Err(NetError::Home { rank: peer.rank, host: peer.host, text: ended.into() })
            }
            _ => Err(failed(&peer, reply)),
        }
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        if !self.is_over {
            let call = RemoteCall { number: self.id, ..RemoteCall::default() };
            self.link.post(with(call, Operation::GiveBack));
        }
    }
}

/// Implements `Debug`, `Serialize` and `Deserialize` for a type whose only field is a [`ConnectedObject`].
macro_rules! remote_handle {
    ($name:ident, $of:expr) => {
        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!(stringify!($name), "{:?}"), self.0)
            }
        }

        /// Handles can be part of messages and arguments. The receiver connects to the home itself. A worker
        /// process uses the rank of its parent, and another member uses its own rank.
        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, s: S) -> ::std::result::Result<S::Ok, S::Error> {
                self.0.serialize($of, s)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(d: D) -> ::std::result::Result<Self, D::Error> {
                $crate::remote::connected::ConnectedObject::deserialize(&$of, d).map(Self)
            }
        }
    };
}
pub(crate) use remote_handle;
