//! What tensors are, here and in another process.

mod arrays;
mod parts;
mod random_ndarray;
mod random_views;
mod sharing;
mod sparse;
