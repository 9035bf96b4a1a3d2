//! Parent side: starts, watches and reaps processes, and determines why a process ended.
//!
//! | folder or file, lowest first | content |
//! |---|---|
//! | `options` | options of a start |
//! | `restart` | restart policy, history, delays and thread; status and events of a process |
//! | `launch` | start of one process: command, socket, `exec` or `fork` |
//! | `group` | state of the processes of a start, shared with waiters |
//! | `supervisor` | thread that receives the messages of children and reaps them |
//! | `fork_server` | connection to the fork server |
//! | `control` | operations of handles: status, waits, signals |
//! | `active` | processes that still run, and their treatment at exit |
//! | `start` | starts of whole groups, and their restarts |
//!
//! Calls go down this list. Events go up: the supervisor records them in the group, which wakes its waiters.

pub(crate) mod active;
pub(crate) mod control;
pub(crate) mod fork_server;
pub(crate) mod group;
pub(crate) mod launch;
pub(crate) mod options;
pub(crate) mod restart;
pub(crate) mod start;
pub(crate) mod supervisor;
