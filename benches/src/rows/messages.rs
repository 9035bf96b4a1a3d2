//! Messages: their round trips, their rates, whose turn it is, and what waiting costs.

use super::{Better, Row, USUAL, peers};
#[cfg(feature = "peers")]
use crate::peers::{iceoryx2, ipc_channel};
use crate::{limits, ours, syscalls};

/// In the order in which they run.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "rtt_awake",
        unit: "ns",
        better: Better::Lower,
        about: "round trip of a u64 between two busy processes",
        rounds: USUAL,
        limit: limits::rtt_awake,
        ours: ours::rtt_awake,
        peers: peers!["iceoryx2" => iceoryx2::rtt_awake, "ipc-channel" => ipc_channel::rtt_awake],
        note: || "limit: spinning on a cache line; iceoryx2 polls busily; ipc-channel has only blocking receives",
    },
    Row {
        id: "rtt_asleep",
        unit: "ns",
        better: Better::Lower,
        about: "round trip of a u64, each process asleep in the kernel when its message is sent",
        rounds: USUAL,
        limit: limits::rtt_asleep,
        ours: ours::rtt_asleep,
        peers: peers!["iceoryx2" => iceoryx2::rtt_asleep, "ipc-channel" => ipc_channel::rtt_asleep],
        note: || {
            "way there plus way back, each sent 50 µs after the other side began to wait; only those count in which \
             the kernel's count of context switches shows that both slept; limit: bare futex; iceoryx2: publish-subscribe plus an event service"
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
        peers: peers!["iceoryx2" => iceoryx2::one_way, "ipc-channel" => ipc_channel::one_way],
        note: || {
            "limit: a ring that a killed or stopped process breaks; iceoryx2: lossless (no overflow, retry until \
             delivered), buffer of 1024, consumer polls busily"
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
        peers: peers![],
        note: || "limit: as one_way_1p1c, one to one; start and end of the four processes are not counted but for the last",
    },
    Row {
        id: "struct_200b",
        unit: "1/s",
        better: Better::Higher,
        about: "a struct of some 200 bytes (texts, numbers, a list), encoded and decoded: messages per second, one to one",
        rounds: USUAL,
        limit: limits::one_way,
        ours: ours::crowd::struct_200b,
        peers: peers!["ipc-channel" => ipc_channel::struct_200b],
        note: || "limit: as one_way_1p1c, of a u64",
    },
    Row {
        id: "tensors_100",
        unit: "ns",
        better: Better::Lower,
        about: "a stream of messages with the same 100 tensors, one element of each read: time for each message",
        rounds: USUAL,
        limit: ours::crowd::no_limit,
        ours: ours::crowd::tensors_100,
        peers: peers![],
        note: || "each tensor is one more holder there and one less here: some ten shared words",
    },
    Row {
        id: "fair_8p8c_least",
        unit: "%",
        better: Better::Higher,
        about: "8 producers and 8 consumers of one queue for 4 s: the least that one did, in percent of its side's mean",
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
        id: "idle_1",
        unit: "ms",
        better: Better::Lower,
        about: "CPU time of a consumer into whose queue nothing is put, for each 10 s",
        rounds: 1,
        limit: ours::crowd::no_limit,
        ours: ours::crowd::idle_1,
        peers: peers![],
        note: || "it wakes each 100 ms, and looks for dead processes",
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
        note: || "one of them looks for dead processes, for all",
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
