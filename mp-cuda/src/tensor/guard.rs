//! Guards of tensors that are loaned to a stream. A guard has the address of the tensor, and its drop ends
//! the use by the stream.

use std::fmt;
use std::marker::PhantomData;

use mp_core::DType;
use mp_tensor::parts::View;
use mp_tensor::{Element, shape_methods};

use super::raw::TensorUse;
use crate::stream::CudaStream;

macro_rules! lent {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "the use ends when it is dropped"]
        pub struct $name<'a, T: Element> {
            used: TensorUse<'a>,
            view: &'a View,
            elements: PhantomData<T>,
        }

        impl<'a, T: Element> $name<'a, T> {
            shape_methods!(view);

            pub(super) fn of(used: TensorUse<'a>, view: &'a View) -> Self {
                Self { used, view, elements: PhantomData }
            }

            /// Returns the address of the first element (`CUdeviceptr`) for the stream's device in this
            /// process, or 0 if there are no elements.
            #[doc(alias = "data_ptr")]
            #[must_use]
            pub fn ptr(&self) -> u64 {
                self.used.address
            }

            /// Returns the stream to which the tensor is loaned.
            #[must_use]
            pub fn stream(&self) -> &CudaStream {
                &self.used.stream
            }

            /// Returns the element type.
            #[must_use]
            pub fn dtype(&self) -> DType {
                T::DTYPE
            }
        }

        impl<T: Element> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("ptr", &format_args!("{:#x}", self.ptr()))
                    .field("dtype", &self.dtype())
                    .field("shape", &self.shape())
                    .field("stream", self.stream())
                    .finish()
            }
        }
    };
}

lent! {
    /// Tensor that is loaned to a stream, to read. [`on`](crate::CudaTensor::on) returns it.
    ///
    /// The stream waits for all earlier work with the tensor. Submit work that reads the elements at
    /// [`ptr`](Self::ptr) while this guard exists. Later users of the tensor wait for all work that was
    /// submitted to the stream before the guard was dropped, even if that work has not run yet. They don't
    /// wait for work on other streams.
    StreamGuard
}

lent! {
    /// Tensor that is loaned to a stream, to read and write. [`on_mut`](crate::CudaTensor::on_mut) returns
    /// it. See [`StreamGuard`].
    StreamGuardMut
}
