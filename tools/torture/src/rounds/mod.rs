//! A round: its structures, the workers that share them, and the signals that they receive.

pub(crate) mod copies;
pub(crate) mod crew;
pub(crate) mod folder;
pub(crate) mod group;
pub(crate) mod round;
