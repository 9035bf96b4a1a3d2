//! What functions and arguments of processes have to be, as the compiler says of anything else.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A function that another process can call: it captures nothing. All functions, and closures without captures, are that; there is
/// nothing to implement.
///
/// (A closure that captures a value of a `Copy` type, and a function pointer, meet this bound, since no bound says that a type has
/// no bytes: `cargo build` refuses them, and `cargo check` does not.)
#[diagnostic::on_unimplemented(
    message = "this closure can't run in another process: it captures something of this one, or borrows it",
    label = "captures a variable",
    note = "pass what it needs as the argument: `mp::spawn(|rank, name: String| …, name, nprocs)`",
    note = "or list the captures, which are sent along: `mp::closure!([name] |rank: usize, (): ()| …)`, for `mp::process::start_closure`; \
            for a pool, `pool.task_closure(mp::closure!([name] |x: u64| …)).map(…)`"
)]
pub trait CapturesNothing: Copy + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<F: Copy + Send + 'static> CapturesNothing for F {}

/// What the processes of one start can have as their argument, each a copy of it, and those of a [supervised](crate::Restart) process, one
/// after the other: all that is `Serialize + DeserializeOwned`,
/// frozen and shared tensors, queues and locks among it. There is nothing to implement.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the argument of several processes",
    label = "each process gets a copy of its argument, which this can't be",
    note = "a type of your own: `#[derive(Serialize, Deserialize)]`; `#[derive(Message)]` is for what moves, through a queue or to the \
            one process of `mp::Process::spawn`",
    note = "an exclusive tensor: `freeze()` or `share()` it, put it into a queue, or start one process by `mp::Process::spawn`",
    note = "a reference: what it points to, as `String` or `Vec`; an `Rc` or `Arc`: what is in it; a file: its path, or \
            `SpawnOptions::inherit_fds`; a lock or channel of the standard library: that of `mp`"
)]
pub trait Argument: Serialize + DeserializeOwned + 'static {}

// Or the compiler would name `Serialize`, and not what it is needed for.
#[diagnostic::do_not_recommend]
impl<A: Serialize + DeserializeOwned + 'static> Argument for A {}
