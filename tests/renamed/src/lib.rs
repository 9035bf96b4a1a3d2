//! Empty library of a package that has only tests.
