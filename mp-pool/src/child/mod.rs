//! Code of the worker process: its main loop, its messages, and the execution of tasks.
//! [`slots`](crate::slots) has the state of the workers in the process that owns the pool.

pub(crate) mod clock;
pub(crate) mod item_cursor;
pub(crate) mod journal_words;
pub(crate) mod main_loop;
pub(crate) mod message;
pub(crate) mod runner;
pub(crate) mod shared_bytes;
pub(crate) mod task_span;
pub(crate) mod user_state;
pub(crate) mod values;
