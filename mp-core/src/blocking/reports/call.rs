//! Blocking calls, as named in reports.

const SEND_OR_CLOSE: &str = "Did you mean to send it to a worker, or to call close()?";
const SEND_OR_TAKE: &str = "Did you mean to send it to a worker, or to take from it in another thread?";
const GUARD: &str = "Was a guard kept, or are two locks taken in different orders?";

/// Description of a call, for reports.
pub(crate) struct CallText {
    pub(crate) name: &'static str,
    /// Kind of object that the call waits for.
    pub(crate) object: &'static str,
    /// Action or state of another process that may end the call.
    pub(crate) ended_by: &'static str,
    /// `true` if only processes that hold the block can end the wait, and the waiting thread runs no user
    /// code meanwhile.
    pub(crate) is_ended_by_holders: bool,
    /// Advice for a program that hangs in this call.
    pub(crate) advice: &'static str,
}

macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $call:ident: $name:literal, $object:literal, $ended_by:literal, $holders:literal, $advice:expr;
    )*) => {
        /// A blocking call.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum BlockingCall {
            $($(#[$doc])* $call,)*
        }

        /// All calls in the order of their numbers, which begin with 1.
        const ALL: &[(BlockingCall, CallText)] = &[$((
            BlockingCall::$call,
            CallText {
                name: $name,
                object: $object,
                ended_by: $ended_by,
                is_ended_by_holders: $holders,
                advice: $advice,
            },
        )),*];
    };
}

calls! {
    /// A call that is not in this table.
    Other: "a call", "object", "has it", false, "";
    /// `Queue::get` and similar calls.
    QueueGet: "Queue::get", "queue", "could feed it", true, SEND_OR_CLOSE;
    /// `Queue::put` and similar calls.
    QueuePut: "Queue::put", "queue", "could take from it", true, SEND_OR_TAKE;
    /// A put into any queue, blocked because there is no memory for another message.
    Envelope: "a put without memory for one more message", "queue", "has it", false, "";
    /// `JoinableQueue::join`.
    QueueJoin: "JoinableQueue::join", "queue", "could finish its tasks", true,
        "Each task that is got has to be finished: by ack(), or by dropping it.";
    /// A get that waits for the end of other consumers' leases.
    QueueLeases: "Queue::get_lease (for the end of others' leases)", "queue", "has it", false, "";
    /// `Receiver::recv`.
    ReceiverRecv: "Receiver::recv", "channel", "could feed it", true, SEND_OR_CLOSE;
    /// `Sender::send`.
    SenderSend: "Sender::send", "channel", "could take from it", true, SEND_OR_TAKE;
    /// `Connection::recv` of a pipe.
    ConnectionRecv: "Connection::recv", "pipe", "could feed it", true,
        "Did you mean to send the other end to a worker?";
    /// `Connection::send` into a pipe.
    ConnectionSend: "Connection::send", "pipe", "could take from it", true, SEND_OR_TAKE;
    /// `Connection::poll`.
    ConnectionPoll: "Connection::poll", "pipe", "could feed it", true, SEND_OR_CLOSE;
    /// A lock for one thread at a time.
    Lock: "lock", "lock", "has a handle to it", true, GUARD;
    /// `RwLock::read`.
    RwLockRead: "RwLock::read", "lock", "has a handle to it", true, GUARD;
    /// `RwLock::write`.
    RwLockWrite: "RwLock::write", "lock", "has a handle to it", true, GUARD;
    /// `Event::wait`.
    Event: "Event::wait", "event", "could set it", true, "Is set() called by a process that has it?";
    /// `Semaphore::acquire`.
    Semaphore: "Semaphore::acquire", "semaphore", "could release it", true, "Was a permit kept?";
    /// `Condition::wait`.
    Condition: "Condition::wait", "condition", "could notify it", true,
        "Is notify called by a process that has it?";
    /// `Barrier::wait`.
    Barrier: "Barrier::wait", "barrier", "could arrive at it", true,
        "Has it more parties than there are processes that arrive?";
    /// `join` of processes.
    Join: "join", "processes", "has not ended", false,
        "Take what they put before join(), and close() the queues that they read.";
    /// A wait for tasks of a pool.
    Pool: "a wait for tasks", "pool", "works for it", false, "";
    /// `wait` and `select`.
    Many: "wait", "several things", "could end it", false, "";
    /// `watch::Receiver::wait_changed` and `wait_for`.
    WatchChanged: "watch::Receiver::wait_changed", "cell", "could replace its value", false, "";
    /// `watch::Sender::wait_closed`.
    WatchClosed: "watch::Sender::wait_closed", "cell", "has a receiver of it", false, "";
    /// `broadcast::Receiver::recv`.
    BroadcastRecv: "broadcast::Receiver::recv", "channel", "could feed it", false, "";
}

impl BlockingCall {
    /// Returns the number of the call in a row of the table of waits.
    pub(super) const fn number(self) -> u8 {
        self as u8 + 1
    }

    pub(super) fn of(number: u8) -> Option<Self> {
        ALL.get(usize::from(number).checked_sub(1)?).map(|(call, _)| *call)
    }

    pub(crate) fn text(self) -> &'static CallText {
        &ALL[self as usize % ALL.len()].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_call_kinds_round_trip_through_numbers() {
        for (i, (call, text)) in ALL.iter().enumerate() {
            assert_eq!((call.number() as usize, BlockingCall::of(call.number())), (i + 1, Some(*call)));
            assert_eq!(call.text().name, text.name);
        }
        assert_eq!(BlockingCall::of(0), None);
    }
}
