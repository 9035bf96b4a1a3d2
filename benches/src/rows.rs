//! What is measured: one row each.

use crate::work::Round;
use crate::{limits, ours, syscalls};

/// Which way a figure should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// Times and counts.
    Lower,
    /// Rates.
    Higher,
}

/// One row: a piece of work, and who does it.
#[derive(Debug)]
pub(crate) struct Row {
    /// Its name; never changes its meaning.
    pub(crate) id: &'static str,
    /// What its figures count.
    pub(crate) unit: &'static str,
    /// Which way they should go.
    pub(crate) better: Better,
    /// The work, in a few words.
    pub(crate) about: &'static str,
    /// The most rounds that make sense.
    pub(crate) rounds: usize,
    /// What the machine itself allows.
    pub(crate) limit: Round,
    /// mp.
    pub(crate) ours: Round,
    /// The others, where they can do this work.
    pub(crate) peers: &'static [(&'static str, Round)],
    /// How the others were used, or why one is missing.
    pub(crate) note: fn() -> &'static str,
}

/// The peers of a row; none without the feature.
#[cfg(feature = "peers")]
macro_rules! peers {
    ($($name:literal => $round:path),* $(,)?) => { &[$(($name, $round as Round)),*] };
}
#[cfg(not(feature = "peers"))]
macro_rules! peers {
    ($($name:literal => $round:path),* $(,)?) => {
        &[]
    };
}

#[cfg(feature = "peers")]
use crate::peers::{iceoryx2, ipc_channel, python};

/// More rounds than anyone asks for.
const ANY: usize = usize::MAX;

/// All rows, in the order in which they run.
pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "rtt_awake",
        unit: "ns",
        better: Better::Lower,
        about: "round trip of a u64 between two busy processes",
        rounds: ANY,
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
        rounds: ANY,
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
        rounds: ANY,
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
        rounds: ANY,
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
        rounds: ANY,
        limit: limits::one_way,
        ours: ours::crowd::struct_200b,
        peers: peers![],
        note: || "limit: as one_way_1p1c, of a u64",
    },
    Row {
        id: "tensors_100",
        unit: "ns",
        better: Better::Lower,
        about: "a stream of messages with the same 100 tensors, one element of each read: time for each message",
        rounds: ANY,
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
        note: || "it wakes each 100 ms, and looks for the dead",
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
        note: || "one of them looks for the dead, for all",
    },
    Row {
        id: "tensor_again_64m",
        unit: "ns",
        better: Better::Lower,
        about: "the same 64 MiB buffer sent again, one element read, and the answer",
        rounds: ANY,
        limit: limits::tensor_again,
        ours: ours::tensor_again,
        peers: peers!["ipc-channel" => ipc_channel::tensor_again],
        note: || {
            "limit: spinning on a cache line, and one read; iceoryx2 can't send a sample twice; ipc-channel: \
             IpcSharedMemory"
        },
    },
    Row {
        id: "tensor_fresh_1k",
        unit: "ns",
        better: Better::Lower,
        about: "a fresh 1 KiB tensor: allocate, fill, send, sum, drop, answer; not pipelined",
        rounds: ANY,
        limit: limits::tensor_fresh_1k,
        ours: ours::tensor_fresh_1k,
        peers: peers!["iceoryx2" => iceoryx2::tensor_fresh_1k, "ipc-channel" => ipc_channel::tensor_fresh_1k],
        note: || {
            "limit: the same copy, sum and answer over warm shared buffers; ipc-channel: \
             IpcSharedMemory::from_bytes; iceoryx2: a loaned slice of a pool of fixed size"
        },
    },
    Row {
        id: "tensor_stream_1k",
        unit: "ns",
        better: Better::Lower,
        about: "a stream of fresh 1 KiB tensors, up to 128 on their way: time for each to allocate, fill, send, sum, drop",
        rounds: ANY,
        limit: limits::tensor_stream_1k,
        ours: ours::tensor_stream_1k,
        peers: peers!["iceoryx2" => iceoryx2::tensor_stream_1k, "ipc-channel" => ipc_channel::tensor_stream_1k],
        note: || {
            "an answer for each 64 tensors; limit: the same copy and sum over warm shared buffers, through a ring; peers: \
             as tensor_fresh_1k"
        },
    },
    Row {
        id: "tensor_fresh_1m",
        unit: "ns",
        better: Better::Lower,
        about: "a fresh 1 MiB tensor: allocate, fill, send, sum, drop, answer; not pipelined",
        rounds: ANY,
        limit: limits::tensor_fresh_1m,
        ours: ours::tensor_fresh_1m,
        peers: peers!["iceoryx2" => iceoryx2::tensor_fresh_1m, "ipc-channel" => ipc_channel::tensor_fresh_1m],
        note: || {
            "limit: the same copy, sum and answer over warm shared buffers; ipc-channel: \
             IpcSharedMemory::from_bytes; iceoryx2: a loaned slice of a pool of fixed size"
        },
    },
    Row {
        id: "tensor_fresh_64m",
        unit: "ns",
        better: Better::Lower,
        about: "a fresh 64 MiB tensor: allocate, fill, send, sum, drop, answer; not pipelined",
        rounds: ANY,
        limit: limits::tensor_fresh_64m,
        ours: ours::tensor_fresh_64m,
        peers: peers!["iceoryx2" => iceoryx2::tensor_fresh_64m, "ipc-channel" => ipc_channel::tensor_fresh_64m],
        note: || {
            "limit: the same copy, sum and answer over warm shared buffers; ipc-channel: \
             IpcSharedMemory::from_bytes; iceoryx2: a loaned slice of a pool of fixed size"
        },
    },
    Row {
        id: "alloc_64b_at_1k_live",
        unit: "ns",
        better: Better::Lower,
        about: "a tensor of 64 bytes allocated and dropped, 1000 others alive",
        rounds: ANY,
        limit: ours::alloc::b64_at_1k_limit,
        ours: ours::alloc::b64_at_1k,
        peers: peers![],
        note: || "limit: malloc and free, private to the process",
    },
    Row {
        id: "alloc_64b_at_1m_live",
        unit: "ns",
        better: Better::Lower,
        about: "the same with a million others alive",
        rounds: ANY,
        limit: ours::alloc::b64_at_1m_limit,
        ours: ours::alloc::b64_at_1m,
        peers: peers![],
        note: || "limit: malloc and free, private to the process",
    },
    Row {
        id: "alloc_1k_at_1k_live",
        unit: "ns",
        better: Better::Lower,
        about: "a tensor of 1 KiB allocated and dropped, 1000 others alive",
        rounds: ANY,
        limit: ours::alloc::k1_at_1k_limit,
        ours: ours::alloc::k1_at_1k,
        peers: peers![],
        note: || "limit: malloc and free, private to the process",
    },
    Row {
        id: "alloc_1k_at_1m_live",
        unit: "ns",
        better: Better::Lower,
        about: "the same with a million others alive",
        rounds: ANY,
        limit: ours::alloc::k1_at_1m_limit,
        ours: ours::alloc::k1_at_1m,
        peers: peers![],
        note: || "limit: malloc and free, private to the process",
    },
    Row {
        id: "alloc_1m_at_1k_live",
        unit: "ns",
        better: Better::Lower,
        about: "a tensor of 1 MiB allocated and dropped, 1000 others alive",
        rounds: ANY,
        limit: ours::alloc::m1_at_1k_limit,
        ours: ours::alloc::m1_at_1k,
        peers: peers![],
        note: || "limit: malloc and free, private to the process",
    },
    Row {
        id: "alloc_64m_at_1_live",
        unit: "ns",
        better: Better::Lower,
        about: "a tensor of 64 MiB allocated and dropped, another alive",
        rounds: ANY,
        limit: ours::alloc::m64_at_1_limit,
        ours: ours::alloc::m64_at_1,
        peers: peers![],
        note: || "limit: malloc and free, private to the process",
    },
    Row {
        id: "alloc_1k_2_processes",
        unit: "ns",
        better: Better::Lower,
        about: "a tensor of 1 KiB allocated and dropped in each of 2 processes at once",
        rounds: ANY,
        limit: ours::alloc::two_compete_limit,
        ours: ours::alloc::two_compete,
        peers: peers![],
        note: || "limit: malloc and free, private to the process; mean over the processes, waiting for a processor included",
    },
    Row {
        id: "alloc_1k_8_processes",
        unit: "ns",
        better: Better::Lower,
        about: "the same in 8 processes at once",
        rounds: ANY,
        limit: ours::alloc::eight_compete_limit,
        ours: ours::alloc::eight_compete,
        peers: peers![],
        note: || "limit: malloc and free, private to the process; mean over the processes, waiting for a processor included",
    },
    Row {
        id: "view",
        unit: "ns",
        better: Better::Lower,
        about: "a view of a tensor made and dropped",
        rounds: ANY,
        limit: ours::alloc::view_limit,
        ours: ours::alloc::view,
        peers: peers![],
        note: || "limit: cloning and dropping an Arc",
    },
    Row {
        id: "shared_slice",
        unit: "ns",
        better: Better::Lower,
        about: "one element of a shared tensor of 4096 f32 read and written, in a loop over its slice of atomics",
        rounds: ANY,
        limit: ours::alloc::shared_slice_limit,
        ours: ours::alloc::shared_slice,
        peers: peers![],
        note: || "limit: a slice of the standard library's atomics, private to the process",
    },
    Row {
        id: "shared_at",
        unit: "ns",
        better: Better::Lower,
        about: "the same by an index into the tensor for each read and each write",
        rounds: ANY,
        limit: ours::alloc::shared_at_limit,
        ours: ours::alloc::shared_at,
        peers: peers![],
        note: || "limit: a Vec of the standard library's atomics, indexed",
    },
    Row {
        id: "lock_uncontended",
        unit: "ns",
        better: Better::Lower,
        about: "a lock that nobody else wants: lock, add one, unlock",
        rounds: ANY,
        limit: limits::lock_uncontended,
        ours: ours::lock::uncontended,
        peers: peers![],
        note: || "limit: a robust pthread mutex, shared between processes",
    },
    Row {
        id: "lock_contended",
        unit: "ns",
        better: Better::Lower,
        about: "the same by two processes that both want it all the time: time for each one that was inside",
        rounds: ANY,
        limit: limits::lock_contended,
        ours: ours::lock::contended,
        peers: peers![],
        note: || "limit: a robust pthread mutex, shared between processes",
    },
    Row {
        id: "spawn_exec",
        unit: "ns",
        better: Better::Lower,
        about: "start of one process that does nothing, and waiting for its end",
        rounds: ANY,
        limit: limits::exec::spawn_exec,
        ours: ours::spawn_exec,
        peers: peers![],
        note: || "limit: posix_spawn of the same program, ended before main; the peers start no processes",
    },
    Row {
        id: "spawn_exec_2g",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_exec while the parent has 2 GiB of memory of its own",
        rounds: 3,
        limit: limits::exec::spawn_exec_2g,
        ours: ours::spawn_exec_2g,
        peers: peers![],
        note: || "limit: posix_spawn of the same program, with the same memory",
    },
    Row {
        id: "spawn_forkserver",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_exec by a fork server that runs already",
        rounds: ANY,
        limit: limits::exec::spawn_exec,
        ours: ours::spawn_forkserver,
        peers: peers![],
        note: || "limit: posix_spawn of the same program, as for spawn_exec; a fork server does with less",
    },
    Row {
        id: "spawn_forkserver_2g",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_forkserver while the parent has 2 GiB of memory of its own",
        rounds: 3,
        limit: limits::exec::spawn_exec_2g,
        ours: ours::spawn_forkserver_2g,
        peers: peers![],
        note: || "limit: posix_spawn of the same program, with the same memory",
    },
    Row {
        id: "spawn_fork",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_exec by a copy of the parent",
        rounds: ANY,
        limit: limits::exec::spawn_fork,
        ours: ours::spawn_fork,
        peers: peers![],
        note: || "limit: fork, _exit, waitpid",
    },
    Row {
        id: "spawn_fork_2g",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_fork while the parent has 2 GiB of memory of its own",
        rounds: 3,
        limit: limits::exec::spawn_fork_2g,
        ours: ours::spawn_fork_2g,
        peers: peers![],
        note: || "limit: fork, _exit, waitpid, with the same memory: its page tables are copied",
    },
    Row {
        id: "spawn_64",
        unit: "ns",
        better: Better::Lower,
        about: "start of 64 processes that do nothing, and waiting for the end of all",
        rounds: ANY,
        limit: limits::exec::spawn_64,
        ours: ours::spawn_64,
        peers: peers![],
        note: || "limit: posix_spawn of the same program, 64 times, then waitpid for each",
    },
    Row {
        id: "spawn_exec_at_1m_live",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_exec while a million tensors are alive",
        rounds: ANY,
        limit: limits::exec::spawn_exec,
        ours: ours::alloc::spawn_at_1m_live,
        peers: peers![],
        note: || "limit: posix_spawn of the same program",
    },
    Row {
        id: "attach_at_1m_live",
        unit: "ns",
        better: Better::Lower,
        about: "a new process becomes a member of an arena in which a million tensors are alive",
        rounds: ANY,
        limit: ours::alloc::attach_limit,
        ours: ours::alloc::attach_at_1m_live,
        peers: peers![],
        note: || "limit: the same with next to nothing in it",
    },
    Row {
        id: "pool_map",
        unit: "1/s",
        better: Better::Higher,
        about: "tasks per second of a pool of 2 workers: a trivial function of a u64, chunks of 1",
        rounds: ANY,
        limit: limits::one_way,
        ours: ours::pool::map,
        peers: peers!["Python" => python::map],
        note: || "limit: messages through a ring that a killed or stopped process breaks; a task is two of them; Python: multiprocessing.Pool",
    },
    Row {
        id: "pool_tensor_1m",
        unit: "1/s",
        better: Better::Higher,
        about: "the same with a tensor of 1 MiB in each task, of which one element is read",
        rounds: ANY,
        limit: limits::one_way,
        ours: ours::pool::tensor_1m,
        peers: peers!["Python" => python::tensor_1m],
        note: || "limit: as for pool_map; Python: torch.multiprocessing.Pool with a shared tensor, where torch is installed",
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
