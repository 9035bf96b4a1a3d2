//! Programs around the library: hosts in other languages, and valgrind.

mod embedding;
mod valgrind;
