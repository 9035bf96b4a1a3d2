//! Table of the types that are registered in this process.

use std::any::{Any, TypeId, type_name};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mp_core::fork::SetOnce;
use mp_core::message::nesting_depth::{self, MAX_NESTING, SHALLOW};
use mp_core::user_code::drop_payload;
use mp_core::waits::this_process;
use mp_core::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{read_part, write_part};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type WriteFn = dyn Fn(&dyn Any) -> Result<Vec<u8>, String> + Send + Sync;
type ReadFn = dyn Fn(&[u8]) -> Result<Box<dyn Any>, String> + Send + Sync;
/// Function that converts a value into one that other threads may access.
type ShareFn = fn(Box<dyn Any>) -> Option<Box<dyn Any + Send + Sync>>;

/// Entry of a registered type.
pub(super) struct RegistryEntry {
    pub(super) name: String,
    type_id: TypeId,
    type_name: &'static str,
    /// Types of the two conversion functions. `None` if a function captures something, so that two
    /// registrations can't be compared.
    code: Option<[TypeId; 2]>,
    write: Box<WriteFn>,
    read: Box<ReadFn>,
    /// Conversion for values that other threads may access. `None` for a type that is not `Send` and `Sync`.
    share: Option<ShareFn>,
}

/// Node of the linked list of all entries. The list is read without a lock, and entries are never removed.
struct ListNode {
    entry: &'static RegistryEntry,
    next: SetOnce<ListNode>,
}

// fork: the child has the same types. An entry that another thread was adding is in the list or not.
static FIRST: SetOnce<ListNode> = SetOnce::new();

fn all() -> impl Iterator<Item = &'static RegistryEntry> {
    std::iter::successors(FIRST.get(), |node| node.next.get()).map(|node| node.entry)
}

/// Returns the entry of the type with this id, or an error text with `type_name` if there is none.
pub(super) fn of_id(id: TypeId, type_name: &str) -> Result<&'static RegistryEntry, String> {
    all().find(|entry| entry.type_id == id).ok_or_else(|| unknown(type_name))
}

/// Returns the entry with this name, or an error text if there is none.
pub(super) fn of_name(name: &str) -> Result<&'static RegistryEntry, String> {
    all().find(|entry| entry.name == name).ok_or_else(|| unknown(name))
}

#[cold]
fn unknown(name: &str) -> String {
    format!(
        "the type {name} is not registered in {}: `register!` registers it in all processes of a program, \
         `register` in one process",
        this_process()
    )
}

/// Returns the conversion of a `T` into a value that other threads may access.
pub(super) fn share<T: Send + Sync + 'static>() -> Option<ShareFn> {
    Some(|value| value.downcast::<T>().ok().map(|value| value as _))
}

/// Registers the type `T` under `name`. Does nothing if `T` is already registered with the same name and
/// functions. `share` is `None` for a type whose values stay in the thread that reads them.
pub(super) fn add<T, H, F, G>(name: &str, reduce: F, rebuild: G, share: Option<ShareFn>) -> Result<()>
where
    T: 'static,
    H: Serialize + DeserializeOwned,
    F: Fn(&T) -> Result<H, BoxError> + Send + Sync + 'static,
    G: Fn(H) -> Result<T, BoxError> + Send + Sync + 'static,
{
    let write = move |value: &dyn Any| {
        let value = value.downcast_ref::<T>().ok_or_else(|| unknown(type_name::<T>()))?;
        let handle = catch_call::<T, _>("reduced", || reduce(value))?;
        write_part::<H, H>(&handle)
            .map_err(|e| format!("the reduced form of {}: {}", type_name::<T>(), e.located()))
    };
    let read = move |bytes: &[u8]| {
        let handle = read_part::<H>(bytes).map_err(|e| {
            let (this, handle) = (type_name::<T>(), type_name::<H>());
            let why = e.located();
            format!("{this}, as {handle}: {why}; is it registered in the same way on both sides?")
        })?;
        let value = catch_call::<T, _>("rebuilt", || rebuild(handle))?;
        Ok(Box::new(value) as Box<dyn Any>)
    };
    add_entry(RegistryEntry {
        name: name.to_string(),
        type_id: TypeId::of::<T>(),
        type_name: type_name::<T>(),
        code: (size_of::<F>() + size_of::<G>() == 0).then(|| [TypeId::of::<F>(), TypeId::of::<G>()]),
        write: Box::new(write),
        read: Box::new(read),
        share,
    })
}

fn add_entry(entry: RegistryEntry) -> Result<()> {
    if let Some(end) = all().find_map(|there| there.conflict_with(&entry)) {
        return end;
    }
    // Lives as long as the process.
    let entry: &'static RegistryEntry = Box::leak(Box::new(entry));
    let mut place = &FIRST;
    loop {
        let node = place.get().unwrap_or_else(|| place.set(ListNode { entry, next: SetOnce::new() }));
        if std::ptr::eq(node.entry, entry) {
            return Ok(());
        }
        // Another thread may have added a node first.
        if let Some(end) = node.entry.conflict_with(entry) {
            return end;
        }
        place = &node.next;
    }
}

/// Returns the error for registering the type `type_name` under `name`, which is the name of the type
/// `taken_by`.
pub(super) fn name_taken(name: &str, taken_by: &str, type_name: &str) -> Error {
    Error::InvalidArgument(format!(
        "{name:?} is the name of the registered type {taken_by} already: register {type_name} under another \
         name (`register_as`)"
    ))
}

impl RegistryEntry {
    /// Checks whether `other` can be added to the table in addition to this entry. Returns `None` if it can.
    /// Returns `Ok` if both entries are the same, and an error if they have the same type or name but differ.
    fn conflict_with(&self, other: &RegistryEntry) -> Option<Result<()>> {
        let (same_type, same_name) = (self.type_id == other.type_id, self.name == other.name);
        if same_type && same_name && self.code.is_some() && self.code == other.code {
            return Some(Ok(()));
        }
        match (same_type, same_name) {
            (false, false) => None,
            (true, _) => Some(Err(Error::InvalidArgument(format!(
                "the type {} is registered already, as {:?}, with other functions: register each type once",
                self.type_name, self.name
            )))),
            (false, true) => Some(Err(name_taken(&self.name, self.type_name, other.type_name))),
        }
    }

    /// Reduces a value and encodes the result.
    pub(super) fn write(&self, value: &dyn Any) -> Result<Vec<u8>, String> {
        with_level(|| (self.write)(value))
    }

    /// Decodes a reduced value and rebuilds the original value.
    pub(super) fn read(&self, bytes: &[u8]) -> Result<Box<dyn Any>, String> {
        with_level(|| (self.read)(bytes))
    }

    /// Works like [`read`](Self::read), and returns a value that other threads may access.
    pub(super) fn read_shared(&self, bytes: &[u8]) -> Result<Box<dyn Any + Send + Sync>, String> {
        let local = || {
            format!(
                "a {} can't be an `AnyValue`: it was registered by `register_local`, for types that are not \
                 `Send` and `Sync`",
                self.type_name
            )
        };
        let share = self.share.ok_or_else(local)?;
        share(self.read(bytes)?).ok_or_else(|| "the registered functions return another type".into())
    }

    /// Returns the name of the type in this program.
    pub(super) fn type_name(&self) -> &'static str {
        self.type_name
    }
}

thread_local! {
    /// Number of nested calls of users' functions that this thread may still make. With this limit, a handle
    /// that contains its own type, or a function that sends its own value, is an error instead of a stack
    /// overflow.
    static LEFT: Cell<u16> = const { Cell::new(MAX_NESTING) };
}

/// Number of nesting levels that must stay unused, the same as for parts of messages.
const LAST: u16 = MAX_NESTING - SHALLOW;

fn with_level<R>(call: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    struct RestoreLevels(u16);
    impl Drop for RestoreLevels {
        fn drop(&mut self) {
            LEFT.set(self.0);
        }
    }
    let _before = RestoreLevels(LEFT.get());
    if LEFT.with(|left| nesting_depth::try_enter_above(left, LAST)) {
        call()
    } else {
        Err(LEFT.with(|left| nesting_depth::too_deep(left, LAST)).to_string())
    }
}

/// Calls a user's function. Converts an error or a panic into an error text.
fn catch_call<T, R>(what: &str, call: impl FnOnce() -> Result<R, BoxError>) -> Result<R, String> {
    let said = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("a payload that is not a text");
            let said = format!("a panic: {text}");
            drop_payload(payload);
            said
        }
    };
    Err(format!("{} can't be {what}: {said}", type_name::<T>()))
}
