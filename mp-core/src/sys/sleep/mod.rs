//! Sleeping on words and on descriptors.

pub(crate) mod clock;
pub(crate) mod epoll;
pub(crate) mod futex;
pub(crate) mod readiness;
