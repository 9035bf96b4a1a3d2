//! # Safety
//! Types that can't implement a trait of ours, and how they are sent. Unsafe, because [`register!`](crate::register!) puts an entry into a
//! section of the program; sound, because that is the address of a function without arguments, which is called once, before `main`.
#![allow(unsafe_code)]

mod any;
mod standard;
mod table;

use std::any::type_name;

use mp_core::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use any::AnyValue;

/// Makes a type of another crate known: by which functions it becomes something that can be sent, and is made of that again.
///
/// ```
/// use mp_reduce::{Registered, pack, register, unpack};
/// use serde::{Deserialize, Serialize};
/// use std::net::TcpListener; // no serde type, no type of this crate
///
/// register(
///     |listener: &TcpListener| Ok(listener.local_addr()?.port()),
///     |port: u16| Ok(TcpListener::bind(("127.0.0.1", if port == 0 { 1 } else { 0 }))?),
/// )?;
///
/// #[derive(Serialize, Deserialize)]
/// struct Job {
///     #[serde(with = "mp_reduce::registered")]
///     socket: TcpListener,
/// }
///
/// // In a field; and as a message of its own.
/// let socket = TcpListener::bind("127.0.0.1:0")?;
/// let job = unpack::<Job>(pack(Job { socket }).map_err(|e| e.error)?)?;
/// let Registered(socket) = unpack::<Registered<TcpListener>>(pack(Registered(job.socket)).map_err(|e| e.error)?)?;
/// assert!(socket.local_addr()?.ip().is_loopback());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is done once in each process, before the first such value is sent or read. A worker is a process of its own, which does not run
/// `main`, and whose arguments are read before its function is called: [`register!`](crate::register!), outside of functions, does it in
/// all processes of a program.
///
/// The type goes by what [`std::any::type_name`] says; [`register_as`] gives it a name that stays when a type is moved or a compiler
/// changes, for processes of several programs. Of a type of your own, [`Reduce`](crate::Reduce) needs no registration.
///
/// # Errors
/// [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) when the type is registered with other functions, or its name is another
/// type's. To register it again with the same functions, if these capture nothing, does nothing.
///
/// # What the functions may do
/// They may fail and panic: both are errors of `put` or `get`, with the type's name; the message comes back, or its bytes are in the
/// error. They may send and receive messages, also through the queue that the value goes through, as long as that has room. What
/// `reduce` returns may have registered types in it; one that never ends so is an error.
#[doc(alias = "ForkingPickler.register")]
#[doc(alias = "copyreg")]
pub fn register<T, H>(
    reduce: impl Fn(&T) -> Result<H, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    rebuild: impl Fn(H) -> Result<T, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
) -> Result<()>
where
    T: Send + Sync + 'static,
    H: Serialize + DeserializeOwned,
{
    table::add(type_name::<T>(), reduce, rebuild)
}

/// As [`register()`], under this name.
///
/// # Errors
/// As for `register`.
pub fn register_as<T, H>(
    name: &str,
    reduce: impl Fn(&T) -> Result<H, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    rebuild: impl Fn(H) -> Result<T, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
) -> Result<()>
where
    T: Send + Sync + 'static,
    H: Serialize + DeserializeOwned,
{
    table::add(name, reduce, rebuild)
}

/// As [`register()`], for a type that is not `Send` and `Sync`, such as one with an `Rc` or a `Cell` in it: its values are made and used in
/// one thread of each process. They travel as [`Registered`], and in fields; an [`AnyValue`] may go to any thread, and has none of them.
///
/// ```
/// use std::rc::Rc;
///
/// use mp_reduce::{Registered, pack, register_local, unpack};
///
/// struct Tree(Rc<str>, Vec<Rc<Tree>>);
///
/// register_local::<Tree, String>(
///     |tree| Ok(tree.0.to_string()),
///     |name| Ok(Tree(name.into(), Vec::new())),
/// )?;
/// let Registered(tree) = unpack::<Registered<Tree>>(pack(Registered(Tree("a".into(), Vec::new()))).map_err(|e| e.error)?)?;
/// assert_eq!((&*tree.0, tree.1.len()), ("a", 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As for `register`.
pub fn register_local<T, H>(
    reduce: impl Fn(&T) -> Result<H, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    rebuild: impl Fn(H) -> Result<T, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
) -> Result<()>
where
    T: 'static,
    H: Serialize + DeserializeOwned,
{
    table::add_local(type_name::<T>(), reduce, rebuild)
}

/// As [`register()`], for a serde type, which travels as itself: so that it can be an [`AnyValue`].
///
/// # Errors
/// As for `register`.
pub fn register_serde<T: Serialize + DeserializeOwned + Send + Sync + 'static>() -> Result<()> {
    standard::serde::<T>(type_name::<T>())
}

/// Registers a type in each process that runs the program, before its `main`, and before a worker reads its arguments.
///
/// ```
/// use std::net::UdpSocket;
///
/// mp_reduce::register!(
///     UdpSocket,
///     |socket| Ok(socket.local_addr()?.port()),
///     |port: u16| Ok(UdpSocket::bind(("127.0.0.1", port))?),
/// );
/// mp_reduce::register!(Job); // a serde type
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Job;
/// # fn main() {}
/// ```
///
/// `register!(local Type, …)` is for types that are not `Send` and `Sync`, as [`register_local`].
///
/// As [`register()`] otherwise, with the type before the two functions; or [`register_serde`], with the type alone. It stands where items
/// do. A failure, a type that is registered differently, is written to stderr. (In a program that is linked statically, without glibc, and
/// in libraries that are loaded later, call the functions instead.)
#[macro_export]
macro_rules! register {
    (local $t:ty, $reduce:expr, $rebuild:expr $(,)?) => {
        $crate::register!(@ $crate::register_local::<$t, _>($reduce, $rebuild));
    };
    ($t:ty $(,)?) => {
        $crate::register!(@ $crate::register_serde::<$t>());
    };
    ($t:ty, $reduce:expr, $rebuild:expr $(,)?) => {
        $crate::register!(@ $crate::register::<$t, _>($reduce, $rebuild));
    };
    (@ $register:expr) => {
        const _: () = {
            extern "C" fn register() {
                $crate::registered_at_start(|| $register);
            }
            #[used]
            // SAFETY: what is called from this section gets arguments that a C function may leave aside, and returns nothing.
            #[unsafe(link_section = ".init_array")]
            // fork: code, which never changes.
            static REGISTER: extern "C" fn() = register;
        };
    };
}

/// What [`register!`](crate::register!) calls before `main`.
#[doc(hidden)]
pub fn registered_at_start(register: impl FnOnce() -> Result<()>) {
    if let Some(Err(error)) = mp_core::user_code::caught(register) {
        eprintln!("a type can't be sent by this process: {error}");
    }
}

/// A value of a [registered](register()) type, as a message of its own or within any other serde type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Registered<T>(pub T);

impl<T: 'static> Serialize for Registered<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        registered::serialize(&self.0, s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for Registered<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        registered::deserialize(d).map(Self)
    }
}

/// For fields of [registered](register()) types: `#[serde(with = "mp_reduce::registered")]`.
pub mod registered {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::table;
    use crate::builtin::ByteString;

    /// Writes what the type is reduced to, as bytes.
    ///
    /// # Errors
    /// When the type is not registered in this process, or can't be reduced.
    pub fn serialize<T: 'static, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        let entry = table::of_type::<T>().map_err(S::Error::custom)?;
        ByteString(entry.write(value).map_err(S::Error::custom)?).serialize(s)
    }

    /// Makes the value of it again.
    ///
    /// # Errors
    /// When the type is not registered in this process, is registered differently, or can't be rebuilt.
    pub fn deserialize<'de, T: 'static, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        let entry = table::of_type::<T>().map_err(D::Error::custom)?;
        let ByteString(bytes) = ByteString::deserialize(d)?;
        let value = entry.read(&bytes).map_err(D::Error::custom)?;
        value.downcast().map(|value| *value).map_err(|_| D::Error::custom("a registered type is another one"))
    }
}
