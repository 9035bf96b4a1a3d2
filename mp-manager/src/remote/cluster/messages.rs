//! Messages between a [`ClusterProxy`](super::proxy::ClusterProxy) and the member that published its object.
//!
//! Arguments and results follow as bytes, like in the messages of [`wire`](crate::remote::wire). The names
//! and the module of both types are part of the format.

use serde::{Deserialize, Serialize};

use crate::error::CallError;

/// Request of another member.
#[derive(Serialize, Deserialize)]
pub(crate) enum ClusterAsk {
    /// Describe the object.
    Describe,
    /// Call a method. The arguments follow.
    Call { method: String },
}

/// Reply of the member that published the object.
#[derive(Serialize, Deserialize)]
pub(crate) enum ClusterReply {
    /// Registered name of the type, and process id of the manager's server.
    Described { type_name: String, server: u32 },
    /// The call is done. The result follows.
    Done,
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
        [ClusterAsk::Describe, ClusterAsk::Call { method: "push".into() }].map(encoded).into()
    }

    fn replies(bytes: &[u8]) {
        _ = Framed::<ClusterReply>::decode::<MessagePack>(&mut Incoming::from_plain(bytes.to_vec()));
    }

    fn reply_seeds() -> Vec<Vec<u8>> {
        let failed = ClusterReply::Failed(CallError::Value { why: "why".into(), undecodable: None });
        let described = ClusterReply::Described { type_name: "Words".into(), server: 300 };
        [described, ClusterReply::Done, failed].map(encoded).into()
    }

    #[test]
    fn mutated_messages_are_read_or_refused() {
        mp_harness::hostile::short(&[("asks", asks, ask_seeds), ("replies", replies, reply_seeds)]);
    }
}
