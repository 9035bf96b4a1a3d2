//! Real processes that are killed or stopped at every access to shared memory: a file for what they do.

mod ends;
mod messages;
mod queues;
mod small_messages;
mod sync;
mod values;
