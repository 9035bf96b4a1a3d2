//! Methods that several tensor types have, written once: about shape, views and gradients. Those of tensors of other memory, in crates
//! above, are these, too.

/// The methods about shape; `$view` is where the view is.
#[doc(hidden)]
#[macro_export]
macro_rules! shape_methods {
    ($($view:ident).+) => {
        /// How many entries each dimension has.
        #[doc(alias = "size")]
        pub fn shape(&self) -> &[usize] {
            self.$($view).+.shape()
        }

        /// How many elements apart two neighbours are, along each dimension. Never negative.
        #[doc(alias = "stride")]
        pub fn strides(&self) -> &[isize] {
            self.$($view).+.strides()
        }

        /// Which element of the storage the first one is.
        #[doc(alias = "storage_offset")]
        pub fn offset(&self) -> usize {
            self.$($view).+.offset()
        }

        /// How many dimensions it has.
        #[doc(alias = "dim")]
        pub fn ndim(&self) -> usize {
            self.$($view).+.rank()
        }

        /// Number of elements.
        #[inline]
        pub fn len(&self) -> usize {
            self.$($view).+.len()
        }

        /// Number of elements, by the name that torch has: [`len`](Self::len).
        #[inline]
        pub fn numel(&self) -> usize {
            self.len()
        }

        /// Whether it has no elements.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// How many bytes its elements take.
        pub fn nbytes(&self) -> usize {
            self.len().saturating_mul(self.dtype().size())
        }

        /// Whether its elements lie one after the other, in row-major order.
        #[inline]
        pub fn is_contiguous(&self) -> bool {
            self.$($view).+.is_contiguous()
        }
    };
}

/// The methods about gradients of types that have a `raw` with a `grad`.
#[doc(hidden)]
#[macro_export]
macro_rules! grad_methods {
    () => {
        /// Whether it is in the memory that processes share: yes, as all tensors are.
        pub fn is_shared(&self) -> bool {
            true
        }

        /// Whether gradients are wanted for it. Metadata that travels; nothing here computes them.
        pub fn requires_grad(&self) -> bool {
            self.raw.grad.requires()
        }

        /// Whether it is no result of a tensor that requires gradients. Only leaves can be sent.
        pub fn is_leaf(&self) -> bool {
            self.raw.grad.is_leaf()
        }

        /// Says whether gradients are wanted for it. Views made from now on are no leaves then, as in torch.
        ///
        /// # Errors
        /// [`Error::Unsupported`](mp_core::Error::Unsupported) for element types that have no gradients, and for what
        /// is no leaf.
        #[doc(alias = "requires_grad_")]
        pub fn set_requires_grad(&mut self, requires: bool) -> mp_core::Result<()> {
            let dtype = self.dtype();
            self.raw.grad.set(requires, dtype)
        }

        /// Says that it is the result of a computation that has a gradient: for crates that compute them.
        #[doc(alias = "grad_fn")]
        pub fn set_non_leaf(&mut self) {
            self.raw.grad.set_result();
        }
    };
}

/// One view method, by reference or by value.
#[doc(hidden)]
#[macro_export]
macro_rules! view_method {
    (by_ref, $(#[$doc:meta])* $name:ident ($($arg:ident: $t:ty),*), $view:expr) => {
        $(#[$doc])*
        pub fn $name(&self $(, $arg: $t)*) -> mp_core::Result<Self> {
            self.viewed($view)
        }
    };
    (by_value, $(#[$doc:meta])* $name:ident ($($arg:ident: $t:ty),*), $view:expr) => {
        $(#[$doc])*
        pub fn $name(self $(, $arg: $t)*) -> mp_core::Result<Self> {
            self.viewed($view)
        }
    };
}

/// Views in which no element appears twice. `by_ref`: another handle to the same storage; `by_value`: the same tensor,
/// seen otherwise. The type has a function `viewed`.
#[doc(hidden)]
#[macro_export]
macro_rules! view_methods {
    ($by:ident) => {
        $crate::view_method!($by,
            /// `len` entries of dimension `dim` from `start` on.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there are not that many.
            narrow(dim: usize, start: usize, len: usize), |v| v.narrow(dim, start, len));
        $crate::view_method!($by,
            /// Every `step`-th entry of a range of dimension `dim`: `x[1:7:2]` is `x.slice(0, 1..7, 2)`.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when the range is out of range,
            /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) when the step is not greater than
            /// zero.
            slice(dim: usize, range: impl std::ops::RangeBounds<usize>, step: isize), |v| v.slice(dim, range, step));
        $crate::view_method!($by,
            /// One entry of dimension `dim`, which disappears.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there is no such entry.
            select(dim: usize, index: usize), |v| v.select(dim, index));
        $crate::view_method!($by,
            /// Two dimensions exchanged.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there is no such dimension.
            #[doc(alias = "swapaxes")]
            transpose(a: usize, b: usize), |v| v.transpose(a, b));
        $crate::view_method!($by,
            /// The transposed matrix; with fewer than two dimensions, the tensor as it is.
            ///
            /// # Errors
            /// [`Error::Shape`](mp_core::Error::Shape) with more than two dimensions.
            t(), |v| v.t());
        $crate::view_method!($by,
            /// The dimensions in another order.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) when `order` doesn't name each dimension once.
            permute(order: &[usize]), |v| v.permute(order));
        $crate::view_method!($by,
            /// Another shape for the same elements in the same order, without copying any: wherever strides can say it, also
            /// of tensors that are not contiguous.
            ///
            /// # Errors
            /// [`Error::Shape`](mp_core::Error::Shape) when the number of elements differs, or only a copy could have that
            /// shape.
            #[doc(alias = "view")]
            reshape(shape: impl AsRef<[usize]>), |v| v.reshape(shape.as_ref()));
        $crate::view_method!($by,
            /// A range of dimensions as one: `..` for all.
            ///
            /// # Errors
            /// [`Error::Shape`](mp_core::Error::Shape) as [`reshape`](Self::reshape).
            #[doc(alias = "ravel")]
            flatten(dims: impl std::ops::RangeBounds<usize>), |v| v.flatten(dims));
        $crate::view_method!($by,
            /// Without the dimensions of one entry.
            ///
            /// # Errors
            /// None.
            squeeze(), |v| v.squeeze());
        $crate::view_method!($by,
            /// Without dimension `dim`, if that has one entry; else as it is.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there is no such dimension.
            squeeze_dim(dim: usize), |v| v.squeeze_dim(dim));
        $crate::view_method!($by,
            /// With a further dimension of one entry, which becomes dimension `dim`.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when `dim` is too large, or there are
            /// [`MAX_RANK`](crate::MAX_RANK) dimensions already.
            unsqueeze(dim: usize), |v| v.unsqueeze(dim));
        $crate::view_method!($by,
            /// The elements whose index of dimension `b` is that of dimension `a` plus `offset`; they become the last
            /// dimension.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) when there are no two such dimensions.
            diagonal(offset: isize, a: usize, b: usize), |v| v.diagonal(offset, a, b));
    };
}

/// Views that may overlap, and several at once: for tensors of which there may be several.
#[doc(hidden)]
#[macro_export]
macro_rules! aliasing_methods {
    () => {
        /// Dimensions of one entry repeated, and new ones in front, up to `shape`; no element is copied, their stride is
        /// 0.
        ///
        /// # Errors
        /// [`Error::Shape`](mp_core::Error::Shape) when a dimension has neither one entry nor as many as it should have.
        #[doc(alias = "broadcast_to")]
        pub fn expand(&self, shape: impl AsRef<[usize]>) -> mp_core::Result<Self> {
            self.viewed(|v| v.expand(shape.as_ref()))
        }

        /// Windows of `size` entries, `step` apart, of dimension `dim`; they become a further dimension, the last one.
        ///
        /// # Errors
        /// [`Error::Shape`](mp_core::Error::Shape) when a window doesn't fit,
        /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) when the step is 0.
        pub fn unfold(&self, dim: usize, size: usize, step: usize) -> mp_core::Result<Self> {
            self.viewed(|v| v.unfold(dim, size, step))
        }

        /// Cut along dimension `dim` into `chunks` views of equal length (the last one may be shorter).
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there is no such dimension,
        /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) when no chunks are asked.
        pub fn chunk(&self, chunks: usize, dim: usize) -> mp_core::Result<Vec<Self>> {
            self.pieces(|v| v.chunk(chunks, dim))
        }

        /// Cut along dimension `dim` into views of `size` entries (the last one may be shorter).
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there is no such dimension,
        /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) when the size is 0.
        pub fn split(&self, size: usize, dim: usize) -> mp_core::Result<Vec<Self>> {
            self.pieces(|v| v.split(size, dim))
        }

        /// Cut along dimension `dim` into views of these sizes.
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there is no such dimension,
        /// [`Error::Shape`](mp_core::Error::Shape) when they don't add up to it.
        #[doc(alias = "split_with_sizes")]
        pub fn split_sizes(&self, sizes: &[usize], dim: usize) -> mp_core::Result<Vec<Self>> {
            self.pieces(|v| v.split_sizes(sizes, dim))
        }

        /// Each entry of dimension `dim`, which disappears.
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there is no such dimension.
        pub fn unbind(&self, dim: usize) -> mp_core::Result<Vec<Self>> {
            self.pieces(|v| v.unbind(dim))
        }
    };
}
