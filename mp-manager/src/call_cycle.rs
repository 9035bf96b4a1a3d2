//! Detection of objects of one server that wait for each other in a cycle. The call that would close the
//! cycle returns an error.
//!
//! While a call of an object waits for another object of the same server, a table of the server's process
//! contains an entry: the waiting object, the awaited object, and the caller's number. All entries concern
//! threads of this process, so the death of another process leaves no entries.
//!
//! | entry of object `a` | transition | by |
//! |---|---|---|
//! | none | created, with object `b` and the caller's number, before the request is sent; not if that closes a cycle | `a`'s thread |
//! | awaits an object to be created | set to that object, before its maker runs | that object's thread |
//! | awaits `b` | removed before the answer to this caller is sent | `b`'s thread |
//! | awaits `b` | removed, when the wait ends without an answer (time-out, end of `b`) | `a`'s thread |
//!
//! Because of the third row, an entry is never outdated: after answering, `b` may call `a` at once. While the
//! entry exists, its object handles no other requests, because its thread waits. So a cycle of entries is a
//! cycle of threads that would never continue. The last thread to wait finds the other entries, because each
//! entry is created under the table's lock.
//!
//! A cycle that goes through another process is not detected: the call waits until a time-out.

use std::cell::Cell;
use std::collections::BTreeMap;

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::error::{CallError, CallName};

thread_local! {
    /// Object of this thread, if the thread serves one.
    static OWN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Assigns an object of this process to this thread.
pub(crate) fn set_own_object(object: u64) {
    OWN.set(Some(object));
}

/// Wait of an object.
struct WaitEntry {
    object: u64,
    caller: u32,
    call: CallName,
}

/// Wait of each waiting object, by the number of that object.
static TABLE: PerProcess<Mutex<BTreeMap<u64, WaitEntry>>> =
    mp_core::per_process!(Mutex::new(BTreeMap::new()));

/// Object to be created, which has no number yet and waits for no object.
pub(crate) const NOT_MADE: u64 = u64::MAX;

/// Replaces [`NOT_MADE`] by the number of the object that is about to be created for this caller.
pub(crate) fn record_created(caller: u32, object: u64) {
    let mut waits = TABLE.lock();
    waits.values_mut().filter(|entry| entry.caller == caller).for_each(|entry| entry.object = object);
}

/// Guard that removes an object's entry.
pub(crate) struct WaitRegistration(Option<(u64, u32)>);

/// Records that this thread's object, if any, is about to wait for another object of the same server.
///
/// # Errors
/// [`CallError::OwnObject`] and [`CallError::Cycle`].
pub(crate) fn register_wait(
    server: u32,
    object: u64,
    caller: u32,
    call: &CallName,
) -> Result<WaitRegistration, CallError> {
    let Some(own) = OWN.get().filter(|_| server == std::process::id()) else {
        return Ok(WaitRegistration(None));
    };
    if own == object {
        return Err(CallError::OwnObject { call: call.clone() });
    }
    let mut waits = TABLE.lock();
    let mut waiting = Vec::new();
    let mut next = object;
    // Terminates, because the table contains no cycle.
    while let Some(entry) = waits.get(&next) {
        waiting.push(entry.call.clone());
        next = entry.object;
        if next == own {
            return Err(CallError::Cycle { call: call.clone(), waiting });
        }
    }
    waits.insert(own, WaitEntry { object, caller, call: call.clone() });
    Ok(WaitRegistration(Some((own, caller))))
}

/// Records that a caller of this process is about to receive its answer.
pub(crate) fn record_answer(caller: u32) {
    TABLE.lock().retain(|_, entry| entry.caller != caller);
}

impl Drop for WaitRegistration {
    fn drop(&mut self) {
        if let Some((own, caller)) = self.0 {
            TABLE.lock().retain(|object, entry| *object != own || entry.caller != caller);
        }
    }
}
