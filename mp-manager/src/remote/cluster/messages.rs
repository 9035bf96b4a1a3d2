//! Messages between a [`ClusterProxy`](super::proxy::ClusterProxy) and the member that published its object.
//!
//! Arguments and results follow as bytes, like in the messages of [`wire`](crate::remote::wire). The names
//! and the module of both message types are part of the format.

use serde::{Deserialize, Serialize};

use crate::error::CallError;

/// Request of another member.
#[derive(Serialize, Deserialize)]
pub(crate) enum ClusterAsk {
    /// Describe the published object.
    Describe,
    /// Call a method of the object of a handle, or of the published object. The arguments follow. The method
    /// must return an object if `returns_object`, and a value otherwise.
    Call { handle: Option<u64>, method: String, returns_object: bool },
    /// Return another handle to the same object.
    Share { handle: u64 },
    /// Free the object of a handle, or the published object.
    Free { handle: Option<u64> },
}

/// Reply of the member that published the object.
#[derive(Serialize, Deserialize)]
pub(crate) enum ClusterReply {
    /// Registered name of the type, process id of the manager's server, and number of the object in it.
    Described { type_name: String, server: u32, object: u64 },
    /// The call is done. The result follows.
    Done,
    /// Handle to an object. The caller holds the handle from then on.
    Object { handle: u64, type_name: String, object: u64 },
    /// The object is freed.
    Freed,
    /// The call failed.
    Failed(CallError),
}

#[cfg(test)]
mod tests {
    use mp_core::message::{Incoming, Message, Outgoing};
    use mp_reduce::MessagePack;

    use super::*;
    use crate::answer::MessageBody;
    use crate::remote::wire::Framed;

    fn encoded<H: Serialize + for<'de> Deserialize<'de> + 'static>(head: H) -> Vec<u8> {
        let body = MessageBody::few([], &7_u64).unwrap();
        let mut out = Outgoing::in_band();
        Framed { head, body }.encode::<MessagePack>(&mut out).unwrap();
        std::mem::take(out.bytes())
    }

    fn asks(bytes: &[u8]) {
        _ = Framed::<ClusterAsk>::decode::<MessagePack>(&mut Incoming::from_plain(bytes.to_vec()));
    }

    fn ask_seeds() -> Vec<Vec<u8>> {
        let call = |handle| ClusterAsk::Call { handle, method: "push".into(), returns_object: true };
        let others = [ClusterAsk::Share { handle: 5 }, ClusterAsk::Free { handle: Some(5) }];
        let calls = [call(None), call(Some(1 << 40)), ClusterAsk::Describe];
        calls.into_iter().chain(others).map(encoded).collect()
    }

    fn replies(bytes: &[u8]) {
        _ = Framed::<ClusterReply>::decode::<MessagePack>(&mut Incoming::from_plain(bytes.to_vec()));
    }

    fn reply_seeds() -> Vec<Vec<u8>> {
        let failed = ClusterReply::Failed(CallError::Value { why: "why".into(), undecodable: None });
        let described = ClusterReply::Described { type_name: "Words".into(), server: 300, object: 4 };
        let object = ClusterReply::Object { handle: 7, type_name: "Words".into(), object: 5 };
        [described, ClusterReply::Done, object, ClusterReply::Freed, failed].map(encoded).into()
    }

    #[test]
    fn mutated_cluster_messages_are_read_or_refused() {
        mp_harness::hostile::short(&[("asks", asks, ask_seeds), ("replies", replies, reply_seeds)]);
    }
}
