//! Table of the types that this process can send.

use std::any::{Any, TypeId, type_name};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mp_core::fork::SetOnce;
use mp_core::message::level::{self, MAX_NESTING, SHALLOW};
use mp_core::user_code::drop_payload;
use mp_core::waits::this_process;
use mp_core::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{part_of, place, read_part};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Write = dyn Fn(&dyn Any) -> Result<Vec<u8>, String> + Send + Sync;
type Read = dyn Fn(&[u8]) -> Result<Box<dyn Any>, String> + Send + Sync;
/// Converts a value to one that other threads may access.
type Share = fn(Box<dyn Any>) -> Option<Box<dyn Any + Send + Sync>>;

/// A registered type.
pub(super) struct Entry {
    pub(super) name: String,
    type_id: TypeId,
    type_name: &'static str,
    /// Types of the two functions, if they capture nothing.
    code: Option<[TypeId; 2]>,
    write: Box<Write>,
    read: Box<Read>,
    /// `None` if values stay in the thread that reads them.
    share: Option<Share>,
}

/// Linked list of all entries. It is read without a lock, and nothing is removed.
struct Node {
    entry: &'static Entry,
    next: SetOnce<Node>,
}

// fork: the child has the same types. An entry that another thread was adding is in the list or not.
static FIRST: SetOnce<Node> = SetOnce::new();

fn all() -> impl Iterator<Item = &'static Entry> {
    std::iter::successors(FIRST.get(), |node| node.next.get()).map(|node| node.entry)
}

/// Returns the entry of a type.
pub(super) fn of_type<T: 'static>() -> Result<&'static Entry, String> {
    of_id(TypeId::of::<T>(), type_name::<T>())
}

/// Returns the entry of a type id. `type_name` is its name in this program.
pub(super) fn of_id(id: TypeId, type_name: &str) -> Result<&'static Entry, String> {
    super::standard::register();
    all().find(|entry| entry.type_id == id).ok_or_else(|| unknown(type_name))
}

/// Returns the entry with a name.
pub(super) fn of_name(name: &str) -> Result<&'static Entry, String> {
    super::standard::register();
    all().find(|entry| entry.name == name).ok_or_else(|| unknown(name))
}

#[cold]
fn unknown(name: &str) -> String {
    format!(
        "the type {name} is not registered in {}: `register!` makes it known to all processes \
         of a program, `register` to one",
        this_process()
    )
}

/// Adds a type, unless it is already in the table.
pub(super) fn add<T, H, F, G>(name: &str, reduce: F, rebuild: G) -> Result<()>
where
    T: Send + Sync + 'static,
    H: Serialize + DeserializeOwned,
    F: Fn(&T) -> Result<H, Failure> + Send + Sync + 'static,
    G: Fn(H) -> Result<T, Failure> + Send + Sync + 'static,
{
    add_entry(Entry {
        share: Some(|value| value.downcast::<T>().ok().map(|value| value as _)),
        ..entry(name, reduce, rebuild)
    })
}

/// Adds a type whose values stay in one thread.
pub(super) fn add_local<T, H, F, G>(name: &str, reduce: F, rebuild: G) -> Result<()>
where
    T: 'static,
    H: Serialize + DeserializeOwned,
    F: Fn(&T) -> Result<H, Failure> + Send + Sync + 'static,
    G: Fn(H) -> Result<T, Failure> + Send + Sync + 'static,
{
    add_entry(entry(name, reduce, rebuild))
}

fn entry<T, H, F, G>(name: &str, reduce: F, rebuild: G) -> Entry
where
    T: 'static,
    H: Serialize + DeserializeOwned,
    F: Fn(&T) -> Result<H, Failure> + Send + Sync + 'static,
    G: Fn(H) -> Result<T, Failure> + Send + Sync + 'static,
{
    let write = move |value: &dyn Any| {
        let value = value.downcast_ref::<T>().ok_or_else(|| unknown(type_name::<T>()))?;
        let handle = called::<T, _>("reduced", || reduce(value))?;
        part_of::<H, H>(&handle)
            .map_err(|e| format!("what {} is reduced to: {}{e}", type_name::<T>(), place(&e)))
    };
    let read = move |bytes: &[u8]| {
        let handle = read_part::<H>(bytes).map_err(|e| {
            let (this, handle) = (type_name::<T>(), type_name::<H>());
            format!("{this}, as {handle}: {}{e}; is it registered alike on both sides?", place(&e))
        })?;
        let value = called::<T, _>("rebuilt", || rebuild(handle))?;
        Ok(Box::new(value) as Box<dyn Any>)
    };
    Entry {
        name: name.to_string(),
        type_id: TypeId::of::<T>(),
        type_name: type_name::<T>(),
        code: (size_of::<F>() + size_of::<G>() == 0).then(|| [TypeId::of::<F>(), TypeId::of::<G>()]),
        write: Box::new(write),
        read: Box::new(read),
        share: None,
    }
}

fn add_entry(entry: Entry) -> Result<()> {
    // Checked also before the standard types are in the list.
    if let Some((standard, type_name)) = super::standard::of_name(&entry.name)
        && standard != entry.type_id
    {
        return Err(entry.name_of(type_name));
    }
    if let Some(end) = all().find_map(|there| there.against(&entry)) {
        return end;
    }
    // Lives as long as the process.
    let entry: &'static Entry = Box::leak(Box::new(entry));
    let mut place = &FIRST;
    loop {
        let node = place.get().unwrap_or_else(|| place.set(Node { entry, next: SetOnce::new() }));
        if std::ptr::eq(node.entry, entry) {
            return Ok(());
        }
        // Another thread may have added a node first.
        if let Some(end) = node.entry.against(entry) {
            return end;
        }
        place = &node.next;
    }
}

impl Entry {
    /// Returns the result of adding `other` if this entry concerns it, otherwise `None`.
    fn against(&self, other: &Entry) -> Option<Result<()>> {
        let (same_type, same_name) = (self.type_id == other.type_id, self.name == other.name);
        if same_type && same_name && self.code.is_some() && self.code == other.code {
            return Some(Ok(()));
        }
        match (same_type, same_name) {
            (false, false) => None,
            (true, _) => Some(Err(Error::InvalidArgument(format!(
                "the type {} is registered already, as {:?}, with other functions: a type is \
                 registered once in a process",
                self.type_name, self.name
            )))),
            (false, true) => Some(Err(other.name_of(self.type_name))),
        }
    }

    /// Returns the error of a name that another type has.
    fn name_of(&self, type_name: &str) -> Error {
        Error::InvalidArgument(format!(
            "{:?} is the name of the registered type {type_name} already: give {} another one, \
             by `register_as`",
            self.name, self.type_name
        ))
    }

    /// Encodes the reduced value.
    pub(super) fn write(&self, value: &dyn Any) -> Result<Vec<u8>, String> {
        deeper(|| (self.write)(value))
    }

    /// Rebuilds the value.
    pub(super) fn read(&self, bytes: &[u8]) -> Result<Box<dyn Any>, String> {
        deeper(|| (self.read)(bytes))
    }

    /// Rebuilds the value, for any thread.
    pub(super) fn read_shared(&self, bytes: &[u8]) -> Result<Box<dyn Any + Send + Sync>, String> {
        let local = || {
            format!(
                "a {} can't be an `AnyValue`: it is registered by `register_local`, for a type that is not \
                 `Send` and `Sync`",
                self.type_name
            )
        };
        let share = self.share.ok_or_else(local)?;
        share(self.read(bytes)?).ok_or_else(|| "a registered type is another one".into())
    }

    /// Returns the name of the type in this program.
    pub(super) fn type_name(&self) -> &'static str {
        self.type_name
    }
}

thread_local! {
    /// Number of further nested calls of users' functions. A handle that contains its own type, or a function
    /// that sends its own value, then causes an error instead of a stack overflow.
    static LEFT: Cell<u16> = const { Cell::new(MAX_NESTING) };
}

/// Number of levels that stay: as many may be entered as in parts of messages.
const LAST: u16 = MAX_NESTING - SHALLOW;

fn deeper<R>(call: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    struct Before(u16);
    impl Drop for Before {
        fn drop(&mut self) {
            LEFT.set(self.0);
        }
    }
    let _before = Before(LEFT.get());
    if LEFT.with(|left| level::down_to(left, LAST)) {
        call()
    } else {
        Err(LEFT.with(|left| level::too_deep(left, LAST)).to_string())
    }
}

/// Calls a function of the user. A panic becomes an error.
fn called<T, R>(what: &str, call: impl FnOnce() -> Result<R, Failure>) -> Result<R, String> {
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
