//! Programs around the library: hosts in other languages, guests, and valgrind.

mod embedding;
mod guest;
mod valgrind;
