//! Kinds of objects, the types of their messages, and the build of the program that both sides must share if
//! a type may differ between builds.

use mp_core::Message;
use mp_reduce::{TypeFingerprint, name_of};

/// Text between the name of a type and its build.
pub(crate) const BUILD: &str = " of build ";
/// Crates whose types have the same encoding in each build.
const STABLE: [&str; 4] = ["alloc", "core", "mp_tensor", "std"];

/// Type of an object: its kind, and the type of its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectType {
    pub(crate) fingerprint: u64,
    /// Text for errors, such as `a queue of u64`.
    pub(crate) name: String,
}

/// Returns the type of objects of this kind, which have no messages.
fn plain(kind: &[u8; 8], name: &str) -> ObjectType {
    ObjectType { fingerprint: u64::from_le_bytes(*kind), name: name.into() }
}

/// Returns `true` if all builds of all programs encode the type in the same way.
fn is_portable<T: Message>() -> bool {
    T::DYNAMIC || T::schema().is_some() || has_stable_name(std::any::type_name::<T>())
}

/// Returns `true` if a type consists of [`STABLE`] types only.
fn has_stable_name(name: &str) -> bool {
    let words = name.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
    let mut crates = words.filter_map(|word| word.split_once("::")).map(|(of, _)| of);
    crates.all(|of| STABLE.contains(&of))
}

impl ObjectType {
    /// Returns the type of a queue whose messages have this fingerprint.
    pub(crate) fn queue<T: Message>(fingerprint: u64) -> Self {
        let name = format!("a queue of {}", name_of::<T>());
        Self { fingerprint, name }.in_build(is_portable::<T>())
    }

    /// Returns the type of a service with this fingerprint.
    pub(crate) fn service<Q: Message, R: Message>(fingerprint: u64) -> Self {
        let name = format!("a service from {} to {}", name_of::<Q>(), name_of::<R>());
        Self { fingerprint, name }.in_build(is_portable::<Q>() && is_portable::<R>())
    }

    /// Returns this type, unchanged if `is_portable`. Otherwise adds the number of this program's build to
    /// it.
    fn in_build(self, is_portable: bool) -> Self {
        let Some(build) = mp_spawn::build_number().filter(|_| !is_portable) else { return self };
        let (fingerprint, name) = (self.fingerprint ^ build, self.name);
        Self { fingerprint, name: format!("{name}{BUILD}{build:016x}") }
    }

    pub(crate) fn event() -> Self {
        plain(b"event   ", "an event")
    }

    pub(crate) fn semaphore() -> Self {
        plain(b"permits ", "a semaphore")
    }

    /// Returns the type of a channel of this kind, whose messages are serde types.
    fn channel<T>(kind: &[u8; 8], name: &str) -> Self {
        let fingerprint = TypeFingerprint::<T>::of_rust_name().get() ^ u64::from_le_bytes(*kind);
        let of = std::any::type_name::<T>();
        Self { fingerprint, name: format!("{name} of {of}") }.in_build(has_stable_name(of))
    }

    pub(crate) fn watch<T>() -> Self {
        Self::channel::<T>(b"watch   ", "a watch channel")
    }

    pub(crate) fn broadcast<T>() -> Self {
        Self::channel::<T>(b"casts   ", "a broadcast channel")
    }

    pub(crate) fn barrier() -> Self {
        plain(b"barrier ", "a barrier")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Job;

    #[test]
    fn unstable_type_name_contains_the_build() {
        let stable = std::any::type_name::<(Vec<Option<[u8; 4]>>, std::time::Duration, &str)>();
        assert!(has_stable_name(stable), "{stable}");
        let mixed = std::any::type_name::<(u8, Option<Job>)>();
        assert!(!has_stable_name(mixed) && !has_stable_name("corelib::A") && !has_stable_name("a::std::A"));
        let (plain, own) = (ObjectType::watch::<u8>(), ObjectType::watch::<Job>());
        assert!(!plain.name.contains(BUILD) && own.name.contains(BUILD), "{} {}", plain.name, own.name);
    }
}
