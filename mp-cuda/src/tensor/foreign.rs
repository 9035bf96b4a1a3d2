//! Memory of other libraries as tensors.
//!
//! # Safety
//! Unsafe, because the user passes the address of a tensor. Sound, because the user guarantees that the
//! address is valid. In addition, the driver is queried: an unknown address, or memory that is shorter than
//! the tensor, is an error.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use mp_core::{DType, Error as CoreError};
use mp_tensor::parts::{Grad, View};
use mp_tensor::{Element, Exclusive};

use super::raw::RawCudaTensor;
use super::{AnyCudaTensor, CudaTensor};
use crate::error::{Error, Result};
use crate::memory::Piece;
use crate::memory::foreign::{self, SharePlan};
use crate::memory::stream_uses::UseAccess;
use crate::stream::CudaStream;

/// Method by which [memory of another library](ForeignMemory) was made available to other processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ShareMethod {
    /// The tensor is the memory itself, which other processes open by a descriptor. The memory lives as long
    /// as any process has it.
    Exported,
    /// The tensor is the memory itself, which other processes open by a legacy handle (`cuIpcGetMemHandle`).
    /// The memory is lost when this process ends.
    LegacyIpc,
    /// The tensor is a copy, in memory of this library.
    Copied {
        /// Reason why other processes can't open the memory itself.
        why: &'static str,
    },
}

/// Description of device memory that another library has allocated. [`share`](Self::share) makes a tensor of
/// the memory, which can be sent to other processes.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, ForeignMemory, ShareMethod, CudaStream};
/// # fn allocate() -> (u64, Vec<u8>) { (0, Vec::new()) }
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// let (address, owner) = allocate(); // for example of `cuMemAlloc`; dropping `owner` frees it
/// // SAFETY: six floats are there until `owner` is dropped, and nothing else uses them any more.
/// let shared = unsafe { ForeignMemory::new(address, [2, 3]).share::<f32, _>(owner, &stream) };
/// let (tensor, how) = shared?;
/// if let ShareMethod::Copied { why } = how {
///     println!("copied: {why}");
/// }
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// | memory | result | lifetime |
/// |---|---|---|
/// | of `cuMemAlloc`, `cudaMalloc` | the memory itself: [`LegacyIpc`](ShareMethod::LegacyIpc) | as long as this process |
/// | mapped by `cuMemMap`, created for descriptors | the memory itself: [`Exported`](ShareMethod::Exported) | as long as any process has the memory |
/// | of a pool (cudarc, candle), managed, of the host, or of another kind | a copy, or [`NotShareable`](Error::NotShareable) with [`never_copied`](Self::never_copied) | like memory that this library allocated |
///
/// # When is the owner dropped?
/// The *owner* is a value whose drop frees the memory. The owner is retained until no process and no message
/// has the tensor, and streams have run their work with it. After that, the next thread of this process that
/// drops a tensor of another library's memory, or shares one, drops the owner. So does a call of
/// [`ipc_collect`](crate::ipc_collect), [`empty_cache`](crate::empty_cache) or
/// [`memory_stats`](crate::memory_stats), which returns the number of retained owners. The thread holds no
/// lock, and catches a panic of the drop. If the memory was copied, the owner is dropped after the copy.
/// Owners that are still retained when the process ends are not dropped.
///
/// # When does a receiver close the memory?
/// Memory that was opened by a legacy handle stays open until the receiver's streams are idle, as far as this
/// library can see. If they are not idle within a second, the memory is closed during short work. A call of
/// [`ipc_collect`](crate::ipc_collect) in the receiver waits for the work of the receiver's streams, and
/// closes the memory. The owner is retained until the memory is closed. While the memory is being closed,
/// threads of the receiver that launch kernels wait, as during each `cuMemFree`. So a receiver with a kernel
/// that never ends should [record an event](crate::CudaEvent::record) after the kernel, or the sender should
/// share memory by a descriptor.
///
/// # When a process dies
/// If a process that could write to the tensor, or had pending work with it, is killed, the device may still
/// execute that work. So the owner is retained until this process ends (`foreign_retired` of the statistics).
/// If this process dies, memory that other processes have opened by a legacy handle is lost, and each use of
/// the memory returns [`ProducerDied`](Error::ProducerDied). Copy data that has to outlive its maker.
#[doc(alias("share_foreign", "cuIpcGetMemHandle", "torch.cuda.caching_allocator_alloc"))]
#[derive(Clone, Debug)]
pub struct ForeignMemory {
    address: u64,
    shape: Vec<usize>,
    strides: Option<Vec<isize>>,
    never_copied: bool,
    /// `true` if sharing must copy the memory, because the tensor may be written and the memory may not.
    always_copied: bool,
}

/// Error of a conversion, with the value that could not be converted.
pub struct ConversionError<V> {
    /// Value that was passed to the conversion.
    pub value: V,
    /// Reason why the conversion failed.
    pub error: Error,
}

impl<V> ConversionError<V> {
    /// Converts the value.
    #[cfg(feature = "dlpack")]
    pub(super) fn map<W>(self, f: impl FnOnce(V) -> W) -> ConversionError<W> {
        ConversionError { value: f(self.value), error: self.error }
    }
}

impl<V> fmt::Debug for ConversionError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConversionError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<V> fmt::Display for ConversionError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<V> std::error::Error for ConversionError<V> {}

impl<V> From<ConversionError<V>> for Error {
    fn from(refused: ConversionError<V>) -> Self {
        refused.error
    }
}

impl ForeignMemory {
    /// Describes memory with elements in row-major order, beginning at this address.
    #[must_use]
    pub fn new(address: u64, shape: impl AsRef<[usize]>) -> Self {
        Self {
            address,
            shape: shape.as_ref().to_vec(),
            strides: None,
            never_copied: false,
            always_copied: false,
        }
    }

    /// Sets the strides of the dimensions, in elements. Negative strides are not supported.
    #[must_use]
    pub fn strides(mut self, strides: impl AsRef<[isize]>) -> Self {
        self.strides = Some(strides.as_ref().to_vec());
        self
    }

    /// Makes [`share`](Self::share) return an error instead of copying the memory.
    #[must_use]
    pub fn never_copied(mut self) -> Self {
        self.never_copied = true;
        self
    }

    /// Makes [`share`](Self::share) copy the memory, even if other processes could open it.
    #[cfg(feature = "dlpack")]
    pub(super) fn always_copied(mut self) -> Self {
        self.always_copied = true;
        self
    }

    /// Makes a tensor of the memory. The contents are valid when the stream has run its earlier work. The
    /// driver reports how the memory can be shared. Does not wait for the stream unless the memory is copied.
    ///
    /// # Errors
    /// [`NotShareable`](Error::NotShareable) if the address is unknown to the driver, or if a copy is needed
    /// but not allowed; [`mp_core::Error::InvalidArgument`] if the address is not aligned, belongs to another
    /// device than the stream, or has fewer elements than the tensor, or if elements overlap;
    /// [`mp_core::Error::Unsupported`] for negative strides; errors of [`CudaTensor::empty`] for a copy;
    /// errors of the driver. The error contains the owner.
    ///
    /// # Safety
    /// Until the owner is dropped, the elements are allocated memory that the stream's device can access, and
    /// all work of any stream, process or host accesses them only through the returned tensor. The caller has
    /// made `stream` wait for earlier work of other streams.
    pub unsafe fn share<T: Element, O: Any + Send>(
        self,
        owner: O,
        stream: &CudaStream,
    ) -> Result<(CudaTensor<T>, ShareMethod), ConversionError<O>> {
        let (raw, how) = self.shared(T::DTYPE, owner, stream, true)?;
        Ok((CudaTensor::of(raw), how))
    }

    /// Makes a tensor whose element type is known at run time, like [`share`](Self::share).
    ///
    /// # Errors
    /// Errors of [`share`](Self::share).
    ///
    /// # Safety
    /// See [`share`](Self::share).
    pub unsafe fn share_any<O: Any + Send>(
        self,
        dtype: DType,
        owner: O,
        stream: &CudaStream,
    ) -> Result<(AnyCudaTensor, ShareMethod), ConversionError<O>> {
        let (raw, how) = self.shared(dtype, owner, stream, true)?;
        Ok((AnyCudaTensor { raw, dtype }, how))
    }

    /// Implements [`share`](Self::share). `writes` is `true` if the owner of the tensor may write to the
    /// elements, which must then not overlap.
    pub(super) fn shared<O: Any + Send>(
        self,
        dtype: DType,
        owner: O,
        stream: &CudaStream,
        writes: bool,
    ) -> Result<(RawCudaTensor<Exclusive>, ShareMethod), ConversionError<O>> {
        match self.made(dtype, stream, writes) {
            Ok((raw, how)) => {
                // The owner of a copy, or of no elements, is dropped.
                if let (Some(piece), false) = (&raw.piece, matches!(how, ShareMethod::Copied { .. })) {
                    piece.set_owner(owner);
                }
                Ok((raw, how))
            }
            Err(error) => Err(ConversionError { value: owner, error }),
        }
    }

    fn made(
        &self,
        dtype: DType,
        stream: &CudaStream,
        writes: bool,
    ) -> Result<(RawCudaTensor<Exclusive>, ShareMethod)> {
        let view = self.view(dtype, writes)?;
        let elements = view.end().filter(|_| !view.is_empty()).unwrap_or(0);
        if elements == 0 {
            let raw = RawCudaTensor::of(None, Arc::new(view), Grad::default());
            return Ok((raw, ShareMethod::Copied { why: "there are no elements" }));
        }
        let bytes =
            elements.checked_mul(dtype.size()).ok_or_else(|| view.beyond(usize::MAX / dtype.size()))?;
        let plan = match foreign::plan(stream.device(), self.address, bytes as u64)? {
            SharePlan::Open { .. } if self.always_copied => {
                SharePlan::Copy { from: self.address, why: "it is not to be written" }
            }
            plan => plan,
        };
        let how = if plan.is_legacy() { ShareMethod::LegacyIpc } else { ShareMethod::Exported };
        match plan {
            SharePlan::Copy { why, .. } if self.never_copied => Err(Error::NotShareable { why }),
            SharePlan::Copy { from, why } => {
                Ok((copied(from, bytes, view, dtype, stream)?, ShareMethod::Copied { why }))
            }
            SharePlan::Open { range, begins } => {
                let piece = Piece::foreign(stream.device(), range, begins, bytes as u64)?;
                // Earlier work of the stream made the contents.
                let access = UseAccess { writes: true, shared: false };
                piece.uses().begin(stream, access, &piece.row())?;
                piece.uses().end(stream, access, None);
                Ok((RawCudaTensor::of(Some(piece), Arc::new(view), Grad::default()), how))
            }
        }
    }

    /// Returns the view of the elements, relative to the address. If `writes` is set, returns an error if
    /// elements overlap.
    fn view(&self, dtype: DType, writes: bool) -> Result<View> {
        let view = match &self.strides {
            Some(strides) => View::from_parts(0, &self.shape, strides, usize::MAX)?,
            None => View::contiguous(&self.shape)?,
        };
        if writes && !view.is_injective() {
            let (shape, strides) = (view.shape(), view.strides());
            let why =
                format!("elements overlap that one owner is to write: shape {shape:?}, strides {strides:?}");
            return Err(CoreError::InvalidArgument(why).into());
        }
        // Complex numbers are aligned as their parts.
        let alignment = dtype.size().min(8) as u64;
        if !view.is_empty() && !self.address.is_multiple_of(alignment) {
            let why = format!(
                "the address {:#x} is not a multiple of {alignment}, the alignment of {dtype}",
                self.address
            );
            return Err(CoreError::InvalidArgument(why).into());
        }
        Ok(view)
    }
}

/// Copies the memory to a new tensor, and waits until the stream has made the copy.
fn copied(
    from: u64,
    bytes: usize,
    view: View,
    dtype: DType,
    stream: &CudaStream,
) -> Result<RawCudaTensor<Exclusive>> {
    let piece = Piece::allocate(stream.device(), bytes as u64, stream)?;
    let raw = RawCudaTensor::of(Some(piece), Arc::new(view), Grad::default());
    let used = raw.lend(dtype.size(), stream, true)?;
    // SAFETY: the piece has as many bytes, which this use may write; the user vouches for the bytes at
    // `from`; both do not overlap.
    unsafe { stream.device().bind()?.copy_on_device(used.address, from, bytes, stream.handle()) }?;
    used.synchronize()?;
    Ok(raw)
}
