//! A function by reference: how a parent names a function so that a child can find it, and how the child makes
//! sure that it is the one before it is called.
//!
//! Each use of a function makes one [`Desc`], a constant of the program. A reference to it is the build of the
//! object that holds it and its offset there. The child looks up the same build, checks that the offset is that
//! of a `Desc`, and then compares the types of function, arguments and result. Names and addresses alone
//! wouldn't do: two closures can share both.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it reads a `Desc` at an address that it has computed, and makes a value of a
//! function's type, which has no bytes, out of nothing.
#![allow(unsafe_code)]

use std::any::TypeId;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::ptr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::handoff::FromParent;
use crate::object::{self, Identity};
use crate::outcome::{Ended, Outcome};

const MAGIC: [u64; 2] = [0x6d70_5f73_7061_776e, 0x9e4d_b1c6_20f7_835b];

/// What a child needs to call a function: one constant for each combination of types.
#[repr(C)]
pub(crate) struct Desc {
    magic: [u64; 2],
    types: TypeId,
    name: fn() -> &'static str,
    call: fn(usize, FromParent) -> Ended,
}

impl Desc {
    pub(crate) fn call(&self, rank: usize, args: FromParent) -> Ended {
        (self.call)(rank, args)
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.types.hash(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Debug for Desc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desc").field("name", &(self.name)()).finish_non_exhaustive()
    }
}

trait Described {
    const DESC: &'static Desc;
}

struct Uses<F, A, R>(PhantomData<fn(F, A) -> R>);

impl<F, A, R> Described for Uses<F, A, R>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned + 'static,
    R: Outcome + 'static,
{
    const DESC: &'static Desc = &Desc {
        magic: MAGIC,
        types: TypeId::of::<(F, A, R)>(),
        name: std::any::type_name::<F>,
        call: call::<F, A, R>,
    };
}

/// Calls a function that only exists as a type.
fn call<F, A, R>(rank: usize, args: FromParent) -> Ended
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned + 'static,
    R: Outcome + 'static,
{
    const { assert_no_captures::<F>() };
    let args = match args.unpack::<A>() {
        Ok(args) => args,
        Err(message) => return Ended::Undecodable(message),
    };
    // SAFETY:
    // - `F` has no bytes (asserted above), so reading it from any aligned address reads nothing.
    // - A value of `F` exists: the parent passed one to `reference`, which keeps nobody from using it as well,
    //   since `F: Copy`; so `F` is inhabited and this makes a copy of that value.
    // - The copy lives in another process, which `F: Send` doesn't cover word for word; what an `F` without
    //   bytes can carry beyond `Send` is a proof that something happened in its process. The documentation of
    //   `start_processes` tells authors of such proofs.
    let function: F = unsafe { ptr::read(ptr::dangling::<F>()) };
    Ended::Returned(function(rank, args).into_fault())
}

/// Refuses, when the program is compiled, functions that a child couldn't make anew.
const fn assert_no_captures<F>() {
    assert!(
        size_of::<F>() == 0,
        "the function of a process must be a function item or a closure that captures nothing: a function \
         pointer or a captured variable does not exist in the other process. Pass values as arguments instead"
    );
}

/// A reference to a function that travels to a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FunctionRef {
    object: Identity,
    offset: usize,
    fingerprint: u64,
    pub(crate) name: String,
}

/// The reference to this function; `None` when the object that holds it can't be told from others.
pub(crate) fn reference<F, A, R>(_function: F) -> Option<FunctionRef>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned + 'static,
    R: Outcome + 'static,
{
    const { assert_no_captures::<F>() };
    let desc = <Uses<F, A, R> as Described>::DESC;
    let address = ptr::from_ref(desc).expose_provenance();
    let object = object::holding(address)?;
    Some(FunctionRef {
        object: object.identity()?,
        offset: object.offset_of(address)?,
        fingerprint: desc.fingerprint(),
        name: (desc.name)().to_string(),
    })
}

/// Why a child does not call the function that it was told to call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The child runs another program, or another build of this one.
    OtherBuild {
        /// What the child runs.
        found: String,
        /// What the parent runs.
        expected: String,
    },
    /// The reference points out of the program.
    OutOfBounds,
    /// The reference points to no function: it is not aligned as one.
    Misaligned,
    /// The reference points to no function: something else lies there.
    NoFunction,
    /// The reference points to a function of other types.
    OtherTypes {
        /// The function that lies there.
        found: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherBuild { found, expected } => {
                write!(f, "the child runs another build: {found}, expected {expected}")
            }
            Refusal::OutOfBounds => f.write_str("the reference points out of the program"),
            Refusal::Misaligned => f.write_str("the reference is not aligned"),
            Refusal::NoFunction => f.write_str("the reference points to something that is no function"),
            Refusal::OtherTypes { found } => {
                write!(f, "the reference points to a function of other types, `{found}`")
            }
        }
    }
}

/// The function that a reference names, verified.
pub(crate) fn resolve(reference: &FunctionRef) -> Result<&'static Desc, Refusal> {
    let mut objects = object::loaded().into_iter();
    let object =
        objects.find(|object| object.identity().as_ref() == Some(&reference.object)).ok_or_else(|| {
            let program = object::loaded().into_iter().next().and_then(|program| program.identity());
            Refusal::OtherBuild {
                found: program.map_or_else(|| "an unknown one".to_string(), |found| found.to_string()),
                expected: reference.object.to_string(),
            }
        })?;
    let address = object.address_of(reference.offset, size_of::<Desc>()).ok_or(Refusal::OutOfBounds)?;
    if !address.is_multiple_of(align_of::<Desc>()) {
        return Err(Refusal::Misaligned);
    }
    let place: *const Desc = ptr::with_exposed_provenance(address);
    // SAFETY: the bytes lie within one readable segment of a loaded object, aligned for a `Desc`, which begins
    // with the magic number; any bytes are a `[u64; 2]`. They may be a mutable static of the program when the
    // reference is forged: hence volatile.
    let magic = unsafe { ptr::read_volatile(place.cast::<[u64; 2]>()) };
    if magic != MAGIC {
        return Err(Refusal::NoFunction);
    }
    // SAFETY: the object is of the very build that made the reference, so what carries the magic number there is
    // the `Desc` that it was made from or another one: constants that nothing writes to. Objects that hold code
    // of this crate's users stay loaded: a program that unloads a library whose function a worker runs breaks
    // the contract of `dlclose`.
    let desc = unsafe { &*place };
    if desc.fingerprint() == reference.fingerprint {
        Ok(desc)
    } else {
        Err(Refusal::OtherTypes { found: (desc.name)().to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(_rank: usize, _args: u32) {}
    fn other(_rank: usize, _args: u32) {}

    #[test]
    fn references_lead_back() {
        let one = reference(one).unwrap();
        assert_eq!((resolve(&one).unwrap().name)(), "mp_spawn::function::tests::one");
        let closure = reference(|_: usize, (): ()| {}).unwrap();
        assert!(resolve(&closure).is_ok());
    }

    #[test]
    fn tampered_references_are_refused() {
        let good = reference(one).unwrap();
        let with = |offset| FunctionRef { offset, ..good.clone() };
        assert_eq!(resolve(&with(usize::MAX)).unwrap_err(), Refusal::OutOfBounds);
        assert_eq!(resolve(&with(usize::MAX / 4 * 3)).unwrap_err(), Refusal::OutOfBounds);
        assert_eq!(resolve(&with(good.offset + 1)).unwrap_err(), Refusal::Misaligned);
        assert_eq!(resolve(&with(good.offset + align_of::<Desc>())).unwrap_err(), Refusal::NoFunction);
        let other = reference(other).unwrap();
        assert!(
            matches!(resolve(&with(other.offset)), Err(Refusal::OtherTypes { found }) if found.ends_with("other"))
        );
        let foreign = FunctionRef { object: Identity::BuildId(vec![1, 2]), ..good };
        let refusal = resolve(&foreign).unwrap_err();
        assert!(refusal.to_string().contains("expected build-id 0102"), "{refusal}");
    }

    #[test]
    fn twins_have_fingerprints_of_their_own() {
        let pair = [reference(|_: usize, (): ()| {}).unwrap(), reference(|_: usize, (): ()| {}).unwrap()];
        assert_ne!(pair[0].fingerprint, pair[1].fingerprint);
    }
}
