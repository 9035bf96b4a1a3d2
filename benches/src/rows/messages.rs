//! Messages: their round trips, their rates, fairness, and the cost of waiting.

use super::{Better, Row, USUAL, peers};
#[cfg(feature = "peers")]
use crate::peers::ipc_channel::{BLOCKING, POLLING};
#[cfg(feature = "peers")]
use crate::peers::{crossbeam, iceoryx2, ipc_channel, python, tokio};
use crate::{limits, ours, syscalls};

/// Rows in the order in which they run.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "rtt_awake",
        unit: "ns",
        better: Better::Lower,
        about: "round trip of a u64 between two busy processes",
        rounds: USUAL,
        limit: limits::rtt_awake,
        ours: ours::rtt_awake,
        peers: peers![
            "iceoryx2" => iceoryx2::rtt_awake,
            "ipc-channel" => ipc_channel::rtt_awake::<BLOCKING>,
            "ipc-channel polling" => ipc_channel::rtt_awake::<POLLING>,
            "crossbeam-channel" => crossbeam::rtt_awake,
            "Python" => python::rtt,
            "torch" => python::torch_rtt
        ],
        note: || {
            "limit: spinning on a cache line; iceoryx2 polls; ipc-channel blocks in `recv`, or polls with \
             `try_recv`, a system call each; crossbeam-channel: two threads that poll with `try_recv`; \
             Python, torch: the SimpleQueue of multiprocessing and of torch.multiprocessing, if installed"
        },
    },
    Row {
        id: "rtt_asleep",
        unit: "ns",
        better: Better::Lower,
        about: "round trip of a u64, each process asleep in the kernel when its message is sent",
        rounds: USUAL,
        limit: limits::rtt_asleep,
        ours: ours::rtt_asleep,
        peers: peers![
            "iceoryx2" => iceoryx2::rtt_asleep,
            "ipc-channel" => ipc_channel::rtt_asleep,
            "crossbeam-channel" => crossbeam::rtt_asleep
        ],
        note: || {
            "way there plus way back, each sent 50 µs after the other side began to wait; only those count \
             in which \
             the kernel's count of context switches shows that both slept; limit: bare futex; iceoryx2: \
             publish-subscribe plus an event service; crossbeam-channel: two threads, which spin before they \
             sleep"
        },
    },
    Row {
        id: "one_way_1p1c",
        unit: "1/s",
        better: Better::Higher,
        about: "u64 messages per second from one producer to one consumer",
        rounds: USUAL,
        limit: limits::one_way,
        ours: ours::one_way,
        peers: peers![
            "iceoryx2" => iceoryx2::one_way,
            "ipc-channel" => ipc_channel::one_way::<BLOCKING>,
            "ipc-channel polling" => ipc_channel::one_way::<POLLING>,
            "crossbeam-channel" => crossbeam::one_way,
            "Python" => python::one_way,
            "torch" => python::torch_one_way
        ],
        note: || {
            "limit: a ring that a killed or stopped process breaks; iceoryx2: lossless (no overflow, retry \
             until \
             delivered), buffer of 1024, consumer polls busily; the others as for rtt_awake, but Python, \
             torch: their Queue"
        },
    },
    Row {
        id: "one_way_2p2c",
        unit: "1/s",
        better: Better::Higher,
        about: "u64 messages per second from two producers to two consumers",
        rounds: USUAL,
        limit: limits::one_way,
        ours: ours::crowd::one_way_2p2c,
        peers: peers!["crossbeam-channel" => crossbeam::one_way_2p2c],
        note: || {
            "limit: as one_way_1p1c, one to one; start and end of the four processes are not counted \
        but for the last"
        },
    },
    Row {
        id: "struct_200b",
        unit: "1/s",
        better: Better::Higher,
        about: "a struct of some 200 bytes (texts, numbers, a list), encoded and decoded: messages per \
        second, one to one",
        rounds: USUAL,
        limit: limits::one_way,
        ours: ours::crowd::struct_200b,
        peers: peers![
            "ipc-channel" => ipc_channel::struct_200b::<BLOCKING>,
            "ipc-channel polling" => ipc_channel::struct_200b::<POLLING>
        ],
        note: || "limit: as one_way_1p1c, of a u64",
    },
    Row {
        id: "plain_200b",
        unit: "1/s",
        better: Better::Higher,
        about: "a struct of 200 bytes that is plain data, as its bytes (`#[message(as_bytes)]`): messages \
        per second, one to one",
        rounds: USUAL,
        limit: limits::one_way,
        ours: ours::crowd::plain_200b,
        peers: peers![],
        note: || "limit: as one_way_1p1c, of a u64",
    },
    Row {
        id: "tensors_100",
        unit: "ns",
        better: Better::Lower,
        about: "a stream of messages with the same 100 tensors, one element of each read: time for each \
        message",
        rounds: USUAL,
        limit: ours::crowd::no_limit,
        ours: ours::crowd::tensors_100,
        peers: peers![],
        note: || "each tensor is one more holder there and one less here: some ten shared words",
    },
    Row {
        id: "watch_send",
        unit: "ns",
        better: Better::Lower,
        about: "a value of 128 bytes replaced in a `watch` channel, while a reader in another process reads \
        all the time",
        rounds: USUAL,
        limit: ours::crowd::no_limit,
        ours: ours::retained::watch_send,
        peers: peers!["tokio" => tokio::watch_send],
        note: || "tokio: its `watch` between two threads; the value stays where it is, and is not encoded",
    },
    Row {
        id: "broadcast_1p1c",
        unit: "1/s",
        better: Better::Higher,
        about: "u64s per second through a `broadcast` channel to a receiver in another process, which \
        misses none",
        rounds: USUAL,
        limit: limits::one_way,
        ours: ours::retained::broadcast,
        peers: peers!["tokio" => tokio::broadcast],
        note: || "limit: as for one_way_1p1c; tokio: its `broadcast` between two threads",
    },
    Row {
        id: "fair_8p8c_least",
        unit: "%",
        better: Better::Higher,
        about: "8 producers and 8 consumers of one queue for 4 s: the least that one did, in percent of its \
        side's mean",
        rounds: 3,
        limit: ours::crowd::no_limit,
        ours: ours::crowd::fair_least,
        peers: peers![],
        note: || "100 if all did the same",
    },
    Row {
        id: "fair_8p8c_most",
        unit: "%",
        better: Better::Lower,
        about: "the same: the most that one did",
        rounds: 3,
        limit: ours::crowd::no_limit,
        ours: ours::crowd::fair_most,
        peers: peers![],
        note: || "100 if all did the same",
    },
    Row {
        id: "put_at_65k_queued",
        unit: "ns",
        better: Better::Lower,
        about: "a put of 40 bytes, while 65,536 messages wait in another queue",
        rounds: USUAL,
        limit: ours::backlog::at_none,
        ours: ours::backlog::at_65k,
        peers: peers![],
        note: || "limit: the same with no other message",
    },
    Row {
        id: "put_at_900k_queued",
        unit: "ns",
        better: Better::Lower,
        about: "the same, while 900,000 wait",
        rounds: USUAL,
        limit: ours::backlog::at_none,
        ours: ours::backlog::at_900k,
        peers: peers![],
        note: || "limit: the same with no other message",
    },
    Row {
        id: "socket_1m",
        unit: "ns",
        better: Better::Lower,
        about: "a message of 1 MiB over a socket (`Connection::send_bytes`, `recv_bytes`)",
        rounds: USUAL,
        limit: ours::socket::bare_1m,
        ours: ours::socket::connection_1m,
        peers: peers![],
        note: || "limit: `write_all` and `read_exact` of a `UnixStream`, into a new buffer each; two threads",
    },
    Row {
        id: "socket_64m",
        unit: "ns",
        better: Better::Lower,
        about: "a message of 64 MiB over a socket (`Connection::send_bytes`, `recv_bytes`)",
        rounds: USUAL,
        limit: ours::socket::bare_64m,
        ours: ours::socket::connection_64m,
        peers: peers![],
        note: || "limit: `write_all` and `read_exact` of a `UnixStream`, into a new buffer each; two threads",
    },
    Row {
        id: "socket_1g",
        unit: "ns",
        better: Better::Lower,
        about: "a message of 1 GiB over a socket (`Connection::send_bytes`, `recv_bytes`)",
        rounds: USUAL,
        limit: ours::socket::bare_1g,
        ours: ours::socket::connection_1g,
        peers: peers![],
        note: || "limit: `write_all` and `read_exact` of a `UnixStream`, into a new buffer each; two threads",
    },
    Row {
        id: "socket_again_1m",
        unit: "ns",
        better: Better::Lower,
        about: "a message of 1 MiB over a socket, into memory that is used again (`Connection::recv_to`)",
        rounds: USUAL,
        limit: ours::socket::bare_again_1m,
        ours: ours::socket::connection_again_1m,
        peers: peers![],
        note: || "limit: `write_all` and `read_exact` of a `UnixStream`, into one buffer; two threads",
    },
    Row {
        id: "socket_again_64m",
        unit: "ns",
        better: Better::Lower,
        about: "a message of 64 MiB over a socket, into memory that is used again (`Connection::recv_to`)",
        rounds: USUAL,
        limit: ours::socket::bare_again_64m,
        ours: ours::socket::connection_again_64m,
        peers: peers![],
        note: || "limit: `write_all` and `read_exact` of a `UnixStream`, into one buffer; two threads",
    },
    Row {
        id: "socket_again_1g",
        unit: "ns",
        better: Better::Lower,
        about: "a message of 1 GiB over a socket, into memory that is used again (`Connection::recv_to`)",
        rounds: USUAL,
        limit: ours::socket::bare_again_1g,
        ours: ours::socket::connection_again_1g,
        peers: peers![],
        note: || "limit: `write_all` and `read_exact` of a `UnixStream`, into one buffer; two threads",
    },
    Row {
        id: "idle_1",
        unit: "ms",
        better: Better::Lower,
        about: "CPU time of a consumer into whose queue nothing is put, for each 10 s",
        rounds: 1,
        limit: ours::crowd::no_limit,
        ours: ours::crowd::idle_1,
        peers: peers![],
        note: || "it wakes each 100 ms, and checks for dead processes",
    },
    Row {
        id: "idle_100",
        unit: "ms",
        better: Better::Lower,
        about: "the same of 100 consumers of one queue, all together",
        rounds: 1,
        limit: ours::crowd::no_limit,
        ours: ours::crowd::idle_100,
        peers: peers![],
        note: || "one of them checks for dead processes, for all",
    },
    Row {
        id: "syscalls_per_message",
        unit: "calls",
        better: Better::Lower,
        about: "system calls per message in the round trips of rtt_awake, both processes together",
        rounds: 3,
        limit: limits::no_syscalls,
        ours: syscalls::ours,
        peers: peers!["iceoryx2" => syscalls::iceoryx2, "ipc-channel" => syscalls::ipc_channel],
        note: syscalls::note,
    },
];
