//! Curves, by the quantity that grows.

use super::effort::Need;
use super::links::{self, limit, own, private, services, sockets, threads};
use super::{Axis, Curve, Expected, memory, processes};

/// Resources of a process that sleeps: its private memory, and descriptors of its parent.
const PROCESS: Need = Need { bytes: 2 << 20, processes: 1, descriptors: 3 };

/// Returns the need of `size` objects of `bytes` bytes each.
const fn of_bytes(size: u64, bytes: u64) -> Need {
    Need { bytes: size * bytes, processes: 0, descriptors: 0 }
}

/// All axes, in the order in which they are measured.
pub(super) const AXES: &[Axis] = &[
    Axis {
        id: "processes",
        label: "processes of the program, all asleep but two",
        sizes: &[1, 3, 10, 32, 100, 316, 1_000],
        need: |size| Need {
            bytes: size * PROCESS.bytes,
            processes: size * PROCESS.processes,
            descriptors: size * PROCESS.descriptors,
        },
        around: processes::idle,
        curves: &[
            Curve {
                id: "put_get_beside_processes",
                about: "put and get a u64",
                expected: Expected::Flat,
                contenders: &[
                    ("mp", own::echo),
                    ("limit", limit::echo),
                    ("iceoryx2", services::echo),
                    ("ipc-channel polling", sockets::echo),
                    ("crossbeam-channel", threads::echo),
                ],
            },
            Curve {
                id: "alloc_beside_processes",
                about: "allocate and free 1 KiB",
                expected: Expected::Flat,
                contenders: &[("mp", memory::alloc_1k), ("limit", memory::alloc_1k_limit)],
            },
            Curve {
                id: "start_beside_processes",
                about: "start a process, wait for its end",
                expected: Expected::Flat,
                contenders: &[
                    ("mp", processes::start),
                    ("limit", processes::start_limit),
                    ("mp, fork server", processes::start_by_server),
                ],
            },
            Curve {
                id: "attach_beside_processes",
                about: "a new process joins",
                expected: Expected::Flat,
                contenders: &[("mp", processes::attach)],
            },
            Curve {
                id: "recover_beside_processes",
                about: "kill a process, recover",
                expected: Expected::Flat,
                contenders: &[("mp", processes::recover), ("limit", processes::recover_limit)],
            },
        ],
    },
    Axis {
        id: "queues",
        label: "queues, a message in each",
        sizes: &[1, 10, 100, 1_000, 10_000],
        need: |size| of_bytes(size, 200 << 10),
        around: |_| Ok(Box::new(())),
        curves: &[
            Curve {
                id: "put_get_among_queues",
                about: "put and get a u64",
                expected: Expected::Flat,
                contenders: &[
                    ("mp", own::among),
                    ("limit", limit::echo),
                    ("iceoryx2", services::among),
                    ("ipc-channel polling", sockets::among),
                    ("crossbeam-channel", threads::among),
                ],
            },
            Curve {
                id: "put_get_in_turn",
                about: "put and get a u64, each queue in turn",
                expected: Expected::Flat,
                contenders: &[
                    ("mp", own::in_turn),
                    ("limit", private::in_turn),
                    ("crossbeam-channel", threads::in_turn),
                ],
            },
            Curve {
                id: "open_among_queues",
                about: "create and drop a queue",
                expected: Expected::Flat,
                contenders: &[
                    ("mp", own::open),
                    ("ipc-channel polling", sockets::open),
                    ("crossbeam-channel", threads::open),
                ],
            },
        ],
    },
    Axis {
        id: "backlog",
        label: "messages of 40 bytes that wait",
        sizes: &[1, 10, 100, 1_000, 10_000, 100_000, 1_000_000],
        need: |size| of_bytes(size, 512),
        around: |_| Ok(Box::new(())),
        curves: &[
            Curve {
                id: "put_get_elsewhere",
                about: "put and get 40 bytes, in another queue",
                expected: Expected::Flat,
                contenders: &[
                    ("mp", links::own_elsewhere),
                    ("limit", links::limit_elsewhere),
                    ("crossbeam-channel", links::threads_elsewhere),
                ],
            },
            Curve {
                id: "put_get_within",
                about: "put and get 40 bytes, in the same queue",
                expected: Expected::Flat,
                contenders: &[
                    ("mp", links::own_within),
                    ("limit", links::limit_within),
                    ("crossbeam-channel", links::threads_within),
                ],
            },
            Curve {
                id: "drop_queue",
                about: "drop the queue with its messages",
                expected: Expected::Linear,
                contenders: &[
                    ("mp", links::own_dropped),
                    ("limit", links::limit_dropped),
                    ("crossbeam-channel", links::threads_dropped),
                ],
            },
            Curve {
                id: "recover_beside_messages",
                about: "kill a process, recover",
                expected: Expected::Flat,
                contenders: &[("mp", links::recover), ("limit", processes::recover_limit)],
            },
        ],
    },
    Axis {
        id: "tensors",
        label: "live tensors of 64 bytes",
        sizes: &[1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22],
        need: |size| of_bytes(size, 1 << 10),
        around: memory::live,
        curves: &[
            Curve {
                id: "alloc_beside_tensors",
                about: "allocate and free 64 bytes",
                expected: Expected::Flat,
                contenders: &[("mp", memory::alloc_64), ("limit", memory::alloc_64_limit)],
            },
            Curve {
                id: "put_get_beside_tensors",
                about: "put and get a u64",
                expected: Expected::Flat,
                contenders: &[("mp", own::echo), ("limit", limit::echo)],
            },
            Curve {
                id: "start_beside_tensors",
                about: "start a process, wait for its end",
                expected: Expected::Flat,
                contenders: &[("mp", processes::start), ("limit", processes::start_limit)],
            },
            Curve {
                id: "attach_beside_tensors",
                about: "a new process joins",
                expected: Expected::Flat,
                contenders: &[("mp", processes::attach)],
            },
            Curve {
                id: "recover_beside_tensors",
                about: "kill a process, recover",
                expected: Expected::Flat,
                contenders: &[("mp", processes::recover), ("limit", processes::recover_limit)],
            },
        ],
    },
    Axis {
        id: "owned",
        label: "tensors of 64 bytes that a killed process owned",
        sizes: &[1, 10, 100, 1_000, 10_000, 100_000, 1_000_000],
        need: |size| of_bytes(size, 1 << 10),
        around: |_| Ok(Box::new(())),
        curves: &[Curve {
            id: "recover_owner",
            about: "kill the owner, free its tensors",
            expected: Expected::Linear,
            contenders: &[("mp", processes::recover_owner), ("limit", processes::recover_limit)],
        }],
    },
    Axis {
        id: "sizes",
        label: "bytes of a message",
        sizes: &[1 << 3, 1 << 6, 1 << 9, 1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24, 1 << 28],
        need: |size| of_bytes(size, 6),
        around: |_| Ok(Box::new(())),
        curves: &[
            Curve {
                id: "tensor_again",
                about: "send the same tensor, read an element, answer",
                expected: Expected::Flat,
                contenders: &[
                    ("mp", memory::again),
                    ("limit", memory::again_limit),
                    ("ipc-channel polling", memory::again_sockets),
                ],
            },
            Curve {
                id: "tensor_fresh",
                about: "fill and send a tensor, sum it, answer",
                expected: Expected::Linear,
                contenders: &[
                    ("mp", memory::fresh),
                    ("limit", memory::fresh_limit),
                    ("iceoryx2", memory::fresh_services),
                    ("ipc-channel polling", memory::fresh_sockets),
                ],
            },
            Curve {
                id: "bytes",
                about: "put and get a Vec<u8>",
                expected: Expected::Linear,
                contenders: &[("mp", memory::bytes), ("limit", memory::bytes_limit)],
            },
        ],
    },
];
