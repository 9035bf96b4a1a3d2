//! # Safety
//! The tensor that nobody writes any more. Unsafe, because it makes `&[T]` of shared memory that any process can
//! reach; sound, because freezing consumes the only handle that could write, and receiving one requires an
//! attachment that its sender froze.
#![allow(unsafe_code)]

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::element::Element;
use super::raw::{Handle, Raw, shape_methods, view_methods};
use crate::error::{Error, Result};
use crate::message::scope;
use crate::words::Access;

/// A tensor in shared memory that any number of processes read and nobody writes, ever again.
///
/// Cloning it, viewing a part of it and sending it copy no element. Inside of a message it is an ordinary serde value;
/// the same storage sent twice is one storage at the receiver.
///
/// ```
/// use mp_core::Tensor;
///
/// let images = Tensor::<u8>::from_fn(&[4, 8, 8], |i| i as u8)?.freeze();
/// let third = images.select(0, 2)?;
/// assert_eq!(third.shape(), [8, 8]);
/// assert_eq!(third.as_slice()?[0], 128);
/// assert_eq!(third.storage(), images.storage());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// The memory lives as long as any process or any message on its way holds it; no process in particular has to.
#[derive(Clone)]
pub struct FrozenTensor<T: Element>(pub(crate) Raw<T>);

impl<T: Element> FrozenTensor<T> {
    shape_methods!();
    view_methods!();

    /// Its elements, in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] when it is not contiguous (a column of a matrix, say).
    pub fn as_slice(&self) -> Result<&[T]> {
        if !self.is_contiguous() {
            let why = format!("strides {:?} of shape {:?} are no slice", self.strides(), self.shape());
            return Err(Error::Shape(why));
        }
        // SAFETY: frozen: no handle that could write exists, in any process, nor can one be made again.
        Ok(unsafe { self.0.storage.slice(self.offset(), self.len()) })
    }

    /// One element.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such element.
    pub fn get(&self, index: &[usize]) -> Result<T> {
        self.0.storage.hold().arena().me()?;
        Ok(self.0.storage.load(self.0.view.position(index)?))
    }

    /// Its elements, in row-major order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.0.positions().map(|p| self.0.storage.load(p))
    }

    /// A copy of its elements in ordinary memory, in row-major order.
    pub fn to_vec(&self) -> Vec<T> {
        self.as_slice().map_or_else(|_| self.iter().collect(), <[T]>::to_vec)
    }
}

impl<T: Element> Serialize for FrozenTensor<T> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        scope::outgoing("a FrozenTensor", |out| self.0.attach(out, Access::Frozen))
            .map_err(S::Error::custom)?
            .serialize(s)
    }
}

impl<'de, T: Element> Deserialize<'de> for FrozenTensor<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let handle = Handle::deserialize(d)?;
        scope::incoming("a FrozenTensor", |inc| Raw::receive(inc, &handle, Access::Frozen))
            .map(Self)
            .map_err(D::Error::custom)
    }
}
