//! Tensors that are sent, memory that is allocated and freed, and locks.

use super::{Better, Row, USUAL, peers};
#[cfg(feature = "peers")]
use crate::peers::ipc_channel::{BLOCKING, POLLING};
#[cfg(feature = "peers")]
use crate::peers::{iceoryx2, ipc_channel};
use crate::{limits, ours};

/// Rows in the order in which they run.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "tensor_again_64m",
        unit: "ns",
        better: Better::Lower,
        about: "the same 64 MiB buffer sent again, one element read, and the answer",
        rounds: USUAL,
        limit: limits::tensor_again,
        ours: ours::tensor_again,
        peers: peers![
            "ipc-channel" => ipc_channel::tensor_again::<BLOCKING>,
            "ipc-channel polling" => ipc_channel::tensor_again::<POLLING>
        ],
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
        rounds: USUAL,
        limit: limits::tensor_fresh_1k,
        ours: ours::tensor_fresh_1k,
        peers: peers![
            "iceoryx2" => iceoryx2::tensor_fresh_1k,
            "ipc-channel" => ipc_channel::tensor_fresh_1k::<BLOCKING>,
            "ipc-channel polling" => ipc_channel::tensor_fresh_1k::<POLLING>
        ],
        note: || {
            "limit: the same copy, sum and answer over warm shared buffers; ipc-channel: \
             IpcSharedMemory::from_bytes; iceoryx2: a loaned slice of a pool of fixed size"
        },
    },
    Row {
        id: "tensor_stream_1k",
        unit: "ns",
        better: Better::Lower,
        about: "a stream of new tensors of 1 KiB, at most 128 in flight: allocate, fill, send, sum, drop; \
        time per tensor",
        rounds: USUAL,
        limit: limits::tensor_stream_1k,
        ours: ours::tensor_stream_1k,
        peers: peers![
            "iceoryx2" => iceoryx2::tensor_stream_1k,
            "ipc-channel" => ipc_channel::tensor_stream_1k::<BLOCKING>,
            "ipc-channel polling" => ipc_channel::tensor_stream_1k::<POLLING>
        ],
        note: || {
            "an answer for each 64 tensors; limit: the same copy and sum over warm shared buffers, through \
             a ring; peers: \
             as tensor_fresh_1k"
        },
    },
    Row {
        id: "tensor_fresh_1m",
        unit: "ns",
        better: Better::Lower,
        about: "a fresh 1 MiB tensor: allocate, fill, send, sum, drop, answer; not pipelined",
        rounds: USUAL,
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
        rounds: USUAL,
        limit: limits::tensor_fresh_64m,
        ours: ours::tensor_fresh_64m,
        peers: peers![
            "iceoryx2" => iceoryx2::tensor_fresh_64m,
            "ipc-channel" => ipc_channel::tensor_fresh_64m
        ],
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
        rounds: USUAL,
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
        rounds: USUAL,
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
        rounds: USUAL,
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
        rounds: USUAL,
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
        rounds: USUAL,
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
        rounds: USUAL,
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
        rounds: USUAL,
        limit: ours::alloc::two_compete_limit,
        ours: ours::alloc::two_compete,
        peers: peers![],
        note: || {
            "limit: malloc and free, private to the process; mean over the processes, waiting for a \
        processor included"
        },
    },
    Row {
        id: "alloc_1k_8_processes",
        unit: "ns",
        better: Better::Lower,
        about: "the same in 8 processes at once",
        rounds: USUAL,
        limit: ours::alloc::eight_compete_limit,
        ours: ours::alloc::eight_compete,
        peers: peers![],
        note: || {
            "limit: malloc and free, private to the process; mean over the processes, waiting for a \
        processor included"
        },
    },
    Row {
        id: "view",
        unit: "ns",
        better: Better::Lower,
        about: "a view of a tensor made and dropped",
        rounds: USUAL,
        limit: ours::alloc::view_limit,
        ours: ours::alloc::view,
        peers: peers![],
        note: || "limit: cloning and dropping an Arc",
    },
    Row {
        id: "shared_slice",
        unit: "ns",
        better: Better::Lower,
        about: "one element of a shared tensor of 4096 f32 read and written, in a loop over its slice of \
        atomics",
        rounds: USUAL,
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
        rounds: USUAL,
        limit: ours::alloc::shared_at_limit,
        ours: ours::alloc::shared_at,
        peers: peers![],
        note: || "limit: a Vec of the standard library's atomics, indexed",
    },
    Row {
        id: "lock_uncontended",
        unit: "ns",
        better: Better::Lower,
        about: "a lock without contention: lock, add one, unlock",
        rounds: USUAL,
        limit: limits::lock_uncontended,
        ours: ours::lock::uncontended,
        peers: peers![],
        note: || "limit: a robust pthread mutex, shared between processes",
    },
    Row {
        id: "lock_contended",
        unit: "ns",
        better: Better::Lower,
        about: "the same lock, taken by two processes in a loop; time per acquisition",
        rounds: USUAL,
        limit: limits::lock_contended,
        ours: ours::lock::contended,
        peers: peers![],
        note: || "limit: a robust pthread mutex, shared between processes",
    },
];
