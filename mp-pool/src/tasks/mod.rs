//! Calls and their tasks: sources of arguments, chunks that are sent, and outcomes that arrive.

pub(crate) mod call_outcomes;
pub(crate) mod call_state;
pub(crate) mod chunk;
pub(crate) mod lanes;
pub(crate) mod outcome_run;
pub(crate) mod owner_process;
pub(crate) mod retry_policy;
pub(crate) mod source;
pub(crate) mod stream_outcomes;
mod submission_times;
pub(crate) mod transit;
