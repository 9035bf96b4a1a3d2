//! Methods shared by several tensor types: shape, views and gradients. Crates with tensors in other memory
//! use them, too.

/// Defines the methods about the shape. `$view` is the field with the view.
#[doc(hidden)]
#[macro_export]
macro_rules! shape_methods {
    ($($view:ident).+) => {
        /// Returns the number of entries of each dimension.
        #[doc(alias = "size")]
        pub fn shape(&self) -> &[usize] {
            self.$($view).+.shape()
        }

        /// Returns the distance of neighbouring elements along each dimension, in elements. Never negative.
        #[doc(alias = "stride")]
        pub fn strides(&self) -> &[isize] {
            self.$($view).+.strides()
        }

        /// Returns the index of the first element in the storage.
        #[doc(alias = "storage_offset")]
        pub fn offset(&self) -> usize {
            self.$($view).+.offset()
        }

        /// Returns the number of dimensions.
        #[doc(alias = "dim")]
        pub fn ndim(&self) -> usize {
            self.$($view).+.rank()
        }

        /// Returns the number of elements.
        #[inline]
        pub fn len(&self) -> usize {
            self.$($view).+.len()
        }

        /// Returns the number of elements: torch's name of [`len`](Self::len).
        #[inline]
        pub fn numel(&self) -> usize {
            self.len()
        }

        /// Returns `true` if there are no elements.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// Returns the size of all elements in bytes.
        pub fn nbytes(&self) -> usize {
            self.len().saturating_mul(self.dtype().size())
        }

        /// Returns `true` if the elements are consecutive in row-major order.
        #[inline]
        pub fn is_contiguous(&self) -> bool {
            self.$($view).+.is_contiguous()
        }
    };
}

/// Defines the methods about gradients, for types with a field `raw` that has a `grad`.
#[doc(hidden)]
#[macro_export]
macro_rules! grad_methods {
    () => {
        /// Returns `true`: all tensors are in shared memory.
        pub fn is_shared(&self) -> bool {
            true
        }

        /// Returns `true` if the tensor requires gradients. The flag is sent with the tensor. This library
        /// computes no gradients.
        pub fn requires_grad(&self) -> bool {
            self.raw.grad.requires()
        }

        /// Returns `true` if the tensor was not computed from a tensor that requires gradients. Only leaves
        /// can be sent.
        pub fn is_leaf(&self) -> bool {
            self.raw.grad.is_leaf()
        }

        /// Sets whether the tensor requires gradients. Views created afterwards are not leaves, as in torch.
        ///
        /// # Errors
        /// [`Error::Unsupported`](mp_core::Error::Unsupported) for element types without gradients, and for
        /// non-leaves.
        #[doc(alias = "requires_grad_")]
        pub fn set_requires_grad(&mut self, requires: bool) -> mp_core::Result<()> {
            let dtype = self.dtype();
            self.raw.grad.set(requires, dtype)
        }

        /// Marks the tensor as the result of a computation with gradients, for crates that compute them.
        #[doc(alias = "grad_fn")]
        pub fn set_non_leaf(&mut self) {
            self.raw.grad.set_result();
        }

        /// Returns the same elements as a leaf that requires no gradients.
        #[must_use]
        pub fn detach(mut self) -> Self {
            self.raw.grad = Default::default();
            self
        }
    };
}

/// Defines a view method, by reference or by value.
#[doc(hidden)]
#[macro_export]
macro_rules! view_method {
    ([$($by:tt)?], $(#[$doc:meta])* $name:ident ($($arg:ident: $t:ty),*), $view:expr) => {
        $(#[$doc])*
        pub fn $name($($by)? self $(, $arg: $t)*) -> mp_core::Result<Self> {
            self.viewed($view)
        }
    };
}

/// Defines view methods whose results contain no element twice. With `&`, the methods return another handle
/// to the same storage. Otherwise they consume the tensor. They call a method `viewed` of the type.
/// [`aliasing_methods`] defines the `viewed` for `&`.
#[doc(hidden)]
#[macro_export]
macro_rules! view_methods {
    ($($by:tt)?) => {
        $crate::view_method!([$($by)?],
            /// Keeps `len` entries of dimension `dim`, from `start` on.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the dimension has fewer entries.
            narrow(dim: usize, start: usize, len: usize), |v| v.narrow(dim, start, len));
        $crate::view_method!([$($by)?],
            /// Keeps every `step`-th entry of a range of dimension `dim`.
            /// Python's `x[1:7:2]` is `x.slice(0, 1..7, 2)`.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the range is out of bounds,
            /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) if the step is not greater than
            /// zero.
            slice(dim: usize, range: impl std::ops::RangeBounds<usize>, step: isize),
            |v| v.slice(dim, range, step));
        $crate::view_method!([$($by)?],
            /// Selects one entry of dimension `dim`, and removes the dimension.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the entry does not exist.
            select(dim: usize, index: usize), |v| v.select(dim, index));
        $crate::view_method!([$($by)?],
            /// Exchanges two dimensions.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if a dimension does not exist.
            #[doc(alias = "swapaxes")]
            transpose(a: usize, b: usize), |v| v.transpose(a, b));
        $crate::view_method!([$($by)?],
            /// Transposes a matrix. A tensor with fewer than two dimensions is unchanged.
            ///
            /// # Errors
            /// [`Error::Shape`](mp_core::Error::Shape) for more than two dimensions.
            t(), |v| v.t());
        $crate::view_method!([$($by)?],
            /// Reorders the dimensions.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) if `order` does not name each
            /// dimension once.
            permute(order: &[usize]), |v| v.permute(order));
        $crate::view_method!([$($by)?],
            /// Changes the shape and keeps the order of the elements, without copying. A non-contiguous
            /// tensor is allowed if strides can express the new shape.
            ///
            /// # Errors
            /// [`Error::Shape`](mp_core::Error::Shape) if the number of elements differs, or the shape
            /// requires a copy.
            #[doc(alias = "view")]
            reshape(shape: impl AsRef<[usize]>), |v| v.reshape(shape.as_ref()));
        $crate::view_method!([$($by)?],
            /// Merges a range of dimensions into one. `..` merges all.
            ///
            /// # Errors
            /// [`Error::Shape`](mp_core::Error::Shape), see [`reshape`](Self::reshape).
            #[doc(alias = "ravel")]
            flatten(dims: impl std::ops::RangeBounds<usize>), |v| v.flatten(dims));
        $crate::view_method!([$($by)?],
            /// Removes the dimensions of one entry.
            ///
            /// # Errors
            /// Never returns an error.
            squeeze(), |v| v.squeeze());
        $crate::view_method!([$($by)?],
            /// Removes dimension `dim` if it has one entry. Otherwise the tensor is unchanged.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the dimension does not exist.
            squeeze_dim(dim: usize), |v| v.squeeze_dim(dim));
        $crate::view_method!([$($by)?],
            /// Inserts a dimension of one entry as dimension `dim`.
            ///
            /// # Errors
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if `dim` is too large,
            /// [`Error::LimitExceeded`](mp_core::Error::LimitExceeded) if there are already
            /// [`MAX_RANK`](crate::MAX_RANK) dimensions.
            unsqueeze(dim: usize), |v| v.unsqueeze(dim));
        $crate::view_method!([$($by)?],
            /// Returns the elements whose index in dimension `b` is their index in dimension `a` plus
            /// `offset`, as the last dimension.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) if the dimensions are equal,
            /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if one does not exist.
            diagonal(offset: isize, a: usize, b: usize), |v| v.diagonal(offset, a, b));
    };
}

/// Defines view methods that return overlapping views or several views, for tensors with several
/// handles. They call a method `another` of the type, which returns a handle with another view.
#[doc(hidden)]
#[macro_export]
macro_rules! aliasing_methods {
    ($($view:ident).+) => {
        /// Repeats dimensions of one entry and prepends new ones, up to `shape`. No element is copied: the
        /// stride is 0.
        ///
        /// # Errors
        /// [`Error::Shape`](mp_core::Error::Shape) if a dimension has neither one entry nor the requested
        /// number.
        #[doc(alias = "broadcast_to")]
        pub fn expand(&self, shape: impl AsRef<[usize]>) -> mp_core::Result<Self> {
            self.viewed(|v| v.expand(shape.as_ref()))
        }

        /// Returns windows of `size` entries of dimension `dim`, `step` apart, in a new last dimension.
        ///
        /// # Errors
        /// [`Error::Shape`](mp_core::Error::Shape) if a window is larger than the dimension,
        /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) if the step is 0.
        pub fn unfold(&self, dim: usize, size: usize, step: usize) -> mp_core::Result<Self> {
            self.viewed(|v| v.unfold(dim, size, step))
        }

        /// Cuts dimension `dim` into `chunks` views of equal length; the last one may be shorter.
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the dimension does not exist,
        /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) if `chunks` is 0.
        pub fn chunk(&self, chunks: usize, dim: usize) -> mp_core::Result<Vec<Self>> {
            self.pieces(|v| v.chunk(chunks, dim))
        }

        /// Cuts dimension `dim` into views of `size` entries; the last one may be shorter.
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the dimension does not exist,
        /// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) if the size is 0.
        pub fn split(&self, size: usize, dim: usize) -> mp_core::Result<Vec<Self>> {
            self.pieces(|v| v.split(size, dim))
        }

        /// Cuts dimension `dim` into views of these sizes.
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the dimension does not exist,
        /// [`Error::Shape`](mp_core::Error::Shape) if the sizes don't add up to its length.
        #[doc(alias = "split_with_sizes")]
        pub fn split_sizes(&self, sizes: &[usize], dim: usize) -> mp_core::Result<Vec<Self>> {
            self.pieces(|v| v.split_sizes(sizes, dim))
        }

        /// Returns a view of each entry of dimension `dim`, without that dimension.
        ///
        /// # Errors
        /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the dimension does not exist.
        pub fn unbind(&self, dim: usize) -> mp_core::Result<Vec<Self>> {
            self.pieces(|v| v.unbind(dim))
        }

        #[inline]
        fn viewed(
            &self,
            change: impl FnOnce(&mut $crate::parts::View) -> mp_core::Result<()>,
        ) -> mp_core::Result<Self> {
            let mut view = Box::new($crate::parts::View::clone(&self.$($view).+));
            change(&mut view)?;
            Ok(self.another(view))
        }

        fn pieces(
            &self,
            f: impl FnOnce($crate::parts::View) -> mp_core::Result<Vec<$crate::parts::View>>,
        ) -> mp_core::Result<Vec<Self>> {
            let views = f($crate::parts::View::clone(&self.$($view).+))?.into_iter();
            Ok(views.map(|view| self.another(view.into())).collect())
        }
    };
}

/// Defines the error of `downcast`, which contains the tensor.
#[doc(hidden)]
#[macro_export]
macro_rules! downcast_error {
    ($name:ident, $tensor:ident, $mode:ident, $error:ty) => {
        /// Error returned when a tensor has another element type than requested. It contains the tensor.
        pub struct $name<M: $mode> {
            /// The unconverted tensor.
            pub tensor: $tensor<M>,
            /// Requested type.
            pub expected: $crate::DType,
        }

        impl<M: $mode> std::fmt::Debug for $name<M> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("expected", &self.expected)
                    .field("found", &self.tensor.dtype)
                    .finish_non_exhaustive()
            }
        }

        impl<M: $mode> std::fmt::Display for $name<M> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                mp_core::Error::DType { expected: self.expected, found: self.tensor.dtype }.fmt(f)
            }
        }

        impl<M: $mode> std::error::Error for $name<M> {}

        impl<M: $mode> From<$name<M>> for $error {
            fn from(error: $name<M>) -> Self {
                mp_core::Error::DType { expected: error.expected, found: error.tensor.dtype }.into()
            }
        }
    };
}
