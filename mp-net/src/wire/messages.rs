//! Messages of the service `mp.net.v1.Cluster`. Its call `Calls` is a stream of [`CallerMessage`] to the
//! home, and of [`HomeMessage`] to the caller. Numbers of fields are part of the protocol.

use std::ops::Range;

use prost::{Enumeration, Message, Oneof};

/// Version of the protocol. Both sides compare it before anything else.
pub(crate) const VERSION: u32 = 3;
/// HTTP path of the gRPC call `Calls`.
pub(crate) const PATH: &str = "/mp.net.v1.Cluster/Calls";

/// Message of a caller.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CallerMessage {
    #[prost(oneof = "CallerMessageKind", tags = "1, 2, 3, 4, 5, 6, 15")]
    pub(crate) kind: Option<CallerMessageKind>,
}

/// Kinds of [`CallerMessage`].
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum CallerMessageKind {
    /// First message of a stream.
    #[prost(message, tag = "1")]
    Hello(CallerGreeting),
    /// A call of an object.
    #[prost(message, tag = "2")]
    Call(RemoteCall),
    /// Calls whose replies have arrived. The home forgets these calls.
    #[prost(message, tag = "3")]
    Received(CallList),
    /// Call that its caller has cancelled.
    #[prost(uint64, tag = "4")]
    Cancel(u64),
    /// End of the session: the caller has received all replies that it needs. The value is always `true`.
    #[prost(bool, tag = "6")]
    Finished(bool),
    /// Calls whose replies have not arrived, sent after a reconnect. The home forgets all other calls.
    #[prost(message, tag = "5")]
    Wanted(CallRuns),
    /// Memory of attachments of the previous message. This variant is never built: `send` writes the bytes,
    /// and `receive` reads them.
    #[prost(bytes = "vec", tag = "15")]
    Data(Vec<u8>),
}

/// Message of a home.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HomeMessage {
    #[prost(oneof = "HomeMessageKind", tags = "1, 2, 3, 15")]
    pub(crate) kind: Option<HomeMessageKind>,
}

/// Kinds of [`HomeMessage`].
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum HomeMessageKind {
    /// First message of a stream.
    #[prost(message, tag = "1")]
    Challenge(Challenge),
    /// Answer to a [`CallerGreeting`].
    #[prost(message, tag = "2")]
    Welcome(Welcome),
    /// Outcome of a call.
    #[prost(message, tag = "3")]
    Reply(CallReply),
    /// Memory of attachments of the previous message. This variant is never built: `send` writes the bytes,
    /// and `receive` reads them.
    #[prost(bytes = "vec", tag = "15")]
    Data(Vec<u8>),
}

/// Random bytes for the proof of the caller, and the version of the home.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Challenge {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) nonce: Vec<u8>,
    /// `true` if the home has a key.
    #[prost(bool, tag = "3")]
    pub(crate) needs_key: bool,
}

/// Greeting of a caller: its identity, proof and limits.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CallerGreeting {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) nonce: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) proof: Vec<u8>,
    /// Number of the caller's session, chosen at random.
    #[prost(fixed64, tag = "4")]
    pub(crate) session: u64,
    /// Session number of the home that the caller expects. 0 if it accepts any home.
    #[prost(fixed64, tag = "5")]
    pub(crate) home: u64,
    #[prost(message, optional, tag = "6")]
    pub(crate) from: Option<Node>,
    /// Size of the largest message that the caller accepts, in bytes.
    #[prost(uint64, tag = "7")]
    pub(crate) largest: u64,
    /// Identifier of the caller's job, or empty.
    #[prost(string, tag = "8")]
    pub(crate) job: String,
}

/// Answer to a [`CallerGreeting`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Welcome {
    /// Reason for a refusal. Empty if the caller is accepted.
    #[prost(string, tag = "1")]
    pub(crate) refusal: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) proof: Vec<u8>,
    /// Number of the home's session, chosen at random when the home starts.
    #[prost(fixed64, tag = "3")]
    pub(crate) home: u64,
    /// `true` if the home has the caller's session, so that calls continue.
    #[prost(bool, tag = "4")]
    pub(crate) resumed: bool,
    /// Maximum number of unanswered calls.
    #[prost(uint32, tag = "5")]
    pub(crate) calls: u32,
    /// Maximum number of bytes of unanswered calls. A call with more bytes is sent when all other calls are
    /// answered.
    #[prost(uint64, tag = "6")]
    pub(crate) bytes: u64,
    /// Size in bytes of the largest message that the home accepts.
    #[prost(uint64, tag = "7")]
    pub(crate) largest: u64,
    #[prost(message, optional, tag = "8")]
    pub(crate) from: Option<Node>,
    /// Kind of the refusal, as a [`CallOutcome`].
    #[prost(enumeration = "CallOutcome", tag = "9")]
    pub(crate) outcome: i32,
}

/// A process of the cluster.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(uint32, tag = "1")]
    pub(crate) rank: u32,
    #[prost(string, tag = "2")]
    pub(crate) host: String,
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
    /// Address at which the process listens.
    #[prost(string, tag = "4")]
    pub(crate) address: String,
    /// Session number of the process's home.
    #[prost(fixed64, tag = "5")]
    pub(crate) home: u64,
    #[prost(uint32, tag = "6")]
    pub(crate) ranks: u32,
    #[prost(enumeration = "MemberPresence", tag = "7")]
    pub(crate) presence: i32,
}

/// A call of an object.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RemoteCall {
    /// Number of the call in the caller's session, ascending from 1.
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(enumeration = "Operation", tag = "2")]
    pub(crate) operation: i32,
    /// Object that is called, 0 for the home itself.
    #[prost(uint64, tag = "3")]
    pub(crate) object: u64,
    /// Time limit in microseconds. `None` means no limit.
    #[prost(uint64, optional, tag = "4")]
    pub(crate) wait: Option<u64>,
    /// Number whose meaning the operation defines.
    #[prost(uint64, tag = "5")]
    pub(crate) number: u64,
    /// Name that the operation needs.
    #[prost(string, tag = "6")]
    pub(crate) name: String,
    /// Name of the type that the caller expects, for [`Operation::Open`].
    #[prost(string, tag = "7")]
    pub(crate) type_name: String,
    #[prost(message, optional, tag = "8")]
    pub(crate) member: Option<Node>,
    /// Values of the call: several only for [`Operation::Put`].
    #[prost(message, repeated, tag = "9")]
    pub(crate) values: Vec<Value>,
    /// Method of the object, for [`Operation::Call`] and [`Operation::Wait`].
    #[prost(enumeration = "ObjectMethod", tag = "10")]
    pub(crate) method: i32,
    /// Number of messages that the caller keeps, for [`Operation::GiveBack`].
    #[prost(uint64, tag = "11")]
    pub(crate) kept: u64,
}

/// An encoded value. The memory of its blocks follows in messages of data, in their order.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) bytes: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) blocks: Vec<Block>,
}

/// Description of an attachment. Its memory follows in messages of data.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Block {
    #[prost(uint64, tag = "1")]
    pub(crate) bytes: u64,
    /// `true` if the memory is frozen, else it has one owner.
    #[prost(bool, tag = "2")]
    pub(crate) frozen: bool,
    /// Number that identifies the element type of a tensor.
    #[prost(uint32, tag = "3")]
    pub(crate) element: u32,
}

/// Outcome of a call.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CallReply {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(enumeration = "CallOutcome", tag = "2")]
    pub(crate) outcome: i32,
    #[prost(uint64, tag = "3")]
    pub(crate) number: u64,
    /// Text of the error, or names for error texts.
    #[prost(string, tag = "4")]
    pub(crate) text: String,
    /// Values of the reply: several only for [`Operation::Get`].
    #[prost(message, repeated, tag = "5")]
    pub(crate) values: Vec<Value>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) members: Vec<Node>,
    /// Size of a message that is too large, in bytes.
    #[prost(uint64, tag = "7")]
    pub(crate) size: u64,
    /// `true` if the caller holds a resource of the object, such as a permit, until it acknowledges the reply
    /// or gives it back.
    #[prost(bool, tag = "8")]
    pub(crate) holds: bool,
    /// Published names. The next field has the number of each publication.
    #[prost(string, repeated, tag = "9")]
    pub(crate) names: Vec<String>,
    #[prost(uint64, repeated, tag = "10")]
    pub(crate) publications: Vec<u64>,
    /// Number of messages that were put, for [`Operation::Put`].
    #[prost(uint64, tag = "11")]
    pub(crate) put: u64,
}

/// Numbers of calls.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CallList {
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) ids: Vec<u64>,
}

/// Numbers of calls, as runs of consecutive numbers.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CallRuns {
    /// Two numbers for each run, in ascending order: distance of the run's first number from the end of the
    /// previous run, and length of the run.
    #[prost(uint64, repeated, tag = "1")]
    runs: Vec<u64>,
}

impl CallRuns {
    pub(crate) fn new(mut ids: Vec<u64>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        let (mut runs, mut end) = (Vec::new(), 0);
        for id in ids {
            match runs.last_mut() {
                Some(length) if id == end => *length += 1,
                _ => runs.extend([id - end, 1]),
            }
            end = id.saturating_add(1);
        }
        Self { runs }
    }

    /// Returns the runs in ascending order.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut end = 0_u64;
        let range = |[distance, length]: &[u64; 2]| {
            let start = end.saturating_add(*distance);
            end = start.saturating_add(*length);
            start..end
        };
        self.runs.as_chunks().0.iter().map(range).collect()
    }
}

/// Presence of a member in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum MemberPresence {
    /// Member of the cluster.
    Present = 0,
    /// Member that has left.
    Left = 1,
    /// Member that was lost.
    Lost = 2,
}

/// Operations of homes and of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum Operation {
    /// Default value, which is never sent.
    Nothing = 0,
    /// Opens the object that was published as `name`. `type_name` and `number` (a fingerprint) are the
    /// expected type. Returns the number of the object.
    Open = 1,
    /// Puts `values` in their order, until one can't be put. Returns the number of values put.
    Put = 2,
    /// Takes the oldest message. If more messages are available, takes up to `number` messages.
    Get = 3,
    /// Takes a message that has to be acknowledged.
    Lease = 4,
    /// Acknowledges the message that call `number` leased, or removes the permit or other resource of that
    /// call from its object.
    Acknowledge = 5,
    /// Gives back the resources of call `number`: the leased message, the held permit or other resource, or
    /// the taken messages except for the first `kept`.
    GiveBack = 6,
    /// Closes the object.
    Close = 7,
    /// Returns the number of messages.
    Len = 8,
    /// Calls `method`. An interrupted caller waits for the outcome.
    Call = 9,
    /// Calls `method`, which can wait. An interrupted caller is allowed to ignore the outcome.
    Wait = 10,
    /// Subscribes to a channel, or becomes a party of a barrier. Returns the number of the subscription or
    /// party, an object that the caller holds. `size` is the capacity of the channel, or the number of
    /// parties of the barrier.
    Subscribe = 11,
    /// Answers a request to a service. The request is the only value.
    Serve = 12,
    /// Adds `member` to the cluster. Sent to the first rank only.
    Join = 16,
    /// Waits until there have been more than `number` changes. Returns the members, and the names that begin
    /// with `name`. Sent to the first rank only.
    Watch = 17,
    /// Registers `name` for an object of `member`. Sent to the first rank only.
    Publish = 18,
    /// Waits until a member has published a name, and returns that member. Sent to the first rank only.
    Find = 19,
    /// Withdraws a name. Sent to the first rank only.
    Withdraw = 20,
    /// Removes `member` from the cluster. Sent to the first rank only.
    Leave = 21,
}

/// Methods of objects other than queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum ObjectMethod {
    /// Default value, which is never sent.
    NoMethod = 0,
    /// Event: returns 1 if the event is set.
    IsSet = 1,
    /// Event: sets the event. Returns 1 if it was not set.
    Set = 2,
    /// Event: clears the event. Returns 1 if it was set.
    Clear = 3,
    /// Event: waits until the event is set.
    WaitSet = 4,
    /// Semaphore: takes a permit, which the caller holds. Party of a barrier: enrolls.
    Acquire = 16,
    /// Semaphore: returns the number of available permits.
    Available = 17,
    /// Semaphore: adds `number` permits.
    AddPermits = 18,
    /// Barrier: arrives, and waits for up to `number` microseconds, or without a limit if `number` is
    /// `u64::MAX`. Returns the index of the party. Party of a barrier: arrives with an action. The last party
    /// runs its action, and then calls `Arrive` again.
    Arrive = 32,
    /// Barrier: breaks the barrier.
    Abort = 33,
    /// Barrier: repairs the barrier.
    Reset = 34,
    /// Barrier: returns the number of parties.
    Parties = 35,
    /// Barrier: returns the number of parties that wait.
    Waiting = 36,
    /// Barrier: returns 1 if the barrier is broken.
    IsBroken = 37,
    /// Subscription: waits for the next message. With `number` 1, a watch channel sends its newest value
    /// again.
    Next = 48,
}

/// Outcomes of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum CallOutcome {
    /// Outcome that this build doesn't know: the caller returns an error.
    Unknown = 0,
    /// The call has succeeded.
    Done = 1,
    /// The queue was full until the time limit.
    Full = 2,
    /// No message or permit was available until the time limit, or the call was cancelled.
    Empty = 3,
    /// The object is closed.
    Closed = 4,
    /// All messages were taken, and no message will follow.
    End = 5,
    /// The call has failed. `text` is the error.
    Failed = 6,
    /// No object has this name or number.
    NotFound = 7,
    /// The name is taken.
    Taken = 8,
    /// The object has another type. `text` is the name of that type.
    WrongType = 9,
    /// The message of the call exceeds the limit of `number` bytes.
    TooLarge = 10,
    /// The home has too little memory. `text` is the error.
    OutOfMemory = 11,
    /// The versions differ.
    WrongVersion = 12,
    /// The key is wrong or missing.
    WrongKey = 13,
    /// Another cluster or session listens at this address.
    WrongCluster = 14,
    /// The call has failed. The only value is the encoded error.
    Raised = 15,
    /// `number` messages were replaced before they were read.
    Lagged = 16,
    /// The reply has `size` bytes, and exceeds the caller's limit of `number` bytes.
    ReplyTooLarge = 17,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_call_numbers_are_short_and_lossless() {
        let own = 1 << 63;
        let ids: Vec<u64> = (5..1000).chain([1001, 1003, 1004, own, own + 1, u64::MAX - 1]).collect();
        let runs = CallRuns::new(ids.iter().rev().copied().chain([7]).collect());
        assert!(runs.ranges().into_iter().flatten().eq(ids));
        assert!(runs.encoded_len() < 50);
        assert_eq!(CallRuns::default().ranges(), []);
        let hostile = CallRuns { runs: vec![u64::MAX, u64::MAX, 1, 1, 9] };
        assert!(hostile.ranges().iter().all(Range::is_empty));
    }
}
