//! # Safety
//! Values of type parameters as values of known types. The code is unsafe because references and values are
//! reinterpreted as another type. It is sound for these reasons:
//! - A value is reinterpreted only if both types have the same id ([`id`]). Types with the same id differ
//!   only in lifetimes.
//! - The requested type has no lifetimes ([`StaticType`]), so the other type is the same type.
//! - A returned reference lives no longer than the borrow through which it was obtained.
//! - A [`NumberType`] is created only by [`NumberType::of`], for the type with its id.
//! - A [`CastSlot`] is created only from the borrowed option that it fills.
#![allow(unsafe_code)]

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::transmute;
#[cfg(any(test, feature = "bytes"))]
use std::mem::{ManuallyDrop, transmute_copy};
use std::ptr::NonNull;

use bytemuck::NoUninit;

/// A type without lifetimes.
///
/// # Safety
/// The type must not contain a lifetime, not even `'static`: another type with the same [`id`] is then the
/// same type.
pub(in crate::codec) unsafe trait StaticType: 'static {}

macro_rules! lifeless {
    ($($t:ty)*) => {$(
        // SAFETY: a number.
        unsafe impl StaticType for $t {}
    )*};
}

lifeless!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

// SAFETY: `Vec` has the lifetimes of its elements, and no others.
unsafe impl<T: StaticType> StaticType for Vec<T> {}

#[cfg(feature = "bytes")]
// SAFETY: a struct without parameters.
unsafe impl StaticType for bytes::Bytes {}

/// Returns the id that a type would have if all its lifetimes were `'static`.
#[inline]
pub(in crate::codec) fn id<T: ?Sized>() -> TypeId {
    trait Identified {
        fn id(&self) -> TypeId
        where
            Self: 'static;
    }

    impl<T: ?Sized> Identified for PhantomData<T> {
        #[inline]
        fn id(&self) -> TypeId
        where
            Self: 'static,
        {
            TypeId::of::<T>()
        }
    }

    let this = PhantomData::<T>;
    let this: &dyn Identified = &this;
    // SAFETY: the reference is used only in the next line. The called code reads nothing: it is generic over
    // a type, and code for one type is the same for all lifetimes in it.
    let this = unsafe { transmute::<&dyn Identified, &(dyn Identified + 'static)>(this) };
    this.id()
}

/// Number type, or reference to a number type.
#[derive(Clone, Copy)]
pub(super) struct NumberType {
    id: TypeId,
    /// Size of the number in bytes.
    size: usize,
    is_reference: bool,
}

impl NumberType {
    /// Returns the type with this id if it is `P`, or a reference to a `P`.
    #[inline]
    pub(super) fn of<P: StaticType + NoUninit>(id: TypeId) -> Option<Self> {
        let is_reference = id == TypeId::of::<&'static P>();
        let is_either = is_reference || id == TypeId::of::<P>();
        is_either.then_some(Self { id, size: size_of::<P>(), is_reference })
    }

    /// Returns the bytes of the number if `value` has this type.
    #[inline]
    pub(super) fn bytes<A: ?Sized>(self, value: &A) -> Option<&[u8]> {
        if id::<A>() != self.id {
            return None;
        }
        let value = (&raw const *value).cast::<u8>();
        let number = if self.is_reference {
            // SAFETY: `A` has the same id as a reference to a number, so it is such a reference.
            unsafe { value.cast::<*const u8>().read() }
        } else {
            value
        };
        // SAFETY: the number has `size` bytes, which are all initialised. It lives as long as the borrow of
        // `value`: it is `value`, or `value` is a reference to it.
        Some(unsafe { std::slice::from_raw_parts(number, self.size) })
    }
}

/// Returns the referent of `value` if it is a reference to a `B`.
#[inline]
pub(super) fn cast_referent<A: ?Sized, B: StaticType>(value: &A) -> Option<&B> {
    if id::<A>() != TypeId::of::<&'static B>() {
        return None;
    }
    // SAFETY: `A` has the same id as a reference to `B`, which has no other lifetimes. So `A` is `&'x B`,
    // where `'x` is at least as long as the borrow of `value`.
    let reference = unsafe { &*(&raw const *value).cast::<&B>() };
    Some(*reference)
}

/// Returns the elements of `value` if it is a reference to a slice of `B`.
#[inline]
pub(super) fn slice<A: ?Sized, B: StaticType>(value: &A) -> Option<&[B]> {
    if id::<A>() != TypeId::of::<&'static [B]>() {
        return None;
    }
    // SAFETY: as in `cast_referent`, for a slice.
    let reference = unsafe { &*(&raw const *value).cast::<&[B]>() };
    Some(*reference)
}

/// Reference to an `Option` of any type, which is to be filled. The code that fills it need not be generic
/// over the type.
pub(super) struct CastSlot<'p> {
    /// Id of the type inside the `Option`.
    id: TypeId,
    to: NonNull<()>,
    empty: PhantomData<&'p mut ()>,
}

impl<'p> CastSlot<'p> {
    #[inline]
    pub(super) fn new<B>(to: &'p mut Option<B>) -> Self {
        Self { id: id::<B>(), to: NonNull::from(to).cast(), empty: PhantomData }
    }

    /// Returns `true` if the type inside the `Option` is `A`.
    #[inline]
    pub(super) fn is_for<A: StaticType>(&self) -> bool {
        self.id == TypeId::of::<A>()
    }

    /// Stores `value` if its type is that inside the `Option`.
    pub(super) fn put<A: StaticType>(self, value: A) {
        if self.is_for::<A>() {
            // SAFETY: the pointer is to an `Option` that `new` has borrowed for the lifetime of this place,
            // and that nothing else uses. Its type has the same id as `A`, which has no lifetimes, so its
            // values are `A`s.
            let to = unsafe { self.to.cast::<Option<A>>().as_mut() };
            *to = Some(value);
        }
    }
}

/// Returns `value` as a `B`, if it is one.
#[cfg(any(test, feature = "bytes"))]
#[inline]
pub(in crate::codec) fn cast_value<A: StaticType, B>(value: A) -> Option<B> {
    if id::<B>() != TypeId::of::<A>() {
        return None;
    }
    let value = ManuallyDrop::new(value);
    // SAFETY: `B` has the same id as `A`, which has no lifetimes, so `B` is `A`. The value is moved out and
    // not dropped here.
    Some(unsafe { transmute_copy::<ManuallyDrop<A>, B>(&value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serializer_casts_equal_types_despite_lifetimes() {
        let row = vec![1_u16, 2];
        assert_eq!(slice::<_, u16>(&row.as_slice()), Some(&[1, 2][..]));
        assert_eq!(cast_referent::<_, Vec<u16>>(&&row), Some(&row));
        for value in [
            NumberType::of::<u16>(id::<u16>()).unwrap().bytes(&row[1]),
            NumberType::of::<u16>(id::<&u16>()).unwrap().bytes(&&row[1]),
        ] {
            assert_eq!(value, Some(&2_u16.to_ne_bytes()[..]));
        }
        let mut there = None;
        CastSlot::new::<Vec<u16>>(&mut there).put(row.clone());
        assert_eq!(there, Some(row.clone()));
        assert_eq!(cast_value::<Vec<u16>, Vec<u16>>(row.clone()), Some(row.clone()));
    }

    #[test]
    fn serializer_does_not_cast_values_of_other_types() {
        let row = vec![1_u16, 2];
        assert_eq!(slice::<_, i16>(&row.as_slice()), None);
        assert_eq!(slice::<_, u16>(&row), None);
        assert_eq!(cast_referent::<_, Vec<u16>>(&row), None);
        assert!(NumberType::of::<u16>(id::<[u16]>()).is_none());
        assert_eq!(NumberType::of::<u16>(id::<u16>()).unwrap().bytes(&row[..]), None);
        let mut there = None;
        CastSlot::new::<Vec<i16>>(&mut there).put(row.clone());
        assert_eq!(there, None);
        assert_eq!(cast_value::<Vec<u16>, Vec<i16>>(row), None);
    }
}
