//! A round: its structures, the workers that use them, and the signals that the workers receive.

pub(crate) mod copies;
pub(crate) mod crew;
pub(crate) mod folder;
pub(crate) mod group;
pub(crate) mod round;
