//! Nothing: all tests are in `tests/tests`. The programs that the compiler has to refuse or allow get this package's
//! features by way of its library, says `trybuild`, so there is one.
