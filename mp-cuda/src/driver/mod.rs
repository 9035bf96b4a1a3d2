//! The CUDA driver, found and loaded when it is first needed. This crate's own calls go through here; the tests of the simulated
//! driver use the table, too. No part of it is promised to users.

pub mod api;
pub(crate) mod calls;
pub(crate) mod context;
pub(crate) mod copies;
pub(crate) mod events;
pub(crate) mod load;
pub(crate) mod long_calls;
pub(crate) mod pointers;
pub(crate) mod stream_words;

pub(crate) use load::Driver;
