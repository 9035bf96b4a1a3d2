//! Peers, each used as its documentation recommends for the lowest latency.

pub(crate) mod crossbeam;
pub(crate) mod iceoryx2;
pub(crate) mod ipc_channel;
pub(crate) mod python;
pub(crate) mod threads;
pub(crate) mod tokio;

use crate::process::Child;
use crate::work::Plan;
use crate::{Failure, Result};

/// Runs one round: starts the child `role`, connects, and does the work.
fn round<C, R>(
    role: &str,
    words: &[String],
    plan: &Plan,
    connect: impl FnOnce() -> Result<C>,
    work: impl FnOnce(C) -> Result<R>,
) -> Result<Option<R>> {
    let child = Child::start(role, words, plan)?;
    let figure = work(connect()?)?;
    child.finish()?;
    Ok(Some(figure))
}

/// Runs the child `role`.
///
/// # Errors
/// Returns an error for an unknown role, or the error of the role.
pub(crate) fn be_child(role: &str, words: &[String]) -> Result<()> {
    match role.split_once('/') {
        Some((ipc_channel::NAME, work)) => ipc_channel::be_child(ipc_channel::BLOCKING, work, words),
        Some((ipc_channel::POLLING_NAME, work)) => ipc_channel::be_child(ipc_channel::POLLING, work, words),
        Some((iceoryx2::NAME, work)) => iceoryx2::be_child(work, words),
        _ => Err(Failure::from(format!("no child is called {role:?}"))),
    }
}

/// Returns the word at `index` of a child's command line.
fn word(words: &[String], index: usize) -> Result<&str> {
    words.get(index).map(String::as_str).ok_or_else(|| format!("word {index} is missing").into())
}
