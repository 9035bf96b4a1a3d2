//! Objects that programs often want: a [`Proxy`](crate::Proxy) of a collection, with its methods as calls.

pub(crate) mod dict;
pub(crate) mod list;
pub(crate) mod namespace;
pub(crate) mod shared;

/// A type that is a proxy of an object, and what it has of it.
macro_rules! ready {
    ($(#[$attribute:meta])* $name:ident<$($generic:ident),*>, $object:ty) => {
        $(#[$attribute])*
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(transparent, bound = "")]
        pub struct $name<$($generic: 'static),*>($crate::Proxy<$object>);

        impl<$($generic: 'static),*> $name<$($generic),*> {
            /// The proxy, for calls that the methods here have no name for.
            #[must_use]
            pub fn proxy(&self) -> &$crate::Proxy<$object> {
                &self.0
            }

            /// The same object; calls by this handle and its clones wait at most this long
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

/// What can be in a ready-made object: it travels there, and copies of it come back. There is nothing to implement.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be kept in a `Dict`, `List` or `Namespace`",
    note = "it takes what is `Serialize + DeserializeOwned + Clone + Send + 'static`; for other types there is `manager.create`, and calls"
)]
pub trait Entry: serde::Serialize + serde::de::DeserializeOwned + Clone + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<T: serde::Serialize + serde::de::DeserializeOwned + Clone + Send + 'static> Entry for T {}
