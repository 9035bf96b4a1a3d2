//! Tensors in this process and in other processes.

mod arrays;
mod parts;
mod random_ndarray;
mod random_views;
mod sharing;
mod sparse;
