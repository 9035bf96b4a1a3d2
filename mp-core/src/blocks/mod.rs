//! Tables of slabs and blocks.

pub(crate) mod marks;
