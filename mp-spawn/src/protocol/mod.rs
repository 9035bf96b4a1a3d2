//! Messages between parent, child and fork server: frames, files, functions, payloads.

pub(crate) mod command;
pub(crate) mod control_socket;
pub(crate) mod fields;
pub(crate) mod frame;
pub(crate) mod function;
pub(crate) mod inherited_files;
pub(crate) mod interrupt;
pub(crate) mod lifeline;
pub(crate) mod message;
pub(crate) mod outbox;
pub(crate) mod payload;
pub(crate) mod report;
pub(crate) mod resource_limits;
pub(crate) mod token;
