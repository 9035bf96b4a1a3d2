//! Setup of a process's arena: attachment at first need, its files, and the settings that children inherit.

pub(crate) mod attach;
pub(crate) mod configure;
pub(crate) mod extent;
pub(crate) mod fd_store;
pub(crate) mod files;
pub(crate) mod out_of_space;
pub(crate) mod published;
pub(crate) mod settings;

use crate::arena::{Arena, view};

view! {
    /// Files behind the addresses of an arena: its own, and named ones.
    pub(crate) struct Backing;
}
