//! Starts of processes, and pools of them.

use super::{Better, Row, SHORT, USUAL, peers};
#[cfg(feature = "peers")]
use crate::peers::{python, threads};
use crate::{limits, ours};

/// Rows in the order in which they run.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "spawn_exec",
        unit: "ns",
        better: Better::Lower,
        about: "start of one process that does nothing, and waiting for its end",
        rounds: SHORT,
        limit: limits::exec::spawn_exec,
        ours: ours::spawn_exec,
        peers: peers!["Python" => python::spawn, "torch" => python::torch_spawn],
        note: || {
            "limit: posix_spawn of the same program, ended before main; Python: \
        multiprocessing.Process by spawn; torch: torch.multiprocessing.spawn, where torch is installed"
        },
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
        note: || "limit: posix_spawn of the same program, with the same memory, a second after it was got",
    },
    Row {
        id: "spawn_forkserver",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_exec by a fork server that runs already",
        rounds: SHORT,
        limit: limits::exec::spawn_exec,
        ours: ours::spawn_forkserver,
        peers: peers!["Python" => python::forkserver, "torch" => python::torch_forkserver],
        note: || {
            "limit: posix_spawn of the same program, as for spawn_exec; a fork server does with less; \
        Python, torch: as for spawn_exec, by their fork server"
        },
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
        note: || "limit: posix_spawn of the same program, with the same memory, a second after it was got",
    },
    Row {
        id: "spawn_fork",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_exec by a copy of the parent",
        rounds: USUAL,
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
        rounds: USUAL,
        limit: limits::exec::spawn_64,
        ours: ours::spawn_64,
        peers: peers![],
        note: || "limit: posix_spawn of the same program, 64 times, then waitpid for each",
    },
    Row {
        id: "first_failure",
        unit: "ns",
        better: Better::Lower,
        about: "from the moment at which a process fails until the parent has its error, and it is gone",
        rounds: USUAL,
        limit: limits::failure::first_failure,
        ours: ours::failure::first_failure,
        peers: peers![],
        note: || "limit: 8 bytes through a pipe, waitpid",
    },
    Row {
        id: "siblings_gone",
        unit: "ns",
        better: Better::Lower,
        about: "the same with three others that wait, until all four are gone",
        rounds: USUAL,
        limit: limits::failure::siblings_gone,
        ours: ours::failure::siblings_gone,
        peers: peers![],
        note: || {
            "limit: 8 bytes through a pipe, three times kill by SIGKILL, four times waitpid; ours \
        sends SIGTERM"
        },
    },
    Row {
        id: "spawn_exec_at_1m_live",
        unit: "ns",
        better: Better::Lower,
        about: "spawn_exec while a million tensors are alive",
        rounds: USUAL,
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
        rounds: USUAL,
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
        rounds: USUAL,
        limit: limits::one_way,
        ours: ours::pool::map,
        peers: peers!["Python" => python::map],
        note: || {
            "limit: messages through a ring that a killed or stopped process breaks; a task is two of \
        them; Python: multiprocessing.Pool"
        },
    },
    Row {
        id: "manager_call",
        unit: "ns",
        better: Better::Lower,
        about: "round trip of a call of an object in a manager's server, by a proxy that was called before",
        rounds: USUAL,
        limit: ours::rtt_awake,
        ours: ours::manager::call,
        peers: peers!["Python" => python::manager],
        note: || {
            "limit: a u64 and its answer through queues of mp (`rtt_awake`); Python: SyncManager, \
        `value.get()`"
        },
    },
    Row {
        id: "pool_map_1m",
        unit: "ns",
        better: Better::Lower,
        about: "time for each of a million trivial tasks of a pool of 2 workers, in chunks of its choice",
        rounds: USUAL,
        limit: ours::crowd::no_limit,
        ours: ours::pool::map_1m,
        peers: peers!["Python" => python::map_1m],
        note: || "Python: multiprocessing.Pool.map, in chunks of its choice",
    },
    Row {
        id: "pool_imap_1m",
        unit: "ns",
        better: Better::Lower,
        about: "the same with imap",
        rounds: USUAL,
        limit: ours::crowd::no_limit,
        ours: ours::pool::imap_1m,
        peers: peers!["Python" => python::imap_1m],
        note: || {
            "Python: imap in eight chunks; in chunks of one, its default, it takes a hundred times as \
        long"
        },
    },
    Row {
        id: "pool_collatz_1m",
        unit: "ns",
        better: Better::Lower,
        about: "time for each of a million tasks of about 100 ns (steps of Collatz), by a pool of 2 workers",
        rounds: USUAL,
        limit: ours::crowd::no_limit,
        ours: ours::pool::collatz_1m,
        peers: peers!["rayon" => threads::collatz_1m],
        note: || "rayon: two threads, which need no messages",
    },
    Row {
        id: "pool_files_8m",
        unit: "ns",
        better: Better::Lower,
        about: "time for each of 100 tasks that read a file of 8 MiB and add its bytes up, by a pool of 2 \
        workers",
        rounds: SHORT,
        limit: ours::crowd::no_limit,
        ours: ours::pool::files_8m,
        peers: peers!["rayon" => threads::files_8m],
        note: || "rayon: two threads, one file at a time",
    },
    Row {
        id: "pool_tensor_1m",
        unit: "1/s",
        better: Better::Higher,
        about: "the same with a tensor of 1 MiB in each task, of which one element is read",
        rounds: USUAL,
        limit: limits::one_way,
        ours: ours::pool::tensor_1m,
        peers: peers!["Python" => python::tensor_1m],
        note: || {
            "limit: as for pool_map; Python: torch.multiprocessing.Pool with a shared tensor, where \
        torch is installed"
        },
    },
];
