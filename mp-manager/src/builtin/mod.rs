//! Ready-made objects: collections in the server, whose methods are calls through a [`Proxy`](crate::Proxy).

pub(crate) mod dict;
pub(crate) mod list;
pub(crate) mod namespace;
pub(crate) mod shared;

/// Defines a wrapper of a proxy, with the methods that all ready-made objects have.
macro_rules! ready {
    ($(#[$attribute:meta])* $name:ident<$($generic:ident),*>, $object:ty) => {
        $(#[$attribute])*
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(transparent, bound = "")]
        pub struct $name<$($generic: 'static),*>($crate::Proxy<$object>);

        impl<$($generic: 'static),*> $name<$($generic),*> {
            /// Returns the proxy, for operations that have no method here.
            #[must_use]
            pub fn proxy(&self) -> &$crate::Proxy<$object> {
                &self.0
            }

            /// Sets a time-out for calls by this handle and its clones
            /// ([`Proxy::with_timeout`](crate::Proxy::with_timeout)).
            #[must_use]
            pub fn with_timeout(self, timeout: std::time::Duration) -> Self {
                Self(self.0.with_timeout(timeout))
            }
        }

        impl<$($generic: 'static),*> Clone for $name<$($generic),*> {
            fn clone(&self) -> Self {
                Self(self.0.clone())
            }
        }

        impl<$($generic: 'static),*> From<$crate::Proxy<$object>> for $name<$($generic),*> {
            fn from(proxy: $crate::Proxy<$object>) -> Self {
                Self(proxy)
            }
        }

        impl<$($generic: 'static),*> mp_core::message::PlainOutcome for $name<$($generic),*> {}

        impl<$($generic: 'static),*> std::fmt::Debug for $name<$($generic),*> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.0)
            }
        }
    };
}

pub(crate) use ready;

/// Element of a ready-made object. Elements are sent to the server, and copies of them are sent back. The
/// trait is implemented for all suitable types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be kept in a `Dict`, `List` or `Namespace`",
    note = "it takes what is `Serialize + DeserializeOwned + Clone + Send + 'static`; for other types there \
            is `manager.create`, and calls"
)]
pub trait Entry: serde::Serialize + serde::de::DeserializeOwned + Clone + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<T: serde::Serialize + serde::de::DeserializeOwned + Clone + Send + 'static> Entry for T {}
