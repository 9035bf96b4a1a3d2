//! Blocking calls, as named in reports.

/// A blocking call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum BlockingCall {
    /// A call that is not in this table.
    Other = 1,
    /// `Queue::get` and similar calls.
    QueueGet,
    /// `Queue::put` and similar calls.
    QueuePut,
    /// A put into any queue, blocked because there is no memory for another message.
    Envelope,
    /// `JoinableQueue::join`.
    QueueJoin,
    /// A get that waits for the end of other consumers' leases.
    QueueLeases,
    /// `Receiver::recv`.
    ReceiverRecv,
    /// `Sender::send`.
    SenderSend,
    /// `Connection::recv` of a pipe.
    ConnectionRecv,
    /// `Connection::send` into a pipe.
    ConnectionSend,
    /// `Connection::poll`.
    ConnectionPoll,
    /// A lock for one thread at a time.
    Lock,
    /// `RwLock::read`.
    RwLockRead,
    /// `RwLock::write`.
    RwLockWrite,
    /// `Event::wait`.
    Event,
    /// `Semaphore::acquire`.
    Semaphore,
    /// `Condition::wait`.
    Condition,
    /// `Barrier::wait`.
    Barrier,
    /// `join` of processes.
    Join,
    /// A wait for tasks of a pool.
    Pool,
    /// `wait` and `select`.
    Many,
    /// `watch::Receiver::wait_changed` and `wait_for`.
    WatchChanged,
    /// `watch::Sender::wait_closed`.
    WatchClosed,
    /// `broadcast::Receiver::recv`.
    BroadcastRecv,
}

/// All calls in the order of their numbers: call, its name, the kind of object, and the action of other
/// processes that ends the wait.
const ALL: [(BlockingCall, &str, &str, &str); 24] = [
    (BlockingCall::Other, "a call", "object", "has it"),
    (BlockingCall::QueueGet, "Queue::get", "queue", "could feed it"),
    (BlockingCall::QueuePut, "Queue::put", "queue", "could take from it"),
    (BlockingCall::Envelope, "a put without memory for one more message", "queue", "has it"),
    (BlockingCall::QueueJoin, "JoinableQueue::join", "queue", "could finish its tasks"),
    (BlockingCall::QueueLeases, "Queue::get_lease (for the end of others' leases)", "queue", "has it"),
    (BlockingCall::ReceiverRecv, "Receiver::recv", "channel", "could feed it"),
    (BlockingCall::SenderSend, "Sender::send", "channel", "could take from it"),
    (BlockingCall::ConnectionRecv, "Connection::recv", "pipe", "could feed it"),
    (BlockingCall::ConnectionSend, "Connection::send", "pipe", "could take from it"),
    (BlockingCall::ConnectionPoll, "Connection::poll", "pipe", "could feed it"),
    (BlockingCall::Lock, "lock", "lock", "has a handle to it"),
    (BlockingCall::RwLockRead, "RwLock::read", "lock", "has a handle to it"),
    (BlockingCall::RwLockWrite, "RwLock::write", "lock", "has a handle to it"),
    (BlockingCall::Event, "Event::wait", "event", "could set it"),
    (BlockingCall::Semaphore, "Semaphore::acquire", "semaphore", "could release it"),
    (BlockingCall::Condition, "Condition::wait", "condition", "could notify it"),
    (BlockingCall::Barrier, "Barrier::wait", "barrier", "could arrive at it"),
    (BlockingCall::Join, "join", "processes", "has not ended"),
    (BlockingCall::Pool, "a wait for tasks", "pool", "works for it"),
    (BlockingCall::Many, "wait", "several things", "could end it"),
    (BlockingCall::WatchChanged, "watch::Receiver::wait_changed", "cell", "could replace its value"),
    (BlockingCall::WatchClosed, "watch::Sender::wait_closed", "cell", "has a receiver of it"),
    (BlockingCall::BroadcastRecv, "broadcast::Receiver::recv", "channel", "could feed it"),
];

impl BlockingCall {
    fn row(self) -> &'static (BlockingCall, &'static str, &'static str, &'static str) {
        &ALL[(self as usize - 1) % ALL.len()]
    }

    pub(super) fn of(number: u8) -> Option<Self> {
        ALL.iter().map(|row| row.0).find(|call| *call as u8 == number)
    }

    pub(super) fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the kind of object that the call waits for.
    pub(super) fn object(self) -> &'static str {
        self.row().2
    }

    /// Returns the action or state of another process that may end the call.
    pub(super) fn ended_by(self) -> &'static str {
        self.row().3
    }

    /// Returns `true` if only processes that hold the block can end the wait, and the waiting thread runs no
    /// user code meanwhile.
    pub(super) fn is_ended_by_holders(self) -> bool {
        !matches!(
            self,
            Self::Other
                | Self::Envelope
                | Self::QueueLeases
                | Self::Join
                | Self::Pool
                | Self::Many
                | Self::WatchChanged
                | Self::WatchClosed
                | Self::BroadcastRecv
        )
    }

    /// Returns advice for a program that hangs in this call.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::QueueGet | Self::ReceiverRecv | Self::ConnectionPoll => {
                "Did you mean to send it to a worker, or to call close()?"
            }
            Self::ConnectionRecv => "Did you mean to send the other end to a worker?",
            Self::QueuePut | Self::SenderSend | Self::ConnectionSend => {
                "Did you mean to send it to a worker, or to take from it in another thread?"
            }
            Self::Join => "Take what they put before join(), and close() the queues that they read.",
            Self::QueueJoin => "Each task that is got has to be finished: by ack(), or by dropping it.",
            Self::Lock | Self::RwLockRead | Self::RwLockWrite => {
                "Was a guard kept, or are two locks taken in different orders?"
            }
            Self::Event => "Is set() called by a process that has it?",
            Self::Semaphore => "Was a permit kept?",
            Self::Condition => "Is notify called by a process that has it?",
            Self::Barrier => "Has it more parties than there are processes that arrive?",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_calls_round_trip_through_numbers() {
        for (i, row) in ALL.iter().enumerate() {
            assert_eq!(
                (row.0 as usize, row.0.row().1, BlockingCall::of(row.0 as u8)),
                (i + 1, row.1, Some(row.0))
            );
        }
        assert_eq!(BlockingCall::of(0), None);
    }
}
