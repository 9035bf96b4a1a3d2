//! Data that parent and child exchange in addition to frames: arguments, shared memory, the report of a
//! crash.
//!
//! This is the only place where processes get shared memory. The arena's file is sent to each child. Short
//! arguments without tensors or similar objects are sent through the socket. The child then joins as a member
//! when it first needs shared memory, and notifies its parent. (A child that is killed after it joined and
//! before it notified its parent is detected by its locks, like a member without a parent.) All other
//! arguments are packed into an envelope that belongs to the parent until the child claims it, and the child
//! joins before it sends its hello. So the envelope is freed if either process crashes before the hello.
//! The return value of the function is sent back in the same two ways: in the report, or in an envelope. The
//! envelope belongs to the child until the parent has claimed it, and the child waits for that.
//!
//! The envelope of the arguments is a [`Promise`](mp_core::Promise), whose documentation covers the death of either process.
//! For the envelope of the result:
//!
//! | killed | remains | cleaned up by |
//! |---|---|---|
//! | child, before the parent claimed its result | an envelope of the crashed child | the reclaim; the result is lost |
//! | child, after it failed to read its arguments for lack of descriptors, and before the parent claimed their envelope back | an envelope of the crashed child | the reclaim; the arguments are lost |
//! | parent, before or after it claimed a result | an envelope of one of the two | the reclaim of that process |

pub(crate) mod arguments;
mod packed;
mod return_value;
pub(crate) mod shared_memory;

pub(crate) use arguments::{ChildPayload, ParentPayload};
pub(crate) use packed::Packed;
pub(crate) use return_value::ReceivedValue;
