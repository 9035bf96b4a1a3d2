//! Common traits of handles: printing, sending and receiving.

/// Implements `Debug`, `Serialize`, `Deserialize` and naming for a handle. Arguments: its type, a text for
/// errors, its [`Shared`](crate::shared::Shared), the text that `Debug` prints before the block, and the
/// expression that receives a handle. `Clone` is derived, since a clone is another handle.
macro_rules! handle {
    (
        $name:ident $(<$t:ident: $first:ident $(+ $more:ident)*>)?, $what:literal,
        |$this:ident| $shared:expr, $state:expr;
        |$d:ident| $received:expr
    ) => {
        impl $(<$t: $first $(+ $more)*>)? ::std::fmt::Debug for $name $(<$t>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(stringify!($name))?;
                $(write!(f, "<{}>", ::std::any::type_name::<$t>())?;)?
                let $this = self;
                write!(f, "({}{:?}", $state, $shared.structure().hold())?;
                match self.given_name() {
                    Some(name) => write!(f, ", {name:?})"),
                    None => f.write_str(")"),
                }
            }
        }

        impl $(<$t: $first $(+ $more)*>)? $name $(<$t>)? {
            /// Names the object, for all processes that have a handle to it. The name appears in `Debug` and
            /// in reports of long waits. Several objects may have the same name. The name is cut at 32 bytes,
            /// and a later name replaces it.
            #[must_use]
            pub fn named(self, name: &str) -> Self {
                let $this = &self;
                ::mp_core::waits::name_object($shared.structure().hold(), name);
                self
            }

            /// Returns the name that a process [gave](Self::named) to the object.
            pub fn given_name(&self) -> Option<String> {
                let $this = self;
                ::mp_core::waits::object_name($shared.structure().hold())
            }
        }

        impl $(<$t: $first $(+ $more)*>)? ::serde::Serialize for $name $(<$t>)? {
            fn serialize<S: ::serde::Serializer>(&self, s: S) -> ::std::result::Result<S::Ok, S::Error> {
                let $this = self;
                $shared.send($what, s)
            }
        }

        impl<'de $(, $t: $first $(+ $more)*)?> ::serde::Deserialize<'de> for $name $(<$t>)? {
            fn deserialize<D: ::serde::Deserializer<'de>>($d: D) -> ::std::result::Result<Self, D::Error> {
                $received
            }
        }
    };
}
pub(crate) use handle;
