//! Rounds: structures, workers that use the structures, and signals to the workers.

pub(crate) mod copies;
pub(crate) mod crew;
pub(crate) mod folder;
pub(crate) mod group;
pub(crate) mod round;
