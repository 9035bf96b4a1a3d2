//! References to functions: a parent names a function in such a way that a child can find it, and the child
//! verifies the function before it calls it.
//!
//! Each use of a function makes one [`FunctionDesc`], a constant of the program. A reference to a
//! `FunctionDesc` consists of the build of the object that holds the constant, and its offset in that object.
//! The child looks up the same build, checks that the offset is that of a `FunctionDesc`, and then compares
//! the types of function, arguments and result. Names and addresses alone are not sufficient: two closures
//! can share both.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it reads a `FunctionDesc` at a computed address, and creates a value of a
//! function's type, which has no bytes.
#![allow(unsafe_code)]

pub(crate) mod build_id;
pub(crate) mod elf;
pub(crate) mod loaded_objects;

use std::any::TypeId;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::{fmt, ptr};

use mp_core::EnvelopeTicket;
use mp_core::message::{IntoOutcome, Message};
use serde::{Deserialize, Serialize};

use crate::error::backtrace::__rust_begin_short_backtrace;
use crate::error::{FunctionError, SpawnError, launch_error};
use crate::protocol::fields::fields;
use crate::protocol::function::build_id::BuildIdentity;
use crate::protocol::function::loaded_objects::{CrateMarker, MARKER, Object};
use crate::protocol::payload::ParentPayload;
use crate::protocol::report::{Report, unit};

/// Magic number of this layout. Another layout has another number.
const MAGIC: [u64; 2] = [0x6d70_5f73_7061_776e, 0x9e4d_b1c6_20f7_835c];

/// Description of a function for other processes: one constant for each combination of types. `E` is the type
/// of a function pointer.
#[repr(C)]
pub(crate) struct FunctionDesc<E> {
    head: DescHead,
    pub(crate) entry: E,
}

/// Common head of all descriptions.
#[repr(C)]
struct DescHead {
    magic: [u64; 2],
    /// Marker of the copy of this crate that made this description.
    marker: &'static CrateMarker,
    /// Function that returns the type of the entry. The field is not a `TypeId`, because compilers before
    /// 1.91 can't create a `TypeId` in a constant.
    kind: fn() -> TypeId,
    /// Function that returns a type that contains all types of the described function.
    types: fn() -> TypeId,
    name: fn() -> &'static str,
}

impl<E: 'static> FunctionDesc<E> {
    /// Describes `entry`, which represents a function called `name`; `T` names all of its types.
    pub(crate) const fn new<T: 'static>(name: fn() -> &'static str, entry: E) -> FunctionDesc<E> {
        let head =
            DescHead { magic: MAGIC, marker: &MARKER, kind: TypeId::of::<E>, types: TypeId::of::<T>, name };
        FunctionDesc { head, entry }
    }

    /// Returns the name of the function.
    pub(crate) fn name(&self) -> &'static str {
        (self.head.name)()
    }

    /// Returns a reference to this constant, or `None` if the object that holds it can't be identified.
    pub(crate) fn reference(&'static self) -> Option<FunctionRef> {
        let address = ptr::from_ref(self).expose_provenance();
        let inside = |object: &Object| object.offset_of(address).is_some();
        let (object, offset) =
            loaded_objects::find(inside, |object| object.identity().zip(object.offset_of(address)))??;
        let (fingerprint, name) = (self.head.fingerprint(), (self.head.name)().to_string());
        Some(FunctionRef { object, offset, fingerprint, name })
    }

    /// Returns a reference to this constant, as [`reference`](Self::reference) does, or the error of a start.
    ///
    /// # Errors
    /// Returns an error if the object that holds this constant can't be identified.
    pub(crate) fn start_reference(&'static self) -> Result<FunctionRef, SpawnError> {
        let unknown =
            || std::io::Error::other("this program's build can't be identified: link it with a build-id");
        self.reference().ok_or_else(|| launch_error("the lookup", None, unknown()))
    }
}

impl DescHead {
    #[inline]
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.types)().hash(&mut hasher);
        hasher.finish()
    }
}

impl<E> fmt::Debug for FunctionDesc<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desc").field("name", &(self.head.name)()).finish_non_exhaustive()
    }
}

/// Entry of a worker's function, called with the worker's rank and the data from the parent.
pub(crate) type StartFn = fn(usize, ParentPayload) -> Report;

/// Description of the function `F`, which is called with rank and arguments.
pub(crate) struct RankedFunction<F, A, R>(PhantomData<fn(F, A) -> R>);

impl<F, A, R> RankedFunction<F, A, R>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Message,
    R: IntoOutcome,
{
    pub(crate) const DESC: &'static FunctionDesc<StartFn> =
        &FunctionDesc::new::<Self>(std::any::type_name::<F>, |rank, args| {
            call(args, |args: A| __rust_begin_short_backtrace(|| instance::<F>()(rank, args)))
        });

    /// Returns the description of this function.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn described(_: F) -> &'static FunctionDesc<StartFn> {
        Self::DESC
    }
}

/// Description of the function `F`, which is called with arguments alone.
pub(crate) struct PlainFunction<F, A, R>(PhantomData<fn(F, A) -> R>);

impl<F, A, R> PlainFunction<F, A, R>
where
    F: Fn(A) -> R + Copy + Send + 'static,
    A: Message,
    R: IntoOutcome,
{
    pub(crate) const DESC: &'static FunctionDesc<StartFn> =
        &FunctionDesc::new::<Self>(std::any::type_name::<F>, |_, args| {
            call(args, |args: A| __rust_begin_short_backtrace(|| instance::<F>()(args)))
        });
}

/// Entry of a function that is preloaded by a fork server.
pub(crate) type PreloadFn = fn();

/// Description of a function that fork servers call once.
pub(crate) struct PreloadFunction<F>(PhantomData<fn(F)>);

impl<F: Fn() + Copy + Send + 'static> PreloadFunction<F> {
    pub(crate) const DESC: &'static FunctionDesc<PreloadFn> =
        &FunctionDesc::new::<Self>(std::any::type_name::<F>, || instance::<F>()());
}

/// Calls a function with the arguments that the parent sent, and packs its return value.
fn call<A: Message, R: IntoOutcome>(args: ParentPayload, function: impl FnOnce(A) -> R) -> Report {
    // `()` needs no decoding.
    match unit().map_or_else(|| args.unpack::<A>(), Ok) {
        Ok(args) => Report::returned(function(args)),
        Err((message, None)) => Report::Undecodable(message),
        Err((message, Some(args))) => Report::Unread(message, EnvelopeTicket::leave(args)),
    }
}

/// Returns the value of a zero-sized function type.
pub(crate) fn instance<F: Copy + Send + 'static>() -> F {
    const { assert_no_captures::<F>() };
    // SAFETY:
    // - `F` has no bytes (asserted above), so reading it from any aligned address reads nothing.
    // - A value of `F` exists: the sender passed one to a function of this crate, and may continue to use it,
    //   since `F: Copy`. So `F` is inhabited and this makes a copy of that value.
    // - The copy lives in another process, which `F: Send` doesn't cover word for word. The only thing that
    //   an `F` without bytes can carry beyond `Send` is a proof that something happened in its process. The
    //   documentation of `start_processes` warns authors of such proofs.
    unsafe { ptr::read(ptr::dangling::<F>()) }
}

/// Refuses at compile time functions that a child can't create.
///
/// ```no_run
/// let _ = mp_spawn::spawn(|rank: usize, (): ()| assert!(rank < 3), (), 2);
/// ```
///
/// A captured variable does not exist in the child:
///
/// ```compile_fail
/// let factor = std::hint::black_box(3);
/// let _ = mp_spawn::spawn(move |rank: usize, (): ()| assert!(rank < factor), (), 2);
/// ```
///
/// A function pointer is an address, which is invalid in the child:
///
/// ```compile_fail
/// fn worker(_rank: usize, (): ()) {}
/// let pointer: fn(usize, ()) = worker;
/// let _ = mp_spawn::spawn(pointer, (), 2);
/// ```
///
/// (A check of types, such as that of `trybuild`, does not find the error, because the compiler detects it
/// when it generates code for the caller.)
pub(crate) const fn assert_no_captures<F>() {
    assert!(
        size_of::<F>() == 0,
        "the function of a process must be a function item or a closure that captures nothing: a function \
         pointer or a captured variable does not exist in the other process. Pass values as arguments, or \
         capture them with `mp::closure!`"
    );
}

/// Reference to a function that is sent to a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FunctionRef {
    /// Build of the program or library that holds the function.
    pub(crate) object: BuildIdentity,
    offset: usize,
    fingerprint: u64,
    pub(crate) name: String,
}

fields!(FunctionRef { object, offset, fingerprint, name });

impl FunctionRef {
    /// Returns the reference for a guest, which has no function. The name in the reference is the name of the
    /// arguments' type.
    pub(crate) fn guest(name: String) -> FunctionRef {
        FunctionRef { object: BuildIdentity::BuildId(Vec::new()), offset: 0, fingerprint: 0, name }
    }

    /// Returns `true` if this is the reference for a guest.
    pub(crate) fn is_guest(&self) -> bool {
        self.object == BuildIdentity::BuildId(Vec::new())
    }
}

/// Returns a number that all processes of this build share, on any host, and that no other build has. Returns
/// `None` if the linker has written no build-id.
#[doc(hidden)]
pub fn build_number() -> Option<u64> {
    match loaded_objects::own()?.identity()? {
        id @ BuildIdentity::BuildId(_) => Some(id.short()),
        BuildIdentity::File { .. } => None,
    }
}

#[cfg(any(test, feature = "fuzz"))]
impl FunctionRef {
    /// Returns an arbitrary reference.
    pub(crate) fn example() -> FunctionRef {
        let object = BuildIdentity::File { device: 1, inode: 2, size: 3, modified: (-4, 5) };
        FunctionRef { object, offset: 6, fingerprint: 7, name: "f".to_string() }
    }

    /// Returns a reference to an address `by` bytes after this one.
    pub(crate) fn moved(&self, by: usize) -> FunctionRef {
        FunctionRef { offset: self.offset.wrapping_add(by), ..self.clone() }
    }
}

/// Returns the function that a reference names, after verification.
#[inline]
pub(crate) fn resolve<E: 'static>(
    reference: &FunctionRef,
) -> Result<&'static FunctionDesc<E>, FunctionError> {
    let same_build = |object: &Object| object.is(&reference.object);
    let place = |object: &Object| object.address_of(reference.offset, size_of::<FunctionDesc<E>>());
    let address = loaded_objects::find(same_build, place).ok_or_else(|| {
        let own = loaded_objects::own().and_then(Object::identity);
        FunctionError::OtherBuild {
            found: own.map_or_else(|| "an unknown one".to_string(), |found| found.to_string()),
            expected: reference.object.to_string(),
        }
    })?;
    let address = address.ok_or(FunctionError::OutOfBounds)?;
    if !address.is_multiple_of(align_of::<FunctionDesc<E>>()) {
        return Err(FunctionError::Misaligned);
    }
    let place: *const FunctionDesc<E> = ptr::with_exposed_provenance(address);
    // SAFETY: the bytes lie within one readable segment of a loaded object, aligned for a `FunctionDesc`,
    // which begins with the magic number. Any bytes are a `[u64; 2]`. They may be a mutable static of the
    // program when the reference is forged: hence volatile.
    let magic = unsafe { ptr::read_volatile(place.cast::<[u64; 2]>()) };
    if magic != MAGIC {
        return Err(FunctionError::NoFunction);
    }
    // SAFETY: data that begins with the magic number is a `FunctionDesc`, of any copy of this crate, and the
    // field lies within it. Any bytes are an address. Volatile, as above.
    let marker =
        unsafe { ptr::read_volatile(place.wrapping_byte_add(offset_of!(DescHead, marker)).cast::<usize>()) };
    if marker != (&raw const MARKER).addr() {
        return Err(FunctionError::OtherCopy);
    }
    // SAFETY: the object is of the very build that made the reference. So the data with the magic number
    // there is the `FunctionDesc` of the reference or another one: constants that nothing writes to, which
    // begin with a `DescHead` (`repr(C)`). Objects that hold code of this crate's users stay loaded: a
    // program that unloads a library whose function a worker runs breaks the contract of `dlclose`.
    let head = unsafe { &*place.cast::<DescHead>() };
    // The fingerprint is a hash: if two functions have the same one, their names differ.
    let same = (head.fingerprint() == reference.fingerprint) && ((head.name)() == reference.name);
    if (head.kind)() != TypeId::of::<E>() || !same {
        return Err(FunctionError::OtherTypes { found: (head.name)().to_string() });
    }
    // SAFETY: as above, and the entry is of the type `E`, according to `kind`.
    Ok(unsafe { &*place })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference<F, A, R>(_: F) -> Option<FunctionRef>
    where
        F: Fn(usize, A) -> R + Copy + Send + 'static,
        A: Message,
        R: IntoOutcome,
    {
        RankedFunction::<F, A, R>::DESC.reference()
    }

    fn resolve(reference: &FunctionRef) -> Result<&'static FunctionDesc<StartFn>, FunctionError> {
        super::resolve(reference)
    }

    fn one(_rank: usize, _args: u32) {}
    fn other(_rank: usize, _args: u32) {}

    #[test]
    fn function_references_resolve_to_their_function() {
        let one = reference(one).unwrap();
        assert_eq!((resolve(&one).unwrap().head.name)(), "mp_spawn::protocol::function::tests::one");
        let closure = reference(|_: usize, (): ()| {}).unwrap();
        assert!(resolve(&closure).is_ok());
    }

    #[test]
    fn tampered_function_references_are_refused() {
        let good = reference(one).unwrap();
        let with = |offset| FunctionRef { offset, ..good.clone() };
        assert_eq!(resolve(&with(usize::MAX)).unwrap_err(), FunctionError::OutOfBounds);
        assert_eq!(resolve(&with(usize::MAX / 4 * 3)).unwrap_err(), FunctionError::OutOfBounds);
        assert_eq!(resolve(&with(good.offset + 1)).unwrap_err(), FunctionError::Misaligned);
        assert_eq!(
            resolve(&with(good.offset + align_of::<FunctionDesc<StartFn>>())).unwrap_err(),
            FunctionError::NoFunction
        );
        let other = reference(other).unwrap();
        assert!(matches!(
            resolve(&with(other.offset)),
            Err(FunctionError::OtherTypes { found }) if found.ends_with("other")
        ));
        let foreign = FunctionRef { object: BuildIdentity::BuildId(vec![1, 2]), ..good };
        let refusal = resolve(&foreign).unwrap_err();
        assert!(refusal.to_string().contains("expected build-id 0102"), "{refusal}");
    }

    #[test]
    fn function_of_another_crate_copy_is_refused() {
        static OTHER: CrateMarker = loaded_objects::another_marker();
        static DESC: FunctionDesc<StartFn> = {
            let FunctionDesc { head, entry } =
                FunctionDesc::<StartFn>::new::<u8>(|| "f", |_, _| Report::Undecodable(String::new()));
            FunctionDesc { head: DescHead { marker: &OTHER, ..head }, entry }
        };
        let refusal = resolve(&DESC.reference().unwrap()).unwrap_err();
        assert_eq!(refusal, FunctionError::OtherCopy);
        assert!(refusal.to_string().contains("set_command"), "{refusal}");
    }

    #[test]
    fn function_of_another_kind_is_refused() {
        let refusal = super::resolve::<fn(u8)>(&reference(one).unwrap()).unwrap_err();
        assert!(matches!(refusal, FunctionError::OtherTypes { .. }), "{refusal}");
    }

    #[test]
    fn function_reference_with_another_name_is_refused() {
        let reference = FunctionRef { name: "there::worker".to_string(), ..reference(one).unwrap() };
        let refusal = resolve(&reference).unwrap_err();
        assert!(
            matches!(&refusal, FunctionError::OtherTypes { found } if found.ends_with("one")),
            "{refusal:?}"
        );
    }

    #[test]
    fn function_reference_of_other_fingerprint_is_refused() {
        let good = reference(one).unwrap();
        let reference = FunctionRef { fingerprint: good.fingerprint ^ 1, ..good };
        let refusal = resolve(&reference).unwrap_err();
        assert!(matches!(refusal, FunctionError::OtherTypes { .. }), "{refusal:?}");
    }

    #[test]
    fn closures_of_equal_type_differ_in_fingerprint() {
        let pair = [reference(|_: usize, (): ()| {}).unwrap(), reference(|_: usize, (): ()| {}).unwrap()];
        assert_ne!(pair[0].fingerprint, pair[1].fingerprint);
    }
}
