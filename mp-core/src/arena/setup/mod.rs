//! Setup of a process's arena: creation, attachment at first need, forks, its files, and the settings that
//! children inherit.

pub(in crate::arena) mod attach;
pub(in crate::arena) mod backing_files;
pub(in crate::arena) mod configure;
pub(in crate::arena) mod extent;
pub(in crate::arena) mod forked;
pub(in crate::arena) mod locker;
pub(in crate::arena) mod settings;
pub(crate) mod strategy;
