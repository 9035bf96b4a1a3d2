//! Messages: types that can be sent, and their encoding.
//!
//! ```
//! use mp::message::{pack, unpack};
//! use mp::{Bundle, Message, Tensor};
//!
//! // Serde types are messages; a type that contains an exclusive tensor derives `Message`.
//! #[derive(Message)]
//! struct Step {
//!     number: u32,
//!     weights: Tensor<f32>,
//! }
//!
//! let step = Step { number: 7, weights: Tensor::full(&[3], 1.5)? };
//! let envelope = pack(Bundle((step, "a name".to_string()))).map_err(|e| e.error)?; // like a queue's `put`
//! let Bundle((step, name)) = unpack::<Bundle<(Step, String)>>(envelope)?;
//! assert_eq!((step.number, step.weights.len(), name.as_str()), (7, 3, "a name"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start with three items: [`Message`] is a trait and a derive macro. [`Bundle`] is a tuple, `Vec` or
//! `Option` of messages that are not serde types. [`Reduce`], with [`reduced`], sends types of other crates.
//!
//! | task | items |
//! |---|---|
//! | types of the standard library: non-UTF-8 paths, instants, `io::Error`, any `dyn Error` | [`reduced`], for fields; [`Reduced`]; [`ErrorChain`] |
//! | types of other crates, which can't implement [`Reduce`] | [`register!`], [`register()`]; [`registered`], for fields; [`Registered`] |
//! | values of many types in one queue | [`AnyValue`] |
//! | an `Arc` or `Rc` that occurs twice and arrives as one | [`shared`](mod@shared), for fields |
//! | plain old data as its bytes, by one copy | `#[derive(Message)] #[message(as_bytes)]`; [`as_bytes`](mod@as_bytes), for fields; [`AsBytes`] |
//! | return types of processes and tasks | [`IntoOutcome`]; [`PlainOutcome`], for a type of your own |
//! | a message that can't be decoded | [`Undecodable`]: its type, the position of the error, its bytes |
//! | a message that can't be decoded yet, for lack of descriptors | [`Unread`] |
//! | to implement [`Message`] by hand | [`Codec`], [`Outgoing`], [`Incoming`], [`UnsentValues`] |

#[doc(no_inline)]
pub use crate::{Bundle, Message};
// The expansion of `derive(Message)` refers to these items here.
#[doc(hidden)]
pub use mp_reduce::message::*;
pub use mp_reduce::message::{
    AsBytes, Codec, Incoming, IntoOutcome, MAX_NESTING, Outgoing, PlainOutcome, Result, Undecodable,
    UnsentValues, as_bytes,
};
pub use mp_reduce::{
    AnyValue, Error as MessageError, ErrorChain, PackError, Reduce, Reduced, Registered, SharedPointer,
    Unread, pack, reduced, register, register_as, register_local, register_serde, registered, shared, unpack,
};
