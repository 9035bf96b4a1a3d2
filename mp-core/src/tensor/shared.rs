//! The tensor that everybody reads and writes.

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::element::{Element, Number};
use super::raw::{Handle, Raw, shape_methods, view_methods};
use crate::error::{Error, Result};
use crate::message::scope;
use crate::words::Access;

/// A tensor in shared memory that any number of processes read and write at once, element by element, through relaxed
/// atomics of the element's own width.
///
/// That is what lock-free training ("Hogwild", Niu et al. 2011) needs: no element is ever torn, reads and
/// writes cost what plain ones do, and nothing is promised about the order in which others see them. To hand over more
/// than single elements, send a message: what was written before a `put` is seen after the `get`.
///
/// ```
/// use mp_core::Tensor;
///
/// let weights = Tensor::<f32>::zeros(&[10])?.share();
/// weights.store(3, 0.5);
/// assert_eq!(weights.fetch_add(3, 0.25), 0.5); // atomic: no addition is lost
/// assert_eq!(weights.load(3), 0.75);
/// # Ok::<(), mp_core::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedTensor<T: Element>(pub(crate) Raw<T>);

impl<T: Element> SharedTensor<T> {
    shape_methods!();
    view_methods!();

    #[inline]
    fn nth(&self, i: usize) -> usize {
        assert!(i < self.len(), "element {i} of {}", self.len());
        if self.is_contiguous() { self.offset() + i } else { self.0.view.nth(i) }
    }

    /// Reads the `i`-th element in row-major order.
    ///
    /// # Panics
    /// If there is no such element, as indexing a slice.
    #[inline]
    pub fn load(&self, i: usize) -> T {
        self.0.storage.load(self.nth(i))
    }

    /// Writes the `i`-th element in row-major order.
    ///
    /// # Panics
    /// If there is no such element, as indexing a slice.
    #[inline]
    pub fn store(&self, i: usize, value: T) {
        self.0.storage.store(self.nth(i), value);
    }

    /// One element.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) when there is no such element.
    pub fn get(&self, index: &[usize]) -> Result<T> {
        self.0.storage.hold().arena().me()?;
        Ok(self.0.storage.load(self.0.view.position(index)?))
    }

    /// Writes one element.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) when there is no such element.
    pub fn set(&self, index: &[usize], value: T) -> Result<()> {
        self.0.storage.hold().arena().me()?;
        self.0.storage.store(self.0.view.position(index)?, value);
        Ok(())
    }

    /// Its elements, in row-major order, each as it is when it is reached.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.0.positions().map(|p| self.0.storage.load(p))
    }

    /// A copy of its elements, each as it is when it is reached.
    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }

    /// Copies its elements to `to`, each as it is when it is reached.
    ///
    /// # Errors
    /// [`Error::Shape`] when `to` has another length.
    pub fn read_into(&self, to: &mut [T]) -> Result<()> {
        if to.len() != self.len() {
            return Err(Error::Shape(format!("{} elements into a slice of {}", self.len(), to.len())));
        }
        if self.is_contiguous() {
            let first = self.offset();
            to.iter_mut().enumerate().for_each(|(i, to)| *to = self.0.storage.load(first + i));
        } else {
            to.iter_mut().zip(self.iter()).for_each(|(to, v)| *to = v);
        }
        Ok(())
    }
}

impl<T: Number> SharedTensor<T> {
    /// Adds to the `i`-th element in row-major order, atomically; the value before.
    ///
    /// # Panics
    /// If there is no such element, as indexing a slice.
    pub fn fetch_add(&self, i: usize, value: T) -> T {
        self.0.storage.update(self.nth(i), |v: T| v.plus(value))
    }

    /// Adds to the `i`-th element by a load and a store. Another process's addition in between is lost, which Hogwild
    /// training tolerates; it costs a fifth of [`fetch_add`](Self::fetch_add).
    ///
    /// # Panics
    /// If there is no such element, as indexing a slice.
    #[inline]
    pub fn add_lossy(&self, i: usize, value: T) {
        let at = self.nth(i);
        let now: T = self.0.storage.load(at);
        self.0.storage.store(at, now.plus(value));
    }
}

impl<T: Element> Serialize for SharedTensor<T> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        scope::outgoing("a SharedTensor", |out| self.0.attach(out, Access::Shared))
            .map_err(S::Error::custom)?
            .serialize(s)
    }
}

impl<'de, T: Element> Deserialize<'de> for SharedTensor<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let handle = Handle::deserialize(d)?;
        scope::incoming("a SharedTensor", |inc| Raw::receive(inc, &handle, Access::Shared))
            .map(Self)
            .map_err(D::Error::custom)
    }
}
