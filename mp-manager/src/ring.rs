//! Objects of one server that wait for each other in a ring: the call that would close it is an error.
//!
//! While a call of an object waits for another object of the same server, that is in a table of the server's process: the object, the one
//! that it waits for, and by which caller. All that is in it are threads of this process, so that a death leaves nothing.
//!
//! | the entry of object `a` | is | by |
//! |---|---|---|
//! | none | made, with object `b` and the caller's number, before the request is sent; not if that closes a ring | `a`'s thread |
//! | waits for what is to be made | says which object that is, before its maker runs | that object's thread |
//! | waits for `b` | removed before the answer to this caller is sent | `b`'s thread |
//! | waits for `b` | removed, when the wait ends without an answer (time-out, `b` is gone) | `a`'s thread |
//!
//! The second line is why an entry never outlives what it says: `b`, having answered, may call `a` at once. And an entry's object can't do
//! anything else while it is there, since its thread is in that wait. So a ring of entries is a ring of threads none of which would ever
//! go on, and the last of them to wait sees the others' entries: each is made under the table's lock.
//!
//! A call that goes through another process, which calls the object in its turn, is not found: it waits until a time-out.

use std::cell::Cell;
use std::collections::BTreeMap;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use crate::error::{CallError, CallName};

thread_local! {
    /// The object of this thread, if it is one of a server.
    static OWN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Says that this thread has this object, of this process.
pub(crate) fn own_object(object: u64) {
    OWN.set(Some(object));
}

/// What an object waits for.
struct Entry {
    object: u64,
    caller: u32,
    call: CallName,
}

/// Which object waits for what.
static TABLE: PerProcess<Mutex<BTreeMap<u64, Entry>>> =
    PerProcess::new([const { Mutex::new(BTreeMap::new()) }; GENERATIONS]);

/// An object that is to be made, and has no number yet: it waits for none.
pub(crate) const NOT_MADE: u64 = u64::MAX;

/// Notes that what this caller, which is of this process, waits for is this object, which is about to be made.
pub(crate) fn is_made_as(caller: u32, object: u64) {
    let mut waits = TABLE.lock();
    waits.values_mut().filter(|entry| entry.caller == caller).for_each(|entry| entry.object = object);
}

/// Ends an object's entry.
pub(crate) struct Waits(Option<(u64, u32)>);

/// Notes that this thread's object, if it has one, is about to wait for another one of the same server.
///
/// # Errors
/// [`CallError::OwnObject`] and [`CallError::Ring`].
pub(crate) fn wait_for(server: u32, object: u64, caller: u32, call: &CallName) -> Result<Waits, CallError> {
    let Some(own) = OWN.get().filter(|_| server == std::process::id()) else { return Ok(Waits(None)) };
    if own == object {
        return Err(CallError::OwnObject { call: call.clone() });
    }
    let mut waits = TABLE.lock();
    let mut waiting = Vec::new();
    let mut next = object;
    // No ring is in the table, so that this ends.
    while let Some(entry) = waits.get(&next) {
        waiting.push(entry.call.clone());
        next = entry.object;
        if next == own {
            return Err(CallError::Ring { call: call.clone(), waiting });
        }
    }
    waits.insert(own, Entry { object, caller, call: call.clone() });
    Ok(Waits(Some((own, caller))))
}

/// Notes that this caller, which is of this process, is about to have its answer.
pub(crate) fn answered(caller: u32) {
    TABLE.lock().retain(|_, entry| entry.caller != caller);
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some((own, caller)) = self.0 {
            TABLE.lock().retain(|object, entry| *object != own || entry.caller != caller);
        }
    }
}
