//! Round trips through messages: shapes of serde's data model, limits, and unreadable values.

mod buffers;
mod fuzz;
mod golden;
mod hostile;
mod nesting;
mod nothing_in_something;
mod parts;
mod random_shapes;
mod self_describing;
mod shape;
mod undecodable;
mod unfaithful;

use std::fmt::Debug;

use mp_reduce::{Message, pack, unpack};

/// Checks that a value round-trips.
#[track_caller]
fn same<T: Message + Clone + PartialEq + Debug>(value: T) {
    let envelope = pack(value.clone()).unwrap_or_else(|e| panic!("{value:?} is not put: {e}"));
    match unpack::<T>(envelope) {
        Ok(arrived) => assert_eq!(arrived, value),
        Err(error) => panic!("{value:?} does not arrive: {error}"),
    }
}
