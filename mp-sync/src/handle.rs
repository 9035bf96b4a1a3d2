//! What makes a type of this crate a handle: it is printed, sent and received.

/// Writes `Debug`, `Serialize`, `Deserialize` and the name for people of a handle: from its [`Shared`](crate::shared::Shared), what is printed before
/// the block that it is in, and how it is received. (A clone is another handle: those are derived.)
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
            /// Gives it a name, for all processes that have it: for reports of waits that last long, and for `Debug`. A name is cut
            /// at 32 bytes; the last one given counts. It finds nothing, and no other thing is told apart by it.
            #[must_use]
            pub fn named(self, name: &str) -> Self {
                let $this = &self;
                ::mp_core::waits::name_object($shared.structure().hold(), name);
                self
            }

            /// The name that some process [gave](Self::named) it.
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
