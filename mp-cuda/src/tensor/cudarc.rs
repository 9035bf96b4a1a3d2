//! Streams of cudarc, and tensors as arguments of cudarc's copies and kernels.
//!
//! # Safety
//! Unsafe, because it uses a raw stream of cudarc, and passes addresses to kernels. Sound, because
//! - cudarc owns the stream and its context, and the stored `Arc` keeps them alive;
//! - the address that a kernel gets as an argument is a field of a guard, which the launch borrows.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream as RawStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, DriverError,
    LaunchArgs, PushKernelArg, SyncOnDrop, sys,
};
use mp_tensor::{Element, Exclusive, Shared};

use super::{CudaMode, CudaTensor, StreamGuard, StreamGuardMut};
use crate::error::{Error, Result};
use crate::stream::CudaStream;

/// Stream of cudarc, to which tensors are loaned for cudarc's copies and kernels. Dereferences to a
/// [`CudaStream`].
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use mp_cuda::{CudaTensor, CudarcStream};
///
/// let context = CudaContext::new(0)?;
/// let stream = CudarcStream::new(&context.new_stream()?)?;
/// let mut x = CudaTensor::from_slice(&[1.0_f32, 2.0, 3.0], [3], &stream)?;
///
/// let mut on = x.on_cudarc_mut(&stream)?;
/// stream.cudarc().memset_zeros(&mut on)?; // or `stream.cudarc().launch_builder(&kernel).arg(&on)`
/// drop(on); // the next owner's stream waits for that, on the device
/// let on = x.on_cudarc(&stream)?;
/// assert_eq!(stream.cudarc().clone_dtoh(&on)?, [0.0; 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Make one value for each stream and keep it: each value that is used takes one of a limited number of
/// clocks in shared memory. Clones refer to the same stream.
///
/// If this process is killed, the remaining work of the stream is lost. Processes that need it get an error:
/// see [`CudaStream`].
#[derive(Clone)]
pub struct CudarcStream {
    stream: CudaStream,
    cudarc: Arc<RawStream>,
}

impl CudarcStream {
    /// Wraps a stream, which may be its context's default stream.
    ///
    /// # Errors
    /// [`OtherContext`](Error::OtherContext) if cudarc's context is not its device's primary context
    /// (`CudaContext::new` returns primary contexts); errors of the driver.
    pub fn new(stream: &Arc<RawStream>) -> Result<Self> {
        let context = stream.context().cu_ctx().cast();
        let keep_alive = Arc::clone(stream);
        // SAFETY: context and stream are cudarc's, and alive as long as the `Arc` that is passed with them.
        let ours = unsafe { CudaStream::from_raw(context, stream.cu_stream().cast(), keep_alive) }?;
        Ok(Self { stream: ours, cudarc: Arc::clone(stream) })
    }

    /// Returns the stream as a value of cudarc's type.
    #[must_use]
    pub fn cudarc(&self) -> &Arc<RawStream> {
        &self.cudarc
    }
}

impl Deref for CudarcStream {
    type Target = CudaStream;

    fn deref(&self) -> &CudaStream {
        &self.stream
    }
}

impl fmt::Debug for CudarcStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.stream, f)
    }
}

impl<T: Element, M: CudaMode> CudaTensor<T, M> {
    /// Loans the tensor to a stream of cudarc, for work that reads it: see [`on`](Self::on).
    ///
    /// # Errors
    /// [`NotContiguous`](Error::NotContiguous) if the elements are not adjacent in row-major order, as cudarc
    /// needs them; errors of [`on`](Self::on).
    pub fn on_cudarc<'a>(&'a self, stream: &'a CudarcStream) -> Result<CudarcGuard<'a, T>> {
        contiguous(self.is_contiguous(), self.shape())?;
        let lent = self.on(stream)?;
        Ok(CudarcGuard { address: lent.ptr(), lent, stream: &stream.cudarc, elements: PhantomData })
    }
}

impl<T: Element> CudaTensor<T, Exclusive> {
    /// Lends the tensor to a stream of cudarc, for work that reads and writes it: see
    /// [`on_mut`](Self::on_mut).
    ///
    /// # Errors
    /// Errors of [`on_cudarc`](Self::on_cudarc).
    pub fn on_cudarc_mut<'a>(&'a mut self, stream: &'a CudarcStream) -> Result<CudarcGuardMut<'a, T>> {
        contiguous(self.is_contiguous(), self.shape())?;
        let lent = self.on_mut(stream)?;
        Ok(CudarcGuardMut { address: lent.ptr(), lent, stream: &stream.cudarc, elements: PhantomData })
    }
}

impl<T: Element> CudaTensor<T, Shared> {
    /// Lends the tensor to a stream of cudarc, for work that reads and writes it: see
    /// [`on_mut`](Self::on_mut).
    ///
    /// # Errors
    /// Errors of [`on_cudarc`](Self::on_cudarc).
    pub fn on_cudarc_mut<'a>(&'a self, stream: &'a CudarcStream) -> Result<CudarcGuardMut<'a, T>> {
        contiguous(self.is_contiguous(), self.shape())?;
        let lent = self.on_mut(stream)?;
        Ok(CudarcGuardMut { address: lent.ptr(), lent, stream: &stream.cudarc, elements: PhantomData })
    }
}

impl<T: Element> CudaTensor<T, Exclusive> {
    /// Copies memory of cudarc (a `CudaSlice`, a view of it, a tensor of candle) to a new tensor. The stream
    /// makes the copy. The host doesn't wait for the copy. The copy is needed because cudarc's memory belongs
    /// to a pool, which no other process can open.
    ///
    /// ```no_run
    /// use cudarc::driver::CudaContext;
    /// use mp_cuda::{CudaTensor, CudarcStream};
    ///
    /// let context = CudaContext::new(0)?;
    /// let stream = CudarcStream::new(&context.new_stream()?)?;
    /// let slice = stream.cudarc().clone_htod(&[1.0_f32, 2.0, 3.0, 4.0])?;
    /// let x = CudaTensor::from_cudarc(&slice, [2, 2], &stream)?; // to be put into a queue
    /// let back = x.to_cudarc(&stream)?;
    /// assert_eq!(stream.cudarc().clone_dtoh(&back)?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`mp_core::Error::Shape`] if the shape has another number of elements; errors of
    /// [`empty`](CudaTensor::empty) and of the driver.
    pub fn from_cudarc(
        from: &impl DevicePtr<T>,
        shape: impl AsRef<[usize]>,
        stream: &CudarcStream,
    ) -> Result<Self> {
        let mut t = Self::empty(shape, stream)?;
        if t.len() != from.len() {
            let why = format!("{} elements for a tensor of shape {:?}", from.len(), t.shape());
            return Err(mp_core::Error::Shape(why).into());
        }
        if !t.is_empty() {
            let mut on = t.on_cudarc_mut(stream)?;
            stream
                .cudarc
                .memcpy_dtod(from, &mut on)
                .map_err(|error| of_cudarc("cuMemcpyDtoDAsync_v2", error))?;
        }
        Ok(t)
    }
}

impl<T: Element + DeviceRepr, M: CudaMode> CudaTensor<T, M> {
    /// Copies the tensor to contiguous memory of cudarc, in the order of `stream`. The host doesn't wait for
    /// the copy. Pass the copy to functions that take ownership of a `CudaSlice`, like candle's
    /// `CudaStorage::wrap_cuda_slice`.
    ///
    /// # Errors
    /// Errors of [`on`](CudaTensor::on); errors of [`to_device`](CudaTensor::to_device) for a view that isn't
    /// contiguous; errors of the driver.
    pub fn to_cudarc(&self, stream: &CudarcStream) -> Result<CudaSlice<T>> {
        let copied = |t: CudarcGuard<'_, T>| {
            let made = if t.is_empty() { stream.cudarc.null() } else { stream.cudarc.clone_dtod(&t) };
            made.map_err(|error| of_cudarc("cuMemAllocAsync", error))
        };
        if self.is_contiguous() {
            return copied(self.on_cudarc(stream)?);
        }
        copied(self.to_device(stream)?.on_cudarc(stream)?)
    }
}

/// Converts an error of cudarc. `call` names the function that failed.
fn of_cudarc(call: &'static str, error: DriverError) -> Error {
    let name = || Some(error.error_name().ok()?.to_string_lossy().into_owned());
    Error::driver(call, error.0 as u32, name)
}

fn contiguous(is: bool, shape: &[usize]) -> Result<()> {
    if is { Ok(()) } else { Err(Error::NotContiguous { shape: shape.to_vec() }) }
}

/// Converts an error of this crate to cudarc's error type.
fn as_cudarc(error: &Error) -> DriverError {
    DriverError(match error {
        Error::DeviceLost { .. } => sys::CUresult::CUDA_ERROR_LAUNCH_FAILED,
        Error::OtherContext => sys::CUresult::CUDA_ERROR_INVALID_CONTEXT,
        _ => sys::CUresult::CUDA_ERROR_UNKNOWN,
    })
}

macro_rules! cudarc_lent {
    ($(#[$doc:meta])* $name:ident of $lent:ident) => {
        $(#[$doc])*
        #[must_use = "the use ends when it is dropped"]
        pub struct $name<'a, T: Element> {
            /// Address of the tensor's elements. Kernels get a pointer to this field.
            address: u64,
            lent: $lent<'a, T>,
            stream: &'a Arc<RawStream>,
            elements: PhantomData<T>,
        }

        impl<'a, T: Element> Deref for $name<'a, T> {
            type Target = $lent<'a, T>;

            fn deref(&self) -> &$lent<'a, T> {
                &self.lent
            }
        }

        impl<T: Element> $name<'_, T> {
            /// Returns the address for work of `stream`. If the tensor is on loan to another stream, this
            /// thread waits for both streams. This call waits until the other stream has run its work. The
            /// drop of the returned `SyncOnDrop` waits until `stream` has run its work.
            fn address_for<'s>(&'s self, stream: &'s RawStream) -> (u64, SyncOnDrop<'s>) {
                if stream == &**self.stream {
                    return (self.address, SyncOnDrop::Record(None));
                }
                if let Err(error) = self.lent.stream().synchronize() {
                    stream.context().record_err::<()>(Err(as_cudarc(&error)));
                    // The driver refuses address 0. Otherwise the copy would run without an order.
                    return (0, SyncOnDrop::Record(None));
                }
                (self.address, SyncOnDrop::Sync(Some(stream)))
            }
        }

        impl<T: Element> DeviceSlice<T> for $name<'_, T> {
            fn len(&self) -> usize {
                self.lent.len()
            }

            fn stream(&self) -> &Arc<RawStream> {
                self.stream
            }
        }

        impl<T: Element> DevicePtr<T> for $name<'_, T> {
            fn device_ptr<'s>(&'s self, stream: &'s RawStream) -> (sys::CUdeviceptr, SyncOnDrop<'s>) {
                self.address_for(stream)
            }
        }

        impl<T: Element> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.lent, f)
            }
        }
    };
}

cudarc_lent! {
    /// Tensor that is loaned to a stream of cudarc, to read. [`on_cudarc`](CudaTensor::on_cudarc) returns it.
    ///
    /// The guard is a `DevicePtr` for cudarc's copies, and an argument for cudarc's kernels, which get the
    /// address of the first element. If a copy on another stream uses the guard, this thread waits for both
    /// streams. Launch kernels only on the stream of the guard. To copy to another device use
    /// [`to_device`](CudaTensor::to_device), because cudarc doesn't report to the guard that a stream belongs
    /// to another device.
    CudarcGuard of StreamGuard
}

cudarc_lent! {
    /// Tensor that is loaned to a stream of cudarc, to read and write.
    /// [`on_cudarc_mut`](CudaTensor::on_cudarc_mut) returns it. The guard is used like a [`CudarcGuard`], and
    /// is also a `DevicePtrMut`.
    CudarcGuardMut of StreamGuardMut
}

impl<T: Element> DevicePtrMut<T> for CudarcGuardMut<'_, T> {
    fn device_ptr_mut<'s>(&'s mut self, stream: &'s RawStream) -> (sys::CUdeviceptr, SyncOnDrop<'s>) {
        self.address_for(stream)
    }
}

// SAFETY: the pushed pointer is the address of a number that is borrowed as long as the arguments.
unsafe impl<'a, 'b: 'a, T: Element> PushKernelArg<&'b CudarcGuard<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, lent: &'b CudarcGuard<'_, T>) -> &mut Self {
        self.arg(&lent.address)
    }
}

// SAFETY: likewise.
unsafe impl<'a, 'b: 'a, T: Element> PushKernelArg<&'b mut CudarcGuardMut<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, lent: &'b mut CudarcGuardMut<'_, T>) -> &mut Self {
        self.arg(&lent.address)
    }
}
