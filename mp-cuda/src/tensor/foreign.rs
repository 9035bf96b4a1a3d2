//! Memory of other libraries as tensors.
//!
//! # Safety
//! Unsafe, because an address of a user's becomes a tensor; sound, because the user vouches for it, and the driver is asked what is there:
//! what it doesn't know, or what is not as long as the tensor, is an error.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use mp_core::{DType, Error as CoreError, mutant};
use mp_tensor::parts::{Grad, View};
use mp_tensor::{Element, Exclusive};

use super::raw::Raw;
use super::{AnyCudaTensor, CudaTensor};
use crate::error::{Error, Result};
use crate::memory::Piece;
use crate::memory::foreign::{self, Way};
use crate::memory::uses::Access;
use crate::stream::Stream;

/// How [memory of another library](ForeignMemory) has become a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum How {
    /// It is the memory itself, which other processes open by a descriptor. It lives as long as any of them has it.
    Exported,
    /// It is the memory itself, which other processes open by a legacy handle (`cuIpcGetMemHandle`). It is gone with this process.
    LegacyIpc,
    /// It is a copy, in memory of this library.
    Copied {
        /// Why no other process can open the memory itself.
        why: &'static str,
    },
}

/// Memory of a device that another library has allocated, to be a tensor that processes share.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, ForeignMemory, How, Stream};
/// # fn allocate() -> (u64, Vec<u8>) { (0, Vec::new()) }
///
/// let stream = Stream::new(&Device::new(0)?)?;
/// let (address, owner) = allocate(); // of `cuMemAlloc`, say; to drop `owner` frees it
/// // SAFETY: six floats are there until `owner` is dropped, and nothing else uses them any more.
/// let shared = unsafe { ForeignMemory::new(address, [2, 3]).share::<f32, _>(owner, &stream) };
/// let (tensor, how) = shared?;
/// if let How::Copied { why } = how {
///     println!("copied: {why}");
/// }
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// | memory | becomes | lives |
/// |---|---|---|
/// | of `cuMemAlloc`, `cudaMalloc` | itself: [`LegacyIpc`](How::LegacyIpc) | as long as this process |
/// | mapped by `cuMemMap`, made for descriptors | itself: [`Exported`](How::Exported) | as long as any process has it |
/// | of a pool (cudarc, candle), managed, of the host, or otherwise | a copy, or [`NotShareable`](Error::NotShareable) if it is [never copied](Self::never_copied) | as own memory |
///
/// # The owner
/// It is kept until no process and no message has the tensor, and streams have run what they did with it; then it is dropped, by whichever
/// thread of this process looks: one that drops such a tensor, shares another one, or calls [`ipc_collect`](crate::ipc_collect),
/// [`empty_cache`](crate::empty_cache) or [`memory_stats`](crate::memory_stats), which says how many owners are kept. No lock is held then,
/// and a panic in it is caught. The owner of a copy is dropped when the copy is made. Those that are kept when the process ends are not dropped.
///
/// # In the processes that receive it
/// What was opened by a legacy handle stays open, and its owner here, until the receiver's streams are at rest, as far as this library knows their work, or have gone on for a
/// second; or until the receiver calls [`ipc_collect`](crate::ipc_collect). While it is closed, the driver has other threads of the receiver wait that launch kernels, as during each
/// `cuMemFree`. So a receiver with a kernel that never ends should [record an event](crate::Event::record) behind it, or share memory that goes by a descriptor.
///
/// # When a process dies
/// A process that is killed while it could write to the tensor, or with work that had not run, may write late: the owner stays then
/// until this process ends (`foreign_retired` of the statistics). If this process dies, what others have by a legacy handle is gone, and
/// each use of it is [`ProducerDied`](Error::ProducerDied): copy what has to outlive its maker.
#[doc(alias("share_foreign", "cuIpcGetMemHandle", "torch.cuda.caching_allocator_alloc"))]
#[derive(Clone, Debug)]
pub struct ForeignMemory {
    address: u64,
    shape: Vec<usize>,
    strides: Option<Vec<isize>>,
    never_copied: bool,
    /// It may be read, and not written.
    always_copied: bool,
}

/// A value that could not become a tensor, or leave this library as one: it comes back, with the reason.
pub struct Refused<V> {
    /// What was given.
    pub value: V,
    /// Why it was refused.
    pub error: Error,
}

impl<V> fmt::Debug for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<V> fmt::Display for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<V> std::error::Error for Refused<V> {}

impl<V> From<Refused<V>> for Error {
    fn from(refused: Refused<V>) -> Self {
        refused.error
    }
}

impl ForeignMemory {
    /// Elements that lie one after the other in row-major order, from this address on.
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

    /// Elements that lie this number of elements apart, along each dimension. There are no negative strides.
    #[must_use]
    pub fn strides(mut self, strides: impl AsRef<[isize]>) -> Self {
        self.strides = Some(strides.as_ref().to_vec());
        self
    }

    /// The memory itself, or an error.
    #[must_use]
    pub fn never_copied(mut self) -> Self {
        self.never_copied = true;
        self
    }

    /// A copy, also where the memory itself could be opened.
    #[cfg(feature = "dlpack")]
    pub(super) fn always_copied(mut self) -> Self {
        self.always_copied = true;
        self
    }

    /// Makes it a tensor, whose contents are there when the stream has run what it was given. The driver is asked what the address is; a
    /// copy waits for the stream, nothing else does.
    ///
    /// # Errors
    /// [`NotShareable`](Error::NotShareable) if the driver doesn't know the address, or it would have to be copied and may not be;
    /// [`mp_core::Error::InvalidArgument`] if it is not aligned, is of another device than the stream, is shorter than the tensor, or
    /// elements overlap; [`mp_core::Error::Unsupported`] for negative strides; those of [`CudaTensor::empty`] for a copy; what the driver
    /// refuses. The owner comes back.
    ///
    /// # Safety
    /// Until the owner is dropped, the elements are allocated memory, which this device reaches. No work of another stream, process or host
    /// uses them meanwhile, but by the returned tensor; what was given to other streams before, the stream waits for.
    pub unsafe fn share<T: Element, O: Any + Send>(
        self,
        owner: O,
        stream: &Stream,
    ) -> Result<(CudaTensor<T>, How), Refused<O>> {
        let (raw, how) = self.shared(T::DTYPE, owner, stream, true)?;
        Ok((CudaTensor::of(raw), how))
    }

    /// As [`share`](Self::share), of elements whose type is a value.
    ///
    /// # Errors
    /// As [`share`](Self::share).
    ///
    /// # Safety
    /// As [`share`](Self::share).
    pub unsafe fn share_any<O: Any + Send>(
        self,
        dtype: DType,
        owner: O,
        stream: &Stream,
    ) -> Result<(AnyCudaTensor, How), Refused<O>> {
        let (raw, how) = self.shared(dtype, owner, stream, true)?;
        Ok((AnyCudaTensor { raw, dtype }, how))
    }

    /// Of elements that will be written by its owner, or by none.
    pub(super) fn shared<O: Any + Send>(
        self,
        dtype: DType,
        owner: O,
        stream: &Stream,
        writes: bool,
    ) -> Result<(Raw<Exclusive>, How), Refused<O>> {
        match self.made(dtype, stream, writes) {
            Ok((raw, how)) => {
                // The owner of a copy goes, and so does that of no elements.
                if let (Some(piece), false) = (&raw.piece, matches!(how, How::Copied { .. })) {
                    piece.keep(owner);
                }
                Ok((raw, how))
            }
            Err(error) => Err(Refused { value: owner, error }),
        }
    }

    fn made(&self, dtype: DType, stream: &Stream, writes: bool) -> Result<(Raw<Exclusive>, How)> {
        let view = self.view(dtype, writes)?;
        let elements = view.end().filter(|_| !view.is_empty()).unwrap_or(0);
        if elements == 0 {
            let raw = Raw::of(None, Arc::new(view), Grad::default());
            return Ok((raw, How::Copied { why: "there are no elements" }));
        }
        let bytes =
            elements.checked_mul(dtype.size()).ok_or_else(|| view.beyond(usize::MAX / dtype.size()))?;
        let way = match foreign::way(stream.device(), self.address, bytes as u64)? {
            Way::Open { .. } if self.always_copied => {
                Way::Copy { from: self.address, why: "it is not to be written" }
            }
            way => way,
        };
        let how = if way.is_legacy() { How::LegacyIpc } else { How::Exported };
        match way {
            Way::Copy { why, .. } if self.never_copied => Err(Error::NotShareable { why }),
            Way::Copy { from, why } => Ok((copied(from, bytes, view, dtype, stream)?, How::Copied { why })),
            Way::Open { range, begins } => {
                let piece = Piece::foreign(stream.device(), range, begins, bytes as u64)?;
                // What the stream was given before made the contents.
                let access = Access { writes: true, shared: false };
                if !mutant!("cuda.foreign.contents-not-awaited") {
                    piece.uses().begin(stream, access, &piece.row())?;
                    piece.uses().end(stream, access, None);
                }
                Ok((Raw::of(Some(piece), Arc::new(view), Grad::default()), how))
            }
        }
    }

    /// What is asked for, as a view of what begins at the address.
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
            let why =
                format!("the address {:#x} is no multiple of {alignment}, as {dtype} needs it", self.address);
            return Err(CoreError::InvalidArgument(why).into());
        }
        Ok(view)
    }
}

/// A copy of bytes, which the stream has made when this returns.
fn copied(from: u64, bytes: usize, view: View, dtype: DType, stream: &Stream) -> Result<Raw<Exclusive>> {
    let piece = Piece::allocate(stream.device(), bytes as u64, stream)?;
    let raw = Raw::of(Some(piece), Arc::new(view), Grad::default());
    let used = raw.lend(dtype.size(), stream, true)?;
    // SAFETY: the piece has as many bytes, which this use may write; the user vouches for those at `from`. They are apart.
    unsafe { stream.device().bind()?.copy_on_device(used.address, from, bytes, stream.handle()) }?;
    used.synchronize()?;
    Ok(raw)
}
