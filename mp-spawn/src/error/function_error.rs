//! Errors of a child that refuses to call the function that its parent names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Reason why a child refuses to call the function that its parent names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FunctionError {
    /// The child runs another program, or another build of this program.
    OtherBuild {
        /// Program that the child runs.
        found: String,
        /// Program that the parent runs.
        expected: String,
    },
    /// The reference points outside of the program.
    OutOfBounds,
    /// The reference is not aligned like a function.
    Misaligned,
    /// The reference does not point to a function.
    NoFunction,
    /// The reference points to a function with types other than the expected types.
    OtherTypes {
        /// Name of the function to which the reference points.
        found: String,
    },
    /// The function is in a library with its own copy of this crate, and the child runs another copy, from
    /// the program or from another library.
    OtherCopy,
}

impl fmt::Display for FunctionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FunctionError::OtherBuild { found, expected } => {
                write!(
                    f,
                    "the child runs another build: {found}, expected {expected}. If the program was rebuilt \
                     while it ran, start it again"
                )
            }
            FunctionError::OutOfBounds => f.write_str(
                "the function's reference points outside of the \
                                                       program",
            ),
            FunctionError::Misaligned => f.write_str("the function's reference is not aligned"),
            FunctionError::NoFunction => f.write_str("the function's reference does not point to a function"),
            FunctionError::OtherTypes { found } => {
                write!(f, "the reference points to a function with other types, `{found}`")
            }
            FunctionError::OtherCopy => f.write_str(
                "the function is in a shared library with its own copy of mp, and the child runs another \
                 copy: start it with a command that loads the library and calls its mp_child_main (see \
                 `set_command`)",
            ),
        }
    }
}
