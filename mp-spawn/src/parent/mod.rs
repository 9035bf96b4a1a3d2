//! Parent side: starts, watches and reaps processes, and determines why a process ended.

pub(crate) mod active;
pub(crate) mod child_state;
pub(crate) mod copied;
pub(crate) mod diagnosis;
pub(crate) mod fork_server;
pub(crate) mod group;
pub(crate) mod launch;
pub(crate) mod member_quota;
pub(crate) mod options;
pub(crate) mod rank;
pub(crate) mod restart;
pub(crate) mod sentinels;
pub(crate) mod start;
pub(crate) mod supervisor;
