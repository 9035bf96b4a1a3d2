//! Arrays in messages: location of their elements, and copies into shared memory.
//!
//! An array that is in shared memory already is sent as a view of it. Any other array is copied after the
//! whole object has been pickled. Arrays that overlap are copied together, so that they overlap at the
//! receiver, too.
//!
//! # Safety
//! The module `copy` copies between addresses. The addresses come from [`Source`]s, whose owners keep the
//! memory alive, and from [`Memory`] that was just allocated for the copies.

use std::sync::Arc;

use mp_tensor::AnyTensor;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

use crate::memory::Memory;

/// Alignment in bytes of each array in a block that several arrays share.
const ALIGN: usize = 64;
/// Maximum number of bytes of an array whose copy shares a block with copies of other arrays of its message.
pub const SMALL: usize = 4096;
/// Number of bytes from which a copy releases the interpreter, so that its other threads run.
const LONG_COPY: usize = 1 << 20;

/// Kind of a Python object that is an array.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `torch.Tensor`.
    Torch,
    /// `torch.Tensor` that requires gradients.
    TorchGrad,
    /// `numpy.ndarray`.
    Numpy,
    /// `numpy.ndarray` that is read-only.
    ReadOnlyNumpy,
    /// `memoryview` of bytes, or a buffer of another object.
    Buffer,
    /// `memoryview` of bytes, or buffer of another object, that is read-only.
    ReadOnlyBuffer,
}

/// Element type, as DLPack names it: code of the kind, and size in bits.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ElementType(pub u8, pub u8);

impl ElementType {
    /// Element type of bytes, `uint8`.
    pub const U8: Self = Self(1, 8);

    /// Returns the size in bytes.
    pub fn size(self) -> usize {
        usize::from(self.1).div_ceil(8)
    }
}

/// An array in the memory of a message.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct View {
    /// Kind of the Python object.
    pub kind: Kind,
    /// Element type.
    pub element: ElementType,
    /// Index of the memory in the message.
    pub memory: u32,
    /// Offset of the first element in bytes.
    pub offset: u64,
    /// Shape.
    pub shape: Vec<i64>,
    /// Strides in bytes. Empty for elements in row-major order.
    pub strides: Vec<i64>,
}

impl View {
    /// Returns a view of all bytes of a memory. `memory` is its index in the message.
    pub(super) fn of_bytes(kind: Kind, memory: usize, len: usize) -> Self {
        let (element, memory, shape) = (ElementType::U8, memory as u32, vec![len as i64]);
        Self { kind, element, memory, offset: 0, shape, strides: Vec::new() }
    }
}

/// An array that is part of an object being pickled.
#[derive(Debug)]
pub struct Source {
    /// Kind of the Python object.
    pub kind: Kind,
    /// Element type.
    pub element: ElementType,
    /// Address of the first element.
    pub address: usize,
    /// Shape.
    pub shape: Vec<i64>,
    /// Strides in bytes.
    pub strides: Vec<i64>,
    /// Object that keeps the memory alive. For a buffer, a memory view, which prevents a resize of the
    /// buffer.
    pub owner: Py<PyAny>,
}

impl Source {
    /// Returns the addresses of the first byte of the array, and of the byte after its last byte.
    pub(super) fn range(&self) -> (usize, usize) {
        if self.shape.contains(&0) {
            return (self.address, self.address);
        }
        let (mut low, mut high) = (0_i64, 0_i64);
        for (&n, &stride) in self.shape.iter().zip(&self.strides) {
            let span = (n - 1).saturating_mul(stride);
            let end = if span < 0 { &mut low } else { &mut high };
            *end = end.saturating_add(span);
        }
        (
            self.address.wrapping_add_signed(low as isize),
            self.address.wrapping_add_signed(high as isize).saturating_add(self.element.size()),
        )
    }

    /// Returns `true` if the elements are in shared memory.
    pub fn is_shared(&self) -> bool {
        self.memory().is_some()
    }

    /// Returns the region of shared memory that contains the elements, if any.
    pub(crate) fn memory(&self) -> Option<Arc<Memory>> {
        let (low, high) = self.range();
        Memory::containing(low, high - low)
    }

    /// Copies the elements, in row-major order, to a newly allocated tensor of the same shape and type.
    pub(crate) fn copy_to(&self, py: Python<'_>, tensor: &AnyTensor) {
        let len = self.len();
        assert!(tensor.nbytes() == len && tensor.is_contiguous() && tensor.offset() == 0, "another shape");
        let to = tensor.storage().as_ptr() as usize;
        if self.is_row_major() {
            copy::bytes(py, self.address, to, len);
        } else {
            copy::strided(py, self, &self.row_major_strides(), to);
        }
    }

    /// Returns the number of bytes of the elements in row-major order. Returns `usize::MAX` on overflow,
    /// which is possible if elements overlap.
    fn len(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        self.shape.iter().fold(self.element.size(), |len, &n| len.saturating_mul(n as usize))
    }

    /// Sets the strides of an array that was described without them.
    pub fn fill_strides(&mut self) {
        if self.strides.len() != self.shape.len() {
            self.strides = self.row_major_strides();
        }
    }

    fn row_major_strides(&self) -> Vec<i64> {
        let mut strides = vec![0; self.shape.len()];
        let mut step = self.element.size() as i64;
        for (stride, &n) in strides.iter_mut().zip(&self.shape).rev() {
            *stride = step;
            step = step.saturating_mul(n.max(1));
        }
        strides
    }

    /// Returns `true` if the elements fill a contiguous range of addresses that begins at the first element,
    /// in any order of the dimensions. Transposed and channels-last arrays are examples.
    fn is_dense(&self) -> bool {
        let mut dims: Vec<(i64, i64)> =
            self.strides.iter().copied().zip(self.shape.iter().copied()).collect();
        dims.retain(|&(_, n)| n != 1);
        dims.sort_unstable();
        let mut step = self.element.size() as i64;
        dims.iter().all(|&(stride, n)| {
            let fits = stride == step;
            step *= n.max(1);
            fits
        })
    }

    /// Returns `true` if the elements are in row-major order without gaps.
    pub fn is_row_major(&self) -> bool {
        let mut step = self.element.size() as i64;
        self.shape.iter().zip(&self.strides).rev().all(|(&n, &stride)| {
            let fits = n <= 1 || stride == step;
            step = step.saturating_mul(n.max(1));
            fits
        })
    }

    fn view(&self, memory: u32, offset: usize, row_major: bool) -> View {
        let strides = if row_major { Vec::new() } else { self.strides.clone() };
        View {
            kind: self.kind,
            element: self.element,
            memory,
            offset: offset as u64,
            shape: self.shape.clone(),
            strides,
        }
    }
}

/// Range of addresses to copy. It covers one array, or several arrays that overlap, whose indices are
/// `members`.
struct Range {
    low: usize,
    high: usize,
    members: Vec<usize>,
    /// Index of the memory that receives the copy, and offset in it.
    place: (u32, usize),
}

impl Range {
    /// Returns the index of the range's array if the range has only one and the copy is in row-major order
    /// without gaps. Returns `None` if the copy keeps the relative addresses instead: for several arrays, and
    /// for an array whose elements overlap or are dense in another order.
    fn single(&self, sources: &[Source]) -> Option<usize> {
        match self.members[..] {
            [one] if sources[one].is_row_major() => Some(one),
            [one] if sources[one].len() <= self.high - self.low && !sources[one].is_dense() => Some(one),
            _ => None,
        }
    }

    fn len(&self, sources: &[Source]) -> usize {
        self.single(sources).map_or(self.high - self.low, |one| sources[one].len())
    }
}

/// Result of [`share`]: arrays of a message in shared memory.
pub struct SharedArrays {
    /// Views of the arrays, in the order of the sources.
    pub views: Vec<View>,
    /// Memory of the arrays.
    pub memory: Vec<Arc<Memory>>,
    /// Index of the memory with the copies of several arrays, if there is one.
    pub block: Option<u32>,
}

/// Returns views of all arrays in shared memory. Arrays that are in shared memory already are not copied.
/// Copies of up to `together` bytes share one block, and each larger copy has a separate block.
///
/// # Errors
/// `MemoryError` if there is not enough shared memory.
pub fn share(py: Python<'_>, sources: &[Source], together: usize) -> PyResult<SharedArrays> {
    let mut views: Vec<Option<View>> = vec![None; sources.len()];
    let mut memory: Vec<Arc<Memory>> = Vec::new();
    let mut ranges: Vec<Range> = Vec::with_capacity(sources.len());
    for (i, source) in sources.iter().enumerate() {
        let (low, high) = source.range();
        if high > low
            && let Some(found) = Memory::containing(low, high - low)
        {
            let offset = source.address - found.address();
            let number = memory.iter().position(|known| Arc::ptr_eq(known, &found)).unwrap_or_else(|| {
                memory.push(found);
                memory.len() - 1
            });
            views[i] = Some(source.view(number as u32, offset, source.is_row_major()));
        } else {
            ranges.push(Range { low, high, members: vec![i], place: (0, 0) });
        }
    }
    if ranges.len() > 1 {
        ranges.sort_by_key(|range| (range.low, std::cmp::Reverse(range.high)));
        let mut merged: Vec<Range> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut().filter(|last| range.low < last.high && range.high > range.low) {
                Some(last) => {
                    last.high = last.high.max(range.high);
                    last.members.extend(range.members);
                }
                None => merged.push(range),
            }
        }
        ranges = merged;
    }
    let mut small = 0;
    for range in &mut ranges {
        let len = range.len(sources);
        if len <= together {
            range.place.1 = small;
            small += len.next_multiple_of(ALIGN);
        }
    }
    let alloc = |len: usize, memory: &mut Vec<Arc<Memory>>| {
        memory.push(Memory::alloc(len).map_err(crate::error::no_memory)?);
        PyResult::Ok((memory.len() - 1) as u32)
    };
    let block = if small > 0 || ranges.iter().any(|range| range.len(sources) == 0) {
        Some(alloc(small, &mut memory)?)
    } else {
        None
    };
    for range in &mut ranges {
        let len = range.len(sources);
        range.place.0 = match block.filter(|_| len <= together) {
            Some(block) => block,
            None => alloc(len, &mut memory)?,
        };
        let to = memory[range.place.0 as usize].address() + range.place.1;
        match range.single(sources) {
            Some(i) => {
                let source = &sources[i];
                if source.is_row_major() {
                    copy::bytes(py, source.address, to, len);
                } else {
                    copy::strided(py, source, &source.row_major_strides(), to);
                }
                views[i] = Some(source.view(range.place.0, range.place.1, true));
            }
            None => {
                copy::bytes(py, range.low, to, len);
                for &i in &range.members {
                    let offset = range.place.1 + (sources[i].address - range.low);
                    views[i] = Some(sources[i].view(range.place.0, offset, sources[i].is_row_major()));
                }
            }
        }
    }
    Ok(SharedArrays { views: views.into_iter().flatten().collect(), memory, block })
}

/// Copies bytes, given as pairs of an address and a length, into one block of shared memory. The owners of
/// the bytes keep them alive during the call.
///
/// # Errors
/// `MemoryError` if there is not enough shared memory.
pub(super) fn share_bytes(py: Python<'_>, pieces: &[(usize, usize)]) -> PyResult<Arc<Memory>> {
    let memory = Memory::alloc(pieces.iter().map(|(_, len)| len).sum()).map_err(crate::error::no_memory)?;
    let mut to = memory.address();
    for &(from, len) in pieces {
        copy::bytes(py, from, to, len);
        to += len;
    }
    Ok(memory)
}

/// Copies arrays into the rows of a new array in shared memory. Returns a view of the new array, of the given
/// kind, and its memory. Returns `None` if `sources` is empty or has elements of several types.
///
/// # Errors
/// `RuntimeError` for arrays of several shapes, `MemoryError` if there is not enough shared memory.
pub fn stack(py: Python<'_>, sources: &[Source], kind: Kind) -> PyResult<Option<(View, Arc<Memory>)>> {
    let Some(first) = sources.first() else { return Ok(None) };
    for (i, source) in sources.iter().enumerate() {
        if source.element != first.element {
            return Ok(None);
        }
        if source.shape != first.shape {
            let (one, other) = (&first.shape, &source.shape);
            return Err(PyRuntimeError::new_err(format!(
                "stack expects each tensor to be equal size, but got {one:?} at entry 0 and {other:?} at \
                 entry {i}"
            )));
        }
    }
    let len = first.len();
    let memory = Memory::alloc(len * sources.len()).map_err(crate::error::no_memory)?;
    for (i, source) in sources.iter().enumerate() {
        let to = memory.address() + i * len;
        if source.is_row_major() {
            copy::bytes(py, source.address, to, len);
        } else {
            copy::strided(py, source, &source.row_major_strides(), to);
        }
    }
    let mut shape = Vec::with_capacity(first.shape.len() + 1);
    shape.push(sources.len() as i64);
    shape.extend(&first.shape);
    Ok(Some((
        View { kind, element: first.element, memory: 0, offset: 0, shape, strides: Vec::new() },
        memory,
    )))
}

/// Copies from memory of Python objects into shared memory.
mod copy {
    #![allow(unsafe_code)]

    use super::{LONG_COPY, Source};
    use pyo3::Python;

    /// Copies `len` bytes.
    pub(super) fn bytes(py: Python<'_>, from: usize, to: usize, len: usize) {
        // SAFETY: the source's elements are these bytes, and the memory at `to` has as many. They don't
        // overlap: one is not shared, or is other shared memory.
        let copy = || unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
        if len > LONG_COPY { py.detach(copy) } else { copy() }
    }

    /// Copies the elements to `to`, where their strides in bytes are `strides`.
    pub(super) fn strided(py: Python<'_>, source: &Source, strides: &[i64], to: usize) {
        let dims: Vec<(i64, i64, i64)> =
            source.shape.iter().zip(&source.strides).zip(strides).map(|((&n, &a), &b)| (n, a, b)).collect();
        let (size, from) = (source.element.size(), source.address);
        let copy = || dimension(&dims, from, to, size);
        if source.len() > LONG_COPY { py.detach(copy) } else { copy() }
    }

    fn dimension(dims: &[(i64, i64, i64)], from: usize, to: usize, size: usize) {
        let Some((&(n, a, b), rest)) = dims.split_first() else {
            return element(from, to, size);
        };
        if rest.is_empty() && a == size as i64 && b == a {
            return element(from, to, size * n as usize);
        }
        for i in 0..n {
            let (from, to) =
                (from.wrapping_add_signed((i * a) as isize), to.wrapping_add_signed((i * b) as isize));
            dimension(rest, from, to, size);
        }
    }

    fn element(from: usize, to: usize, size: usize) {
        // SAFETY: one element, or one row of them, of the source, and of the memory allocated for it.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, size) }
    }
}
