//! Plain data that several processes share: with a lock ([`Value`], [`Array`]) and without ([`RawValue`], [`RawArray`]).
//!
//! | type | read and written | a value of 16 bytes | costs |
//! |---|---|---|---|
//! | [`Value<T>`], [`Array<T>`] | under a lock, as `&mut T`, `&mut [T]` | always whole, or reported | an uncontended lock: two atomic operations |
//! | [`RawValue<T>`], [`RawArray<T>`] | at any time, relaxed atomics | may be half old, half new | plain loads and stores |
//!
//! Element types are [`Pod`](bytemuck::Pod): every bit pattern is a value, so that what a killed process leaves half
//! written is still one. For `#[derive(Pod)]` the `bytemuck` that this crate uses is [re-exported](crate::bytemuck): with
//! `#[bytemuck(crate = "mp::bytemuck")]` beside it, as [`Value`] shows.

mod guard;
mod header;
mod locked;
mod raw;
mod structure;

pub use guard::LockGuard;
pub(crate) use header::{Form, Header};
pub use locked::{Array, Value};
pub use raw::{RawArray, RawValue};
pub use structure::Structure;
