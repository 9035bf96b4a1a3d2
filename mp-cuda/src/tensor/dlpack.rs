//! Exchange of tensors with other libraries of this process, by
//! [DLPack](https://dmlc.github.io/dlpack/latest/c_api.html).
//!
//! # Safety
//! Unsafe, because libraries exchange structures of C. Sound, because
//! - the structures have the layout of the header, and an exported structure lives in one box until its
//!   deleter is called, once;
//! - the version of an imported structure is checked first, and each number is checked before it is used;
//!   only the pointers to shape and strides are dereferenced, and the producer guarantees their lengths;
//! - a deleter is called once: when the only value that owns the structure is dropped.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use mp_core::{DType, Error as CoreError};
use mp_tensor::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, READ_ONLY,
    VERSION,
};
use mp_tensor::{Element, Frozen};

use super::foreign::{ConversionError, ForeignMemory, ShareMethod};
use super::mode::CudaMode;
use super::raw::RawCudaTensor;
use super::{AnyCudaTensor, CudaTensor};
use crate::error::Result;
use crate::memory::stream_uses::UseAccess;
use crate::memory::{Piece, PieceMode};
use crate::stream::CudaStream;

/// Flag of DLPack: elements of less than a byte are padded to a byte.
const SUBBYTE_PADDED: u64 = 4;
/// DLPack's device types `kDLCUDA`, `kDLCUDAHost` and `kDLCUDAManaged`.
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// Interface of the versioned and the unversioned structure, whose fields differ.
trait ManagedTensor: Sized {
    /// Creates a structure with this tensor. `flags` is `READ_ONLY` or 0.
    fn new(tensor: DLTensor, context: *mut c_void, flags: u64) -> Self;
    /// Returns the flags and the tensor. Returns an error for another major version, because only the offset
    /// of the deleter is then known.
    fn checked_tensor(&self) -> Result<(u64, &DLTensor)>;
    /// Returns the function that the owner has to call, once, with the address of the structure.
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
    fn context(&self) -> *mut c_void;
}

impl ManagedTensor for DLManagedTensorVersioned {
    fn new(dl_tensor: DLTensor, manager_ctx: *mut c_void, flags: u64) -> Self {
        Self { version: VERSION, manager_ctx, deleter: Some(delete::<Self>), flags, dl_tensor }
    }

    fn checked_tensor(&self) -> Result<(u64, &DLTensor)> {
        let DLPackVersion { major, minor } = self.version;
        if major != VERSION.major {
            return unsupported(format!("DLPack {major}.{minor}: version {} is known here", VERSION.major));
        }
        Ok((self.flags, &self.dl_tensor))
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }
}

impl ManagedTensor for DLManagedTensor {
    fn new(dl_tensor: DLTensor, manager_ctx: *mut c_void, _: u64) -> Self {
        Self { dl_tensor, manager_ctx, deleter: Some(delete::<Self>) }
    }

    fn checked_tensor(&self) -> Result<(u64, &DLTensor)> {
        Ok((0, &self.dl_tensor))
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }
}

/// Contents of an exported tensor: the piece, which a stream uses, and the numbers to which the structure
/// points.
struct ExportedTensor {
    shape: Vec<i64>,
    strides: Vec<i64>,
    used: Option<(Piece, CudaStream, UseAccess)>,
}

impl Drop for ExportedTensor {
    fn drop(&mut self) {
        if let Some((piece, stream, access)) = &self.used {
            piece.uses().end(stream, *access, None);
        }
    }
}

/// Deleter of exported structures: ends the use of the piece, and frees the contents.
unsafe extern "C" fn delete<D: ManagedTensor>(managed: *mut D) {
    if managed.is_null() {
        return;
    }
    // SAFETY: `export` made the structure as a box, and the consumer calls the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: likewise; its context is the box of its contents.
    let exported = unsafe { Box::from_raw(managed.context().cast::<ExportedTensor>()) };
    // A panic must not leave a C callback, and its value may panic again.
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(exported))) {
        std::mem::forget(panic);
    }
}

fn unsupported<T>(why: String) -> Result<T> {
    Err(CoreError::Unsupported(why).into())
}

fn invalid<T>(why: String) -> Result<T> {
    Err(CoreError::InvalidArgument(why).into())
}

fn export<D: ManagedTensor, M: CudaMode>(
    raw: RawCudaTensor<M>,
    dtype: DType,
    stream: &CudaStream,
) -> Result<NonNull<D>, ConversionError<RawCudaTensor<M>>> {
    let refused = |error, value| Err(ConversionError { value, error });
    if raw.grad.requires() {
        let why = "a tensor that requires gradients has none of them in another library: export it detached";
        return refused(CoreError::InvalidArgument(why.into()).into(), raw);
    }
    let writes = M::MODE != PieceMode::Frozen;
    let lent = raw.lend(dtype.size(), stream, writes).map(|used| (used.address, used.into_open()));
    let (address, begun) = match lent {
        Ok(lent) => lent,
        Err(error) => return refused(error, raw),
    };
    let long = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let shape: Vec<i64> = raw.view.shape().iter().map(|n| long(*n)).collect();
    let strides: Vec<i64> = raw.view.strides().iter().map(|n| *n as i64).collect();
    let used = raw
        .piece
        .filter(|_| begun)
        .map(|piece| (piece, stream.clone(), UseAccess { writes, shared: M::MODE == PieceMode::Shared }));
    let mut exported = Box::new(ExportedTensor { shape, strides, used });
    let tensor = DLTensor {
        // The address is the device's, and the host does not dereference it.
        data: std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0)),
        device: DLDevice { device_type: CUDA, device_id: stream.device().number() },
        ndim: i32::try_from(exported.shape.len()).unwrap_or(0),
        dtype: DLDataType { code: dtype.dlpack_code(), bits: 8 * dtype.size() as u8, lanes: 1 },
        shape: exported.shape.as_mut_ptr(),
        strides: exported.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(exported).cast();
    let managed = Box::new(D::new(tensor, context, if writes { 0 } else { READ_ONLY }));
    Ok(NonNull::from(Box::leak(managed)))
}

/// Tensor on a device in the structure of DLPack's capsules, of this library or another library of this
/// process. Dropping it calls the deleter.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, Dlpack, CudaStream};
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// let weights = CudaTensor::from_slice(&[1.0_f32, 2.0, 3.0], [3], &stream)?.freeze();
/// let capsule = Dlpack::export(weights.clone(), &stream)?.into_raw(); // for torch, cupy or jax
/// // … the other library has it, and calls its deleter …
/// # let theirs = capsule;
/// // SAFETY: a library made the structure, and no other work uses its elements.
/// let (tensor, how) = unsafe { Dlpack::from_raw(theirs).unwrap().import(&stream) }?;
/// println!("{tensor:?}: {how:?}");
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// In Python, this structure is the content of a capsule `dltensor_versioned`, which `__dlpack__(stream=…)`
/// returns. An exported tensor is for work on the stream that is passed to [`export`](Self::export). A
/// consumer that uses another stream has to order its work itself. The exporting stream uses the tensor until
/// the deleter is called. Other streams and processes that use the tensor later wait for all work that was
/// submitted to the exporting stream before the deleter is called. Any thread may call the deleter.
#[doc(alias("__dlpack__", "from_dlpack", "to_dlpack"))]
pub struct Dlpack(NonNull<DLManagedTensorVersioned>);

/// Tensor on a device like [`Dlpack`], in the structure before version 1, which can't mark read-only memory.
/// A capsule named `dltensor` contains this structure.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, DlpackUnversioned, CudaStream};
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// let x = CudaTensor::<f32>::zeros([3], &stream)?;
/// let capsule = DlpackUnversioned::export(x, &stream)?.into_raw();
/// # drop(unsafe { DlpackUnversioned::from_raw(capsule) });
/// # Ok::<(), mp_cuda::Error>(())
/// ```
pub struct DlpackUnversioned(NonNull<DLManagedTensor>);

macro_rules! capsule {
    ($name:ident, $managed:ident) => {
        // SAFETY: this is the only value that has the structure, and DLPack allows any thread to call
        // deleters.
        unsafe impl Send for $name {}
        // SAFETY: a shared reference gives the address only, and nothing that changes the structure.
        unsafe impl Sync for $name {}

        impl $name {
            /// Wraps a structure of another library. Returns `None` for a null pointer.
            ///
            /// # Safety
            /// The pointer refers to a structure of this type, whose deleter is called by no other code.
            /// Shape and strides have the lengths that the structure states. The elements exist until the
            /// deleter is called.
            #[must_use]
            pub unsafe fn from_raw(managed: *mut $managed) -> Option<Self> {
                NonNull::new(managed).map(Self)
            }

            /// Returns the structure for another library, which must call the deleter once.
            #[must_use = "without a consumer the tensor is never given back"]
            pub fn into_raw(self) -> *mut $managed {
                ManuallyDrop::new(self).0.as_ptr()
            }

            /// Returns a pointer to the structure.
            #[must_use]
            pub fn as_raw(&self) -> *const $managed {
                self.0.as_ptr()
            }

            /// Converts the structure to an exclusive tensor, which can be sent to other processes. The
            /// contents are valid when the stream has run its earlier work. The deleter is called when no
            /// process has the tensor, or at once if the memory is copied. Read-only memory is copied.
            ///
            /// # Errors
            /// [`mp_core::Error::Unsupported`] for another major version, a device that is not CUDA's, an
            /// unknown element type, several lanes, or negative strides; [`mp_core::Error::InvalidArgument`]
            /// for negative sizes, null pointers, or another device than the stream's; errors of
            /// [`ForeignMemory::share`]. The error contains the structure, whose deleter was not called.
            ///
            /// # Safety
            /// The conditions of [`ForeignMemory::share`] hold: the structure is correct, and no other work
            /// uses the elements until the deleter is called.
            pub unsafe fn import(
                self,
                stream: &CudaStream,
            ) -> Result<(AnyCudaTensor, ShareMethod), ConversionError<Self>> {
                self.imported(stream, true)
            }

            /// Converts the structure to a frozen tensor, like [`import`](Self::import). No process writes to
            /// the elements, so read-only memory need not be copied.
            ///
            /// # Errors
            /// Errors of [`import`](Self::import).
            ///
            /// # Safety
            /// The structure is correct, and no work writes to the elements until the deleter is called.
            pub unsafe fn import_frozen(
                self,
                stream: &CudaStream,
            ) -> Result<(AnyCudaTensor<Frozen>, ShareMethod), ConversionError<Self>> {
                self.imported(stream, false).map(|(tensor, how)| (tensor.freeze(), how))
            }

            fn imported(
                self,
                stream: &CudaStream,
                writes: bool,
            ) -> Result<(AnyCudaTensor, ShareMethod), ConversionError<Self>> {
                // SAFETY: the caller that made this value guarantees the structure.
                let managed = unsafe { self.0.as_ref() };
                let (dtype, memory) = match asked(managed, stream, writes) {
                    Ok(asked) => asked,
                    Err(error) => return Err(ConversionError { value: self, error }),
                };
                let (raw, how) = memory.shared(dtype, self, stream, writes)?;
                Ok((AnyCudaTensor { raw, dtype }, how))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: this value has the structure, which lives until its deleter is called, below.
                if let Some(deleter) = unsafe { self.0.as_ref() }.deleter() {
                    // SAFETY: likewise; nothing uses it afterwards.
                    unsafe { deleter(self.0.as_ptr()) };
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.0).finish()
            }
        }
    };
}

capsule!(Dlpack, DLManagedTensorVersioned);
capsule!(DlpackUnversioned, DLManagedTensor);

impl Dlpack {
    /// Exports a tensor of any mode, for work on this stream. The stream waits for earlier work with the
    /// tensor. A frozen tensor is flagged as read-only. To keep a frozen or shared tensor, pass a clone.
    ///
    /// # Errors
    /// Errors of [`CudaTensor::on`]; [`mp_core::Error::InvalidArgument`] if the tensor requires gradients.
    /// The error contains the tensor.
    pub fn export<T: Element, M: CudaMode>(
        tensor: CudaTensor<T, M>,
        stream: &CudaStream,
    ) -> Result<Self, ConversionError<CudaTensor<T, M>>> {
        export(tensor.raw, T::DTYPE, stream).map(Self).map_err(|refused| refused.map(CudaTensor::of))
    }

    /// Exports a tensor whose element type is known at run time, like [`export`](Self::export).
    ///
    /// # Errors
    /// Errors of [`export`](Self::export).
    pub fn export_any<M: CudaMode>(
        tensor: AnyCudaTensor<M>,
        stream: &CudaStream,
    ) -> Result<Self, ConversionError<AnyCudaTensor<M>>> {
        let dtype = tensor.dtype;
        let back = |raw| AnyCudaTensor { raw, dtype };
        export(tensor.raw, dtype, stream).map(Self).map_err(|refused| refused.map(back))
    }
}

impl DlpackUnversioned {
    /// Exports a tensor, like [`Dlpack::export`]. Returns an error for a frozen tensor, because the consumer
    /// might write to it.
    ///
    /// # Errors
    /// Errors of [`Dlpack::export`]; [`mp_core::Error::Unsupported`] for a frozen tensor.
    pub fn export<T: Element, M: CudaMode>(
        tensor: CudaTensor<T, M>,
        stream: &CudaStream,
    ) -> Result<Self, ConversionError<CudaTensor<T, M>>> {
        if M::MODE == PieceMode::Frozen {
            let why = "a frozen tensor can't be exported without a version, which can't mark it as read-only";
            return Err(ConversionError { value: tensor, error: CoreError::Unsupported(why.into()).into() });
        }
        export(tensor.raw, T::DTYPE, stream).map(Self).map_err(|refused| refused.map(CudaTensor::of))
    }
}

/// Checks the structure. Returns the element type, and the description of the memory. `writes` is `true` for
/// an exclusive tensor.
fn asked<D: ManagedTensor>(managed: &D, stream: &CudaStream, writes: bool) -> Result<(DType, ForeignMemory)> {
    let (flags, tensor) = managed.checked_tensor()?;
    if flags & SUBBYTE_PADDED != 0 {
        return unsupported("elements of less than a byte".into());
    }
    let dtype = dtype_of(tensor.dtype)?;
    let DLDevice { device_type, device_id } = tensor.device;
    if ![CUDA, CUDA_HOST, CUDA_MANAGED].contains(&device_type) {
        return unsupported(format!(
            "a tensor of DLPack's device type {device_type}, which is not a CUDA device"
        ));
    }
    let own = stream.device().number();
    if device_type == CUDA && device_id != own {
        return invalid(format!("a tensor of device {device_id}, and a stream of device {own}"));
    }
    let Ok(rank) = usize::try_from(tensor.ndim) else {
        return invalid(format!("a tensor of {} dimensions", tensor.ndim));
    };
    let shape = numbers(tensor.shape, rank)?.unwrap_or_default();
    if shape.len() != rank {
        return invalid(format!("a tensor of {rank} dimensions, and a null pointer for their sizes"));
    }
    let sizes: Vec<usize> = shape.iter().filter_map(|n| usize::try_from(*n).ok()).collect();
    if sizes.len() != rank {
        return invalid(format!("a tensor of shape {shape:?}: a negative size"));
    }
    let Some(address) = (tensor.data.addr() as u64).checked_add(tensor.byte_offset) else {
        return invalid(format!("an offset of {} bytes, which is beyond all memory", tensor.byte_offset));
    };
    let mut memory = ForeignMemory::new(address, sizes);
    if let Some(strides) = numbers(tensor.strides, rank)? {
        let strides: Vec<isize> = strides.iter().filter_map(|n| isize::try_from(*n).ok()).collect();
        memory = memory.strides(strides);
    }
    // Memory that may not be written is copied if the tensor has one owner.
    Ok((dtype, if writes && flags & READ_ONLY != 0 { memory.always_copied() } else { memory }))
}

fn dtype_of(DLDataType { code, bits, lanes }: DLDataType) -> Result<DType> {
    if lanes != 1 {
        return unsupported(format!("elements of {lanes} lanes"));
    }
    match DType::from_dlpack(code, bits) {
        Some(dtype) => Ok(dtype),
        None => unsupported(format!("elements of DLPack's type {code} with {bits} bits")),
    }
}

/// Returns the `rank` numbers at a pointer, or `None` for a null pointer and at least one dimension. Returns
/// an error for more dimensions than tensors can have.
fn numbers(at: *mut i64, rank: usize) -> Result<Option<Vec<i64>>> {
    if rank > mp_tensor::MAX_RANK {
        return Err(CoreError::LimitExceeded(format!(
            "{rank} dimensions: there may be {}",
            mp_tensor::MAX_RANK
        ))
        .into());
    }
    if at.is_null() {
        return Ok((rank == 0).then(Vec::new));
    }
    // SAFETY: the pointer is not null. The producer guarantees that the array has as many numbers as the
    // structure states.
    Ok(Some(unsafe { std::slice::from_raw_parts(at, rank) }.to_vec()))
}
