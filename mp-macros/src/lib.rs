//! Derive macros of mp.
