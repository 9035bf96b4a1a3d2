//! What can be sent: values, and how they become messages.
//!
//! ```
//! use mp::message::{pack, unpack};
//! use mp::{Bundle, Message, Tensor};
//!
//! // Serde types are messages as they are; a type with an exclusive tensor in it derives `Message`.
//! #[derive(Message)]
//! struct Step {
//!     number: u32,
//!     weights: Tensor<f32>,
//! }
//!
//! let step = Step { number: 7, weights: Tensor::full(&[3], 1.5)? };
//! let envelope = pack(Bundle((step, "a name".to_string()))).map_err(|e| e.error)?; // what a queue's `put` does
//! let Bundle((step, name)) = unpack::<Bundle<(Step, String)>>(envelope)?;
//! assert_eq!((step.number, step.weights.len(), name.as_str()), (7, 3, "a name"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The three to know: [`Message`], the trait and its derive; [`Bundle`], a tuple, `Vec` or `Option` of messages that are no serde
//! types; [`Reduce`], with [`reduced`], for types of other crates.
//!
//! | | |
//! |---|---|
//! | types of the standard library: paths that are no UTF-8, instants, `io::Error`, any `dyn Error` | [`reduced`], for fields; [`Reduced`]; [`ErrorChain`] |
//! | types of other crates, which can't implement [`Reduce`] | [`register!`], [`register()`]; [`registered`], for fields; [`Registered`] |
//! | values of many types in one queue | [`AnyValue`] |
//! | an `Arc` or `Rc` that is mentioned twice arrives as one | [`shared`](mod@shared), for fields |
//! | plain old data as its bytes, by one copy | `#[derive(Message)] #[message(as_bytes)]`; [`as_bytes`](mod@as_bytes), for fields; [`AsBytes`] |
//! | what functions of processes and tasks may return | [`IntoOutcome`]; [`PlainOutcome`], for a type of your own |
//! | a message that can't be read | [`Undecodable`]: its type, the place in it, its bytes |
//! | a message that can't be read yet, for lack of descriptors | [`Unread`] |
//! | to write [`Message`] by hand | [`Codec`], [`Outgoing`], [`Incoming`], [`Returned`] |

#[doc(no_inline)]
pub use crate::{Bundle, Message};
// What `derive(Message)` writes names these here.
#[doc(hidden)]
pub use mp_reduce::message::*;
pub use mp_reduce::message::{
    AsBytes, Codec, Incoming, IntoOutcome, MAX_NESTING, Outgoing, PlainOutcome, Result, Returned,
    Undecodable, as_bytes,
};
pub use mp_reduce::{
    AnyValue, Error as MessageError, ErrorChain, PackError, Reduce, Reduced, Registered, SharedPointer,
    Unread, pack, reduced, register, register_as, register_local, register_serde, registered, shared, unpack,
};
