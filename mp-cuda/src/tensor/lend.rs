//! A tensor on a stream: its address, for as long as the stream is given work with it.

use std::fmt;
use std::marker::PhantomData;

use mp_core::DType;
use mp_tensor::parts::View;
use mp_tensor::{Element, shape_methods};

use super::raw::Used;
use crate::stream::Stream;

macro_rules! lent {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "the use ends when it is dropped"]
        pub struct $name<'a, T: Element> {
            used: Used<'a>,
            view: &'a View,
            elements: PhantomData<T>,
        }

        impl<'a, T: Element> $name<'a, T> {
            shape_methods!(view);

            pub(super) fn of(used: Used<'a>, view: &'a View) -> Self {
                Self { used, view, elements: PhantomData }
            }

            /// The address of the first element (`CUdeviceptr`), by which the stream's device reaches it in this process; 0 if there are
            /// no elements.
            #[doc(alias = "data_ptr")]
            #[must_use]
            pub fn ptr(&self) -> u64 {
                self.used.address
            }

            /// The stream.
            #[must_use]
            pub fn stream(&self) -> &Stream {
                &self.used.stream
            }

            /// The type of its elements.
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
    /// A tensor on a stream, to read: what [`on`](crate::CudaTensor::on) gives.
    ///
    /// The stream has been told to wait for all that has to run before. Give it work that reads the elements, by
    /// [`ptr`](Self::ptr), as long as this lives; when it is dropped, the use ends, for what the stream was given until then. The work itself need
    /// not have run. It is no work on other streams.
    Lent
}

lent! {
    /// A tensor on a stream, to read and write: what [`on_mut`](crate::CudaTensor::on_mut) gives. See [`Lent`].
    LentMut
}
