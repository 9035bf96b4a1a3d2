//! # Safety
//! Registration of types that can't implement a trait of this crate. The code is unsafe because
//! [`register!`](crate::register!) puts an entry into a section of the program. It is sound because the entry
//! is the address of a function without arguments, which is called once, before `main`.
#![allow(unsafe_code)]

mod any;
mod standard;
mod table;

use std::any::{TypeId, type_name};

use mp_core::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use any::AnyValue;
use table::RegistryEntry;

/// Returns the entry of the type `T`, or the error text if `T` is not registered.
fn entry_of_type<T: 'static>() -> Result<&'static RegistryEntry, String> {
    entry_of_id(TypeId::of::<T>(), type_name::<T>())
}

/// Returns the entry of the type with this id, or an error text with `type_name` if the type is not
/// registered.
fn entry_of_id(id: TypeId, type_name: &str) -> Result<&'static RegistryEntry, String> {
    standard::register();
    table::of_id(id, type_name)
}

/// Returns the entry with this name, or an error text if there is none.
fn entry_of_name(name: &str) -> Result<&'static RegistryEntry, String> {
    standard::register();
    table::of_name(name)
}

/// Registers a type of another crate, with the functions that reduce it to a serde type and rebuild it.
///
/// ```
/// use mp_reduce::{Registered, pack, register, unpack};
/// use serde::{Deserialize, Serialize};
/// use std::net::TcpListener; // not a serde type, and not a type of this crate
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
/// // In a field, and as a message of its own.
/// let socket = TcpListener::bind("127.0.0.1:0")?;
/// let job = unpack::<Job>(pack(Job { socket }).map_err(|e| e.error)?)?;
/// let envelope = pack(Registered(job.socket)).map_err(|e| e.error)?;
/// let Registered(socket) = unpack::<Registered<TcpListener>>(envelope)?;
/// assert!(socket.local_addr()?.ip().is_loopback());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Call this function once in each process, before the first value of the type is sent or received. A worker
/// does not run `main`, and receives its arguments before its function is called. So use
/// [`register!`](crate::register!) outside of functions, which registers the type in all processes of a
/// program.
///
/// The type is identified by [`std::any::type_name`]. For processes of several programs, [`register_as`] sets
/// a name that stays the same when the type is moved or the compiler changes. A type of your own can
/// implement [`Reduce`](crate::Reduce) without registration.
///
/// # Errors
/// Returns [`Error::InvalidArgument`](mp_core::Error::InvalidArgument) if the type is registered with other
/// functions, or another type has its name. Registering the same functions again has no effect, if they
/// capture nothing.
///
/// # Requirements on the functions
/// The functions may fail and panic. `put` then returns an error with the type's name and the message, and
/// `get` returns an error with the type's name and the bytes. The functions may send and receive messages,
/// also through the queue that transports the value, as long as that queue has room. The result of `reduce`
/// may contain registered types. Infinite recursion is detected and returned as an error.
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
    register_as(type_name::<T>(), reduce, rebuild)
}

/// Registers a type under this name. Otherwise like [`register()`].
///
/// # Errors
/// See [`register()`].
pub fn register_as<T, H>(
    name: &str,
    reduce: impl Fn(&T) -> Result<H, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    rebuild: impl Fn(H) -> Result<T, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
) -> Result<()>
where
    T: Send + Sync + 'static,
    H: Serialize + DeserializeOwned,
{
    standard::check_name::<T>(name)?;
    table::add(name, reduce, rebuild, table::share::<T>())
}

/// Registers a type that is not `Send` and `Sync`, such as a type that contains an `Rc` or a `Cell`. Its
/// values are created and used in one thread of each process. They are sent as [`Registered`] and in fields,
/// but not as [`AnyValue`], which may go to any thread. Otherwise like [`register()`].
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
/// let envelope = pack(Registered(Tree("a".into(), Vec::new()))).map_err(|e| e.error)?;
/// let Registered(tree) = unpack::<Registered<Tree>>(envelope)?;
/// assert_eq!((&*tree.0, tree.1.len()), ("a", 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// See [`register()`].
pub fn register_local<T, H>(
    reduce: impl Fn(&T) -> Result<H, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    rebuild: impl Fn(H) -> Result<T, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
) -> Result<()>
where
    T: 'static,
    H: Serialize + DeserializeOwned,
{
    let name = type_name::<T>();
    standard::check_name::<T>(name)?;
    table::add(name, reduce, rebuild, None)
}

/// Registers a serde type, so that it can be an [`AnyValue`]. Otherwise like [`register()`].
///
/// # Errors
/// See [`register()`].
pub fn register_serde<T: Serialize + DeserializeOwned + Send + Sync + 'static>() -> Result<()> {
    let name = type_name::<T>();
    standard::check_name::<T>(name)?;
    standard::serde::<T>(name)
}

/// Registers a type in each process of the program, before `main`, and before a worker receives its
/// arguments.
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
/// `register!(local Type, …)` registers types that are not `Send` and `Sync`, see [`register_local`].
///
/// The arguments are the type and the two functions of [`register()`], or only the type for
/// [`register_serde`]. The macro is used at item level. A failure, such as a type that is registered
/// differently, is reported on stderr. (In statically linked programs without glibc, and in libraries that
/// are loaded later, call the functions instead.)
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
            // SAFETY: functions in this section are called with arguments that a C function may ignore, and
            // return nothing.
            #[unsafe(link_section = ".init_array")]
            // fork: code, which never changes.
            static REGISTER: extern "C" fn() = register;
        };
    };
}

/// Runs a registration of [`register!`](crate::register!) before `main`. Reports an error on stderr.
#[doc(hidden)]
pub fn registered_at_start(register: impl FnOnce() -> Result<()>) {
    if let Some(Err(error)) = mp_core::user_code::catch_panic(register) {
        eprintln!("a type can't be sent by this process: {error}");
    }
}

/// A value of a [registered](register()) type, as a message of its own or within any other serde type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent, bound = "T: 'static")]
pub struct Registered<T>(#[serde(with = "registered")] pub T);

/// Functions for the attribute `#[serde(with = "mp_reduce::registered")]` at a field with a
/// [registered](register()) type.
pub mod registered {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::builtin::ByteString;

    /// Reduces the value and serializes the result as bytes.
    ///
    /// # Errors
    /// Returns an error if the type is not registered in this process, or can't be reduced.
    pub fn serialize<T: 'static, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        let entry = super::entry_of_type::<T>().map_err(S::Error::custom)?;
        ByteString(entry.write(value).map_err(S::Error::custom)?).serialize(s)
    }

    /// Rebuilds the value from its bytes.
    ///
    /// # Errors
    /// Returns an error if the type is not registered in this process, is registered differently, or can't be
    /// rebuilt.
    pub fn deserialize<'de, T: 'static, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        let entry = super::entry_of_type::<T>().map_err(D::Error::custom)?;
        let ByteString(bytes) = ByteString::deserialize(d)?;
        let value = entry.read(&bytes).map_err(D::Error::custom)?;
        value
            .downcast()
            .map(|value| *value)
            .map_err(|_| D::Error::custom("the registered functions return another type"))
    }
}
