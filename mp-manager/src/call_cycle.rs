//! Detection of objects of one server that wait for each other in a cycle. The call that would close the
//! cycle returns an error.
//!
//! While a call of an object waits for another object of the same server, a table of the server's process
//! contains an entry: the waiting object, the awaited object, and the caller's number. All entries concern
//! threads of this process, so the death of another process leaves no entries.
//!
//! | entry of object `a` | transition | by |
//! |---|---|---|
//! | none | created, with object `b` and the caller's number, before the request is sent. If the entry would close a cycle, it is not created, and the call returns an error | `a`'s thread |
//! | awaits an object that has no number yet | set to the number of the object, before the closure that creates the object runs | thread of the created object |
//! | awaits `b` | removed by the caller's number, before `b`'s answer to `a` is sent | `b`'s thread |
//! | awaits `b` | removed when the wait ends without an answer (time-out, end of `b`) | `a`'s thread |
//!
//! Because of the third row, an entry is never outdated: after answering, `b` may call `a` at once. While the
//! entry of `a` exists, `a`'s thread waits and handles no requests. So a cycle of entries is a cycle of
//! threads that would never continue. Each entry is created under the table's lock, so the thread whose entry
//! would close a cycle finds all other entries of the cycle.
//!
//! A cycle that goes through another process is not detected: the call waits until a time-out.

use std::cell::Cell;
use std::collections::BTreeMap;

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::error::{CallError, CallName};

thread_local! {
    /// Number of the object that this thread serves, if any.
    static OWN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Sets the number of the object that this thread serves.
pub(crate) fn set_own_object(object: u64) {
    OWN.set(Some(object));
}

/// Entry of an object that waits for another object.
struct WaitEntry {
    object: u64,
    caller: u32,
    call: CallName,
}

/// Entry of each waiting object, by the number of the waiting object.
static TABLE: PerProcess<Mutex<BTreeMap<u64, WaitEntry>>> =
    mp_core::per_process!(Mutex::new(BTreeMap::new()));

/// Number in the entry of an object that waits for an object to be created. The awaited object has no number
/// yet, and waits for no object.
pub(crate) const NOT_MADE: u64 = u64::MAX;

/// Replaces [`NOT_MADE`] by the number of the object that is about to be created for this caller.
pub(crate) fn record_created(caller: u32, object: u64) {
    let mut waits = TABLE.lock();
    waits.values_mut().filter(|entry| entry.caller == caller).for_each(|entry| entry.object = object);
}

/// Guard that removes the entry of a wait when it is dropped.
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
