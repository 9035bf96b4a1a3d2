//! Tensors that are loaned to a stream, with their addresses.

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

            /// Returns the stream.
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
    /// The stream waits for all earlier work. Submit work that reads the elements at [`ptr`](Self::ptr) while
    /// this value lives. Dropping it ends the use, which covers the work submitted until then, even if the
    /// work has not run. Work on other streams is not covered.
    StreamGuard
}

lent! {
    /// Tensor that is loaned to a stream, to read and write. [`on_mut`](crate::CudaTensor::on_mut) returns
    /// it. See [`StreamGuard`].
    StreamGuardMut
}
