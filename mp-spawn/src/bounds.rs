//! Bounds for the functions and arguments of processes, with compiler diagnostics for types that don't meet
//! them.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Function that another process can call, because it captures nothing. All function items and all closures
/// without captures implement this trait.
///
/// A closure that captures a value of a `Copy` type, and a function pointer, meet this bound too, because no
/// bound expresses that a type has no bytes. `cargo check` accepts them, and `cargo build` refuses them.
#[diagnostic::on_unimplemented(
    message = "this closure can't run in another process: it captures something of this one, or borrows it",
    label = "captures a variable",
    note = "pass what it needs as the argument: `mp::spawn(|rank, name: String| …, name, nprocs)`",
    note = "or list the captures, which are sent along: `mp::closure!([name] |rank: usize, (): ()| …)`, for \
            `mp::process::start_closure`; for a pool, `pool.task_closure(mp::closure!([name] |x: u64| \
            …)).map(…)`"
)]
pub trait CapturesNothing: Copy + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<F: Copy + Send + 'static> CapturesNothing for F {}

/// Argument that several processes can get: each process of a start decodes a copy, and so does a
/// [supervised](crate::Restart) process after each restart. All types that are `Serialize + DeserializeOwned`
/// implement this trait. Frozen and shared tensors, queues and locks are among them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the argument of several processes",
    label = "each process gets a copy of its argument, which this can't be",
    note = "a type of your own: `#[derive(Serialize, Deserialize)]`; `#[derive(Message)]` is for what \
            moves, through a queue or to the one process of `mp::Process::spawn`",
    note = "an exclusive tensor: `freeze()` or `share()` it, put it into a queue, or start one process by \
            `mp::Process::spawn`",
    note = "a reference: what it points to, as `String` or `Vec`; an `Rc` or `Arc`: what is in it; a file: \
            its path, or `SpawnOptions::inherit_fds`; a lock or channel of the standard library: that of `mp`"
)]
pub trait Argument: Serialize + DeserializeOwned + 'static {}

// Otherwise the compiler would name `Serialize` instead of the reason why it is required.
#[diagnostic::do_not_recommend]
impl<A: Serialize + DeserializeOwned + 'static> Argument for A {}
