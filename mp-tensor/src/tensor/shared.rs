//! Tensors that all processes read and write.

use crate::element::{Element, Integer, Number};
use crate::storage::{self, Atomic};
use crate::tensor::Tensor;
use crate::tensor::mode::{Readable, Shared};
use mp_core::{Error, Result};

impl<T: Element> Tensor<T, Shared> {
    #[inline]
    fn nth(&self, i: usize) -> &Atomic<T> {
        let at = self.raw.view.straight(i).unwrap_or_else(|| self.nth_apart(i));
        storage::atomic(self.storage(), at)
    }

    /// Returns the position of an element in a non-contiguous view, or panics. Not inlined, to keep loads
    /// short.
    #[cold]
    #[inline(never)]
    fn nth_apart(&self, i: usize) -> usize {
        let len = self.len();
        assert!(i < len, "element {i} of {len}");
        self.raw.view.nth(i)
    }

    fn position(&self, index: &[usize]) -> Result<usize> {
        self.raw.here()?;
        self.raw.view.position(index)
    }

    /// Returns the elements in row-major order as a slice of atomics. Loops over many elements are faster
    /// with the slice, since bounds and layout are checked only once.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let (weights, gradient) = (Tensor::<f32>::zeros(&[2, 3])?.share(), [1.0_f32; 6]);
    /// for (w, g) in weights.as_atomics()?.iter().zip(gradient) {
    ///     w.store(w.load() - 0.5 * g);
    /// }
    /// let row = weights.select(0, 1)?; // a row of a matrix is contiguous, a column is not
    /// assert_eq!(row.as_atomics()?[2].load(), -0.5);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if the tensor is not contiguous (such as a column of a matrix), [`Error::Forked`] in
    /// a forked copy.
    #[inline]
    pub fn as_atomics(&self) -> Result<&[Atomic<T>]> {
        self.raw.contiguous()?;
        Ok(storage::atomics(self.storage(), self.offset(), self.len()))
    }

    /// Reads the `i`-th element in row-major order.
    ///
    /// # Panics
    /// If `i` is out of bounds.
    #[inline]
    pub fn load(&self, i: usize) -> T {
        self.nth(i).load()
    }

    /// Writes the `i`-th element in row-major order.
    ///
    /// # Panics
    /// If `i` is out of bounds.
    #[inline]
    pub fn store(&self, i: usize, value: T) {
        self.nth(i).store(value);
    }

    /// Returns the element at `index`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the element does not exist, [`Error::Forked`] in a forked copy.
    pub fn get(&self, index: &[usize]) -> Result<T> {
        Ok(storage::load(self.storage(), self.position(index)?))
    }

    /// Writes the element at `index`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the element does not exist, [`Error::Forked`] in a forked copy.
    pub fn set(&self, index: &[usize], value: T) -> Result<()> {
        storage::store(self.storage(), self.position(index)?, value);
        Ok(())
    }

    /// Iterates over the elements in row-major order. An element is read when the iterator reaches it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.loads()
    }

    /// Copies the elements into private memory. Elements are read one by one, not all at one moment.
    #[doc(alias = "tolist")]
    pub fn to_vec(&self) -> Vec<T> {
        let mut all = vec![T::zeroed(); self.len()];
        self.read_unchecked(&mut all);
        all
    }

    /// Copies the elements into `to`, at the speed of `memcpy` if the tensor is contiguous. Each element is
    /// read separately, not all at one moment.
    ///
    /// # Errors
    /// [`Error::Shape`] if `to` has another length, [`Error::Forked`] in a forked copy.
    #[doc(alias = "read_to")]
    pub fn read_into(&self, to: &mut [T]) -> Result<()> {
        if to.len() != self.len() {
            return Err(Error::Shape(format!("{} elements into a slice of {}", self.len(), to.len())));
        }
        self.raw.here()?;
        self.read_unchecked(to);
        Ok(())
    }

    /// Reads into a slice of the tensor's length.
    fn read_unchecked(&self, to: &mut [T]) {
        if self.is_contiguous() {
            storage::load_all(self.storage(), self.offset(), to);
        } else {
            let mut to = to.iter_mut();
            self.iter().for_each(|v| _ = to.next().map(|to| *to = v));
        }
    }

    /// Writes `from` into the elements, in row-major order, at the speed of `memcpy` if the tensor is
    /// contiguous.
    ///
    /// # Errors
    /// [`Error::Shape`] if `from` has another length, [`Error::Forked`] in a forked copy.
    pub fn write_from(&self, from: &[T]) -> Result<()> {
        if from.len() != self.len() {
            return Err(Error::Shape(format!("a slice of {} into {} elements", from.len(), self.len())));
        }
        self.raw.here()?;
        if self.is_contiguous() {
            storage::store_all(self.storage(), self.offset(), from);
        } else {
            let storage = self.storage();
            let mut from = from.iter();
            self.raw.view.positions().for_each(|p| _ = from.next().map(|v| storage::store(storage, p, *v)));
        }
        Ok(())
    }

    /// Writes one value into all elements.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    #[doc(alias = "fill_")]
    pub fn fill(&self, value: T) -> Result<()> {
        self.raw.here()?;
        let storage = self.storage();
        if self.is_contiguous() {
            storage::atomics(storage, self.offset(), self.len()).iter().for_each(|at| at.store(value));
        } else {
            self.raw.view.positions().for_each(|p| storage::store(storage, p, value));
        }
        Ok(())
    }

    /// Copies all elements from a tensor of the same shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes differ, [`Error::Forked`] in a forked copy.
    #[doc(alias = "copy_")]
    pub fn copy_from<N: Readable>(&self, from: &Tensor<T, N>) -> Result<()> {
        if self.shape() != from.shape() {
            return Err(Error::Shape(format!("shape {:?} copied to shape {:?}", from.shape(), self.shape())));
        }
        self.raw.here()?;
        match from.as_slice() {
            Ok(from) => self.write_from(from),
            Err(_apart) => {
                let storage = self.storage();
                self.raw.view.positions().zip(from.iter()).for_each(|(p, v)| storage::store(storage, p, v));
                Ok(())
            }
        }
    }

    /// Copies the elements into a new contiguous tensor, which the caller owns. Each element is read
    /// separately, not all at one moment.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`].
    pub fn contiguous(&self) -> Result<Tensor<T>> {
        let mut copy = Tensor::empty(self.shape())?;
        self.read_into(copy.as_mut_slice()?)?;
        copy.raw.grad = self.raw.grad.derived();
        Ok(copy)
    }

    /// Applies a function to each element. An element is read when the iteration reaches it. Returns a
    /// contiguous tensor that the caller owns, without gradients.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`].
    pub fn map<U: Element>(&self, f: impl FnMut(T) -> U) -> Result<Tensor<U>> {
        self.raw.here()?;
        Tensor::made_of(self.shape(), self.iter().map(f))
    }

    /// Copies the tensor: the same as [`contiguous`](Self::contiguous).
    ///
    /// # Errors
    /// See [`contiguous`](Self::contiguous).
    pub fn try_clone(&self) -> Result<Tensor<T>> {
        self.contiguous()
    }
}

/// Atomic read-modify-write operations on single elements, see [`Atomic`].
///
/// # Panics
/// If `i` is out of bounds.
impl<T: Number> Tensor<T, Shared> {
    /// Adds to the `i`-th element in row-major order, atomically. Returns the previous value. Integers wrap.
    /// Floats use a compare-and-swap loop.
    #[inline]
    pub fn fetch_add(&self, i: usize, value: T) -> T {
        self.nth(i).fetch_add(value)
    }

    /// Subtracts from the `i`-th element in row-major order, atomically. Returns the previous value.
    #[inline]
    pub fn fetch_sub(&self, i: usize, value: T) -> T {
        self.nth(i).fetch_sub(value)
    }

    /// Adds to the `i`-th element by a load and a store. A concurrent addition can be lost, which Hogwild
    /// training tolerates. The cost is a fifth of [`fetch_add`](Self::fetch_add).
    #[inline]
    pub fn add_lossy(&self, i: usize, value: T) {
        self.nth(i).add_lossy(value);
    }
}

/// Atomic read-modify-write operations on single integers, see [`Atomic`].
///
/// # Panics
/// If `i` is out of bounds.
impl<T: Integer> Tensor<T, Shared> {
    /// Stores the maximum of the `i`-th element and `value`, atomically. Returns the previous value.
    pub fn fetch_max(&self, i: usize, value: T) -> T {
        self.nth(i).fetch_max(value)
    }

    /// Stores the minimum of the `i`-th element and `value`, atomically. Returns the previous value.
    pub fn fetch_min(&self, i: usize, value: T) -> T {
        self.nth(i).fetch_min(value)
    }

    /// Computes the bitwise AND of the `i`-th element and `value`, atomically. Returns the previous value.
    pub fn fetch_and(&self, i: usize, value: T) -> T {
        self.nth(i).fetch_and(value)
    }

    /// Computes the bitwise OR of the `i`-th element and `value`, atomically. Returns the previous value.
    pub fn fetch_or(&self, i: usize, value: T) -> T {
        self.nth(i).fetch_or(value)
    }

    /// Computes the bitwise XOR of the `i`-th element and `value`, atomically. Returns the previous value.
    pub fn fetch_xor(&self, i: usize, value: T) -> T {
        self.nth(i).fetch_xor(value)
    }

    /// Writes `new` if the `i`-th element equals `old`, atomically.
    ///
    /// # Errors
    /// Returns the current value if it differs from `old`. The element is unchanged then.
    pub fn compare_exchange(&self, i: usize, old: T, new: T) -> std::result::Result<T, T> {
        self.nth(i).compare_exchange(old, new)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use crate::storage::Atomic;
    use crate::{Bool, Complex, Element, Integer, Number, ShareMemory, SharedTensor, Tensor, bf16, f16};
    use mp_core::Error;

    /// Eight threads change two elements of type `T` concurrently: no change is lost, and no neighbour is
    /// changed.
    fn added<T: Number>(one: T, many: T, zero: T) {
        let t = Tensor::<T>::zeros([4]).unwrap().share();
        let start = Barrier::new(8);
        let each = |n: usize, f: &(dyn Fn() + Sync)| {
            let worker = || {
                start.wait();
                (0..n).for_each(|_| f());
            };
            std::thread::scope(|s| (0..8).for_each(|_| _ = s.spawn(worker)));
        };
        each(16, &|| _ = (t.fetch_add(1, one), t.fetch_add(2, one)));
        assert_eq!(t.to_vec(), [zero, many, many, zero]);
        each(16, &|| _ = t.fetch_sub(1, one));
        // Long enough for threads to interleave, and too few for a small float to round.
        each(if cfg!(miri) { 20 } else { 100_000 }, &|| _ = (t.fetch_add(1, one), t.fetch_sub(1, one)));
        assert_eq!(t.to_vec(), [zero, zero, many, zero]);
    }

    #[test]
    fn concurrent_additions_to_a_shared_tensor_all_count() {
        added::<u8>(1, 128, 0);
        added::<i8>(-1, -128, 0);
        added::<u16>(500, 64000, 0);
        added::<i16>(-256, i16::MIN, 0);
        added::<u32>(1 << 20, 1 << 27, 0);
        added::<i32>(-1, -128, 0);
        added::<u64>(1 << 40, 1 << 47, 0);
        added::<i64>(-1, -128, 0);
        added::<f32>(0.5, 64.0, 0.0);
        added::<f64>(0.25, 32.0, 0.0);
        added(f16::from_f32(0.5), f16::from_f32(64.0), f16::ZERO);
        added(bf16::from_f32(0.5), bf16::from_f32(64.0), bf16::ZERO);
    }

    fn combined<T: Integer + From<u8>>(low: T) {
        let t = [T::from(12); 6].share_memory().unwrap().share();
        let v = T::from(10);
        assert_eq!(t.fetch_and(0, v), T::from(12));
        assert_eq!(
            [t.fetch_or(1, v), t.fetch_xor(2, v), t.fetch_max(3, v), t.fetch_min(4, v)],
            [T::from(12); 4]
        );
        assert_eq!((t.fetch_min(5, low), t.fetch_max(5, v), t.load(5)), (T::from(12), low, v));
        assert_eq!((t.compare_exchange(5, T::from(1), low), t.load(5)), (Err(v), v));
        assert_eq!((t.compare_exchange(5, v, low), t.load(5)), (Ok(v), low));
        assert_eq!(t.to_vec()[..5], [8, 14, 6, 12, 10].map(T::from));
    }

    #[test]
    fn shared_tensor_integer_atomics_return_old_values() {
        combined::<u8>(0);
        combined::<u16>(0);
        combined::<i16>(-1);
        combined::<i32>(-7);
        combined::<u32>(0);
        combined::<i64>(i64::MIN);
        combined::<u64>(0);
        let t = [3_i8].share_memory().unwrap().share();
        assert_eq!((t.fetch_min(0, -100), t.fetch_max(0, -3), t.load(0)), (3, -100, -3));
    }

    /// Checks bulk access to parts of several lengths and alignments: elements are read as written, and
    /// neighbours stay unchanged.
    fn in_bulk<T: Element>(value: impl Fn(usize) -> T, other: T) {
        // Miri takes a second for a microsecond of native execution.
        let lengths: &[usize] = if cfg!(miri) {
            &[0, 1, 33]
        } else {
            &[0, 1, 3, 15, 31, 32, 33, 63, 64, 127, 255, 256, 257, 1000]
        };
        for &n in lengths {
            for offset in [0, 1, 5] {
                let all = Tensor::full([n + 10], other).unwrap().share();
                let part = all.narrow(0, offset, n).unwrap();
                let values: Vec<T> = (0..n).map(&value).collect();
                part.write_from(&values).unwrap();
                let mut back = vec![other; n];
                part.read_into(&mut back).unwrap();
                assert_eq!((&back, &part.to_vec()), (&values, &values), "{n} from {offset}");
                assert_eq!(part.iter().collect::<Vec<_>>(), values);
                let atomics = part.as_atomics().unwrap();
                assert!(atomics.iter().map(Atomic::load).eq(values.iter().copied()) && atomics.len() == n);
                atomics.iter().zip(values.iter().rev()).for_each(|(at, v)| at.store(*v));
                assert!(part.to_vec().iter().eq(values.iter().rev()));
                assert!(all.iter().take(offset).chain(all.iter().skip(offset + n)).all(|v| v == other));
                assert!(
                    part.write_from(&vec![other; n + 1]).is_err()
                        && part.read_into(&mut vec![other; n + 1]).is_err()
                );
            }
        }
        let matrix = Tensor::from_fn(&[3, 40], &value).unwrap().share();
        let column: SharedTensor<T> = matrix.select(1, 7).unwrap();
        assert_eq!(column.to_vec(), [7, 47, 87].map(&value));
        assert!(matches!(column.as_atomics(), Err(Error::Shape(_))));
        assert_eq!([0, 1, 2].map(|i| column.load(i)), [7, 47, 87].map(&value));
        column.write_from(&[other; 3]).unwrap();
        assert_eq!(matrix.to_vec().iter().filter(|v| **v == other).count(), 3);
        matrix.t().unwrap().copy_from(&Tensor::from_fn(&[40, 3], &value).unwrap()).unwrap();
        assert_eq!(matrix.load(1), value(3));
        matrix.fill(other).unwrap();
        assert!(matrix.contiguous().unwrap().iter().all(|v| v == other));
        assert!(matrix.copy_from(&Tensor::zeros([40, 3]).unwrap()).is_err());
    }

    #[test]
    fn shared_tensor_bulk_operations_store_each_element() {
        in_bulk(|i| (i % 251) as u8, 255);
        in_bulk(|i| i as u16, u16::MAX);
        in_bulk(|i| i as f32, -1.0);
        in_bulk(|i| i as i64, -1);
        in_bulk(|i| Complex::new(i as f32, 0.5), Complex::new(-1.0, -1.0));
        in_bulk(|i| Complex::new(i as f64, 0.5), Complex::new(-1.0, -1.0));
        let bools = [true; 300].share_memory().unwrap().share();
        bools.fill(Bool::FALSE).unwrap();
        assert!(bools.to_vec().iter().all(|b| *b == false));
    }

    #[test]
    #[should_panic(expected = "element 3 of 3")]
    fn load_beyond_a_shared_tensors_view_panics() {
        // The element after the last one exists in the storage.
        Tensor::<u8>::zeros([9]).unwrap().share().narrow(0, 0, 3).unwrap().load(3);
    }
}
